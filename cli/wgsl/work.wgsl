// x[i] = f(f(..f(x[i]))), `turns` times, with f(v) = 747796405·v + 2891336453: work of any length, whose result the host finds in a few steps.
struct Params { length: u32, turns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> x: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn work(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.length { return; }
    var v = x[id.x];
    for (var turn = 0u; turn < params.turns; turn += 1u) { v = v * 747796405u + 2891336453u; }
    x[id.x] = v;
}
