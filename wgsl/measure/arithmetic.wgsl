// Eight independent chains of v = v·factor + term a thread, of four numbers each, `turns` times twice: what a device multiplies and adds where memory is
// no matter. The sum of the chains goes to `sink`, a quad a thread, so that none can be optimized away.
struct Params { turns: u32, factor: f32, term: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> sink: array<vec4<f32>>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn arithmetic(group: Group, ids: Ids) {
    let index = group.id.x * THREADS + ids.local;
    let factor = vec4<f32>(params.factor);
    let term = vec4<f32>(params.term);
    let start = vec4<f32>(f32(ids.local));
    var a = start;
    var b = start + vec4<f32>(1.0);
    var c = start + vec4<f32>(2.0);
    var d = start + vec4<f32>(3.0);
    var e = start + vec4<f32>(4.0);
    var f = start + vec4<f32>(5.0);
    var g = start + vec4<f32>(6.0);
    var h = start + vec4<f32>(7.0);
    for (var turn = 0u; turn < params.turns; turn += 1u) {
        a = fma(fma(a, factor, term), factor, term);
        b = fma(fma(b, factor, term), factor, term);
        c = fma(fma(c, factor, term), factor, term);
        d = fma(fma(d, factor, term), factor, term);
        e = fma(fma(e, factor, term), factor, term);
        f = fma(fma(f, factor, term), factor, term);
        g = fma(fma(g, factor, term), factor, term);
        h = fma(fma(h, factor, term), factor, term);
    }
    sink[index] = ((a + b) + (c + d)) + ((e + f) + (g + h));
}
