// Philox 4×32-10: four random words that follow from a counter and a key alone. See src/ops/philox.rs.

// The upper half of a product of words, by halves.
fn upper(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
}

fn philox(counter: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var key = seed;
    for (var i = 0u; i < 10u; i += 1u) {
        c = vec4<u32>(upper(c.z, 0xcd9e8d57u) ^ c.y ^ key.x, c.z * 0xcd9e8d57u, upper(c.x, 0xd2511f53u) ^ c.w ^ key.y, c.x * 0xd2511f53u);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}
