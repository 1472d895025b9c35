// For norm_bitlinear.wgsl: a row in workgroup memory in the int8 layout.
fn store(quad: u32, codes: vec4<i32>, ids: Ids) {
    let bytes = vec4<u32>(codes & vec4<i32>(0xff)) << vec4<u32>(0u, 8u, 16u, 24u);
    let vector = gathered((bytes.x | bytes.y) | (bytes.z | bytes.w), ids);
    if quad % 4u == 0u && quad / 4u < params.words { x[quad / 4u] = vector; }
}

// A lane meets the same activations in every row of the matrix, so it takes their sum off its own.
fn begun(scale: f32, total: i32, ids: Ids) -> Quantised {
    workgroupBarrier();
    let groups = params.words / WORDS;
    var own = 0;
    for (var i = team_lane(ids); i < groups; i += team_lanes(ids)) {
        for (var c = 0u; c < WORDS; c += 1u) {
            let a = x[i * WORDS + c];
            own += dot4I8Packed(0x01010101u, a.x) + dot4I8Packed(0x01010101u, a.y) + dot4I8Packed(0x01010101u, a.z) + dot4I8Packed(0x01010101u, a.w);
        }
    }
    return Quantised(scale, -own, 0);
}
