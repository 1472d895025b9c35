// The element of an operand that belongs to output element `index`; see wgsl/frames/operand.wgsl.
template <typename P>
static inline uint operand(constant P& params, uint index, uint offset, uint4 stride) {
    if (params.rank == 1) return offset + index * stride.x;
    const uint q0 = index / params.n0;
    const uint at0 = offset + (index - q0 * params.n0) * stride.x;
    if (params.rank == 2) return at0 + q0 * stride.y;
    const uint q1 = q0 / params.n1;
    const uint at1 = at0 + (q0 - q1 * params.n1) * stride.y;
    if (params.rank == 3) return at1 + q1 * stride.z;
    const uint q2 = q1 / params.n2;
    return at1 + (q1 - q2 * params.n2) * stride.z + q2 * stride.w;
}
