// Does fma() round once? y[i] = v·v - round(v·v) for v = factor[i], which is 0 where the product is rounded before the sum. One workgroup.
@group(0) @binding(0) var<storage, read> factor: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn fused_multiply_add(@builtin(local_invocation_index) i: u32) {
    let v = factor[i];
    // By its bits, so that no compiler makes one sum of both.
    let square = bitcast<f32>(bitcast<u32>(v * v) & 0x7fffffffu);
    y[i] = fma(v, v, -square);
}
