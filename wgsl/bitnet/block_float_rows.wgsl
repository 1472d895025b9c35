// For packed products of activations in block floating point, two planes of bytes (byte_planes.wgsl): products of four rows' words, which
// row_quads.wgsl loads.

// A function of its own: naga's Metal declares an operand that is used twice in one of them twice.
fn dot_bytes(c: u32, x: u32) -> u32 { return bitcast<u32>(dot4I8Packed(c, x)); }

// The products of a word's codes, which are value + 1, with sixteen bytes, modulo 2^32.
fn word_dot(word: u32, x: vec4<u32>) -> u32 {
    return dot_bytes(word & 0x03030303u, x.x) + dot_bytes((word >> 2u) & 0x03030303u, x.y) + dot_bytes((word >> 4u) & 0x03030303u, x.z)
        + dot_bytes((word >> 6u) & 0x03030303u, x.w);
}

fn words_dot(words: vec4<u32>, x: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(word_dot(words.x, x), word_dot(words.y, x), word_dot(words.z, x), word_dot(words.w, x));
}

// What four rows give, plane by plane.
struct Sums { high: vec4<u32>, low: vec4<u32> }

// Adds the products of word `i` of each row with sixteen activations.
fn add_words(sums: Sums, rows: Rows, i: u32, high: vec4<u32>, low: vec4<u32>) -> Sums {
    let words = vec4<u32>(rows.a[i], rows.b[i], rows.c[i], rows.d[i]);
    return Sums(sums.high + words_dot(words, high), sums.low + words_dot(words, low));
}

fn joined(sums: Sums) -> vec4<i32> { return bitcast<vec4<i32>>((sums.high << vec4<u32>(8u)) + sums.low); }

// The group of a block. A quotient takes long, and is rarely needed.
fn group_of(block: u32) -> u32 {
    if params.group_blocks == 1u { return block; }
    return block / params.group_blocks;
}
