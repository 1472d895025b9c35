// Rotary positions of heads of size D = 2·half, rotating halves: (a, b) = (x[i], x[i + half]) becomes (a·cos - b·sin, b·cos + a·sin), with the sine
// times `direction`: 1, or -1 for the way back, which is the gradient. x and y are [batch, tokens, heads, D]; token t has position start + t; angles
// is [position, half] pairs (cos, sin). One thread per pair (a, b).
struct Params { pairs: u32, tokens: u32, heads: u32, half: u32, start: u32, direction: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rotate(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.pairs { return; }
    let head = index / params.half;
    let i = index - head * params.half;
    let position = params.start + head / params.heads % params.tokens;
    let first = 2u * head * params.half + i;
    let a = f32(x[first]);
    let b = f32(x[first + params.half]);
    let turn = angles[position * params.half + i] * vec2<f32>(1.0, params.direction);
    y[first] = X(a * turn.x - b * turn.y);
    y[first + params.half] = X(b * turn.x + a * turn.y);
}
