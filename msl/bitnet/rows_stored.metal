// For norm_bitlinear.metal and norm_bitlinear_block_float.metal: a row of the matrix makes an output, which is added to y if `add` is not 0.
static inline uint matrix_row(constant Params& params, uint i) { return i; }

static inline void emit(constant Params& params, device float* y, uint token, uint i, bool writes, float product) {
    if (!writes) return;
    const uint at = token * params.rows + i;
    y[at] = params.add != 0 ? y[at] + product : product;
}
