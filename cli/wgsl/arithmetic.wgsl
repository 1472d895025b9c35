// y[i] = the bits of an operation on a[i], b[i] and c[i]. Each has a number of its own, which is not known when this is compiled; nor is `zero`, which is 0.
struct Params { length: u32, operation: u32, zero: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

// A number that passes through an operation on its bits: what kernels do to keep a product apart from what follows.
fn apart(v: f32) -> f32 { return bitcast<f32>(bitcast<u32>(v) | params.zero); }

fn result(x: f32, factor: f32, term: f32) -> u32 {
    switch params.operation {
        case 0u: { return bitcast<u32>(x * factor); }
        case 1u: { return bitcast<u32>(x + factor); }
        case 2u: { return bitcast<u32>(x / factor); }
        case 3u: { return bitcast<u32>(sqrt(x)); }
        case 4u: { return bitcast<u32>(inverseSqrt(x)); }
        case 5u: { return bitcast<u32>(exp(x)); }
        case 6u: { return bitcast<u32>((x * factor) * term); }
        case 7u: { return bitcast<u32>(apart(x * factor) * term); }
        case 8u: { return bitcast<u32>(x * factor + term); }
        case 9u: { return bitcast<u32>(apart(x * factor) + term); }
        case 10u: { return bitcast<u32>(fma(x, factor, term)); }
        case 11u: { return select(0u, 1u, x != x); }
        case 12u: { return select(0u, 1u, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u); }
        case 13u: { return bitcast<u32>(unpack2x16float(bitcast<u32>(x)).x); }
        default: { return pack2x16float(vec2<f32>(x, 0.0)); }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn arithmetic(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.length { y[id.x] = result(a[id.x], b[id.x], c[id.x]); }
}
