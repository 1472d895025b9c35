// For norm_bitlinear.metal and norm_bitlinear_block_float.metal: the matrix is gates, then as many ups. They are taken in turn,
// so that two neighboring lanes have both of an output, act(gate)·up.
static inline uint matrix_row(constant Params& params, uint i) { return (i & 1u) * (params.rows / 2u) + i / 2u; }

static inline void emit(constant Params& params, device float* y, uint token, uint i, bool writes, float product) {
    const float up = quad_shuffle_xor(product, ushort(1));
    if (writes && (i & 1u) == 0u) y[token * (params.rows / 2u) + i / 2u] = combine(product, up);
}
