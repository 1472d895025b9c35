// Quads of words of four rows. A kernel that includes this defines `codes`, vectors of four words, and `params.words`, words of a row.
struct Rows { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> }

fn load_rows(starts: vec4<u32>, quad: u32) -> Rows {
    let at = starts + vec4<u32>(min(quad, params.words / 4u - 1u));
    return Rows(codes[at.x], codes[at.y], codes[at.z], codes[at.w]);
}
