// For packed products of activations in block floating point, three planes of bytes (byte_planes.wgsl): quads of words of four rows, and their products. A
// kernel that includes this defines `codes`, vectors of four words, and `params.words`, words of a row.

// A function of its own: naga's Metal declares an operand that is used twice in one of them twice.
fn packed_dot(c: u32, x: u32) -> i32 { return dot4I8Packed(c, x); }

// The products of a word's codes, which are value + 1, with sixteen bytes.
fn word_dot(word: u32, x: vec4<u32>, sum: i32) -> i32 {
    return sum + packed_dot(word & 0x03030303u, x.x) + packed_dot((word >> 2u) & 0x03030303u, x.y)
        + packed_dot((word >> 4u) & 0x03030303u, x.z) + packed_dot((word >> 6u) & 0x03030303u, x.w);
}

fn words_dot(words: vec4<u32>, x: vec4<u32>, sum: vec4<i32>) -> vec4<i32> {
    return vec4<i32>(word_dot(words.x, x, sum.x), word_dot(words.y, x, sum.y), word_dot(words.z, x, sum.z), word_dot(words.w, x, sum.w));
}

// Quads of words of four rows.
struct Rows { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> }

fn load_rows(starts: vec4<u32>, quad: u32) -> Rows {
    let at = starts + vec4<u32>(min(quad, params.words / 4u - 1u));
    return Rows(codes[at.x], codes[at.y], codes[at.z], codes[at.w]);
}

// What four rows give, plane by plane.
struct Sums { high: vec4<i32>, middle: vec4<i32>, low: vec4<i32> }

// Adds the products of word `i` of each row with sixteen activations.
fn add_words(sums: Sums, rows: Rows, i: u32, high: vec4<u32>, middle: vec4<u32>, low: vec4<u32>) -> Sums {
    let words = vec4<u32>(rows.a[i], rows.b[i], rows.c[i], rows.d[i]);
    return Sums(words_dot(words, high, sums.high), words_dot(words, middle, sums.middle), words_dot(words, low, sums.low));
}

fn joined(sums: Sums) -> vec4<i32> { return (sums.high << vec4<u32>(14u)) + (sums.middle << vec4<u32>(7u)) + sums.low; }
