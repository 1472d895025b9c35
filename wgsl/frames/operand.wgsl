// What all frames share: parameters, bounds, and which element of an operand belongs to one of the output.
//
// Dimensions are counted from the innermost: n0, n1, n2 are the output's (of `rank`, the last needs none). Bit d of a_dims says whether operand a has
// dimension d; it is the same along those that it has not. The host joins dimensions of which every operand has all or none, so that operands of one
// shape have one, and take no division.
struct Params {
    length: u32, rank: u32, n0: u32, n1: u32, n2: u32, add: u32, in_place: u32, a_dims: u32, b_dims: u32, c_dims: u32, alpha: f32, beta: f32,
}
var<immediate> params: Params;

fn operand(index: u32, dims: u32) -> u32 {
    if params.rank <= 1u { return select(0u, index, dims != 0u); }
    var at = 0u;
    var stride = 1u;
    var rest = index;
    for (var d = 0u; d < params.rank; d += 1u) {
        var i = rest;
        let n = vec3<u32>(params.n0, params.n1, params.n2)[min(d, 2u)];
        if d + 1u < params.rank {
            rest = i / n;
            i -= rest * n;
        }
        if ((dims >> d) & 1u) != 0u {
            at += i * stride;
            stride *= n;
        }
    }
    return at;
}

// Is this operand the output itself?
fn in_place(operand: u32) -> bool { return ((params.in_place >> operand) & 1u) != 0u; }

// What y holds, where that matters.
fn before(index: u32) -> f32 {
    var was = 0.0;
    if (params.add | params.in_place) != 0u { was = f32(y[index]); }
    return was;
}

fn on_top(was: f32, made: f32) -> f32 { return select(made, was + made, params.add != 0u); }
