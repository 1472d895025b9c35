// The element of an operand that belongs to output element `index`. Dimensions are counted from the innermost: params.n0, n1, n2 are the output's
// (the last of `rank` needs none), `stride` the operand's, 0 where it is broadcast. The host joins dimensions that lie one after another, so that
// operands of one shape have rank 1 and take no division.
fn operand(index: u32, offset: u32, stride: vec4<u32>) -> u32 {
    if params.rank == 1u { return offset + index * stride.x; }
    let q0 = index / params.n0;
    let at0 = offset + (index - q0 * params.n0) * stride.x;
    if params.rank == 2u { return at0 + q0 * stride.y; }
    let q1 = q0 / params.n1;
    let at1 = at0 + (q0 - q1 * params.n1) * stride.y;
    if params.rank == 3u { return at1 + q1 * stride.z; }
    let q2 = q1 / params.n2;
    return at1 + (q1 - q2 * params.n2) * stride.z + q2 * stride.w;
}
