// Which elements of a matrix each lane has: y [2, elements, LANES] is row · SIDE + column, of an accumulator and of a left operand.
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, set = 0, binding = 0) buffer Output { uint y[]; };

const int ELEMENTS = SIDE * SIDE / LANES;
shared float numbers[SIDE * SIDE];
shared float16_t halves[SIDE * SIDE];

void main() {
    int lane = int(gl_LocalInvocationIndex);
    // Whole numbers below 2048, which f16 has.
    for (int i = lane; i < SIDE * SIDE; i += LANES) {
        numbers[i] = float(i);
        halves[i] = float16_t(i);
    }
    barrier();
    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sum;
    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> left;
    coopMatLoad(sum, numbers, 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(left, halves, 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
        y[e * LANES + lane] = uint(sum[e]);
        y[(ELEMENTS + e) * LANES + lane] = uint(left[e]);
    }
}
