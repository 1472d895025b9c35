// The softmax of a row over the shares so far, one after another; see wgsl/transformer/attention_merge.wgsl.
struct Merged { float largest, total; float4 sum; };

static inline Merged merged(Merged so_far, float largest, float total, float4 sum) {
    const float top = max(so_far.largest, largest);
    const float shrink = exp_negative(so_far.largest - top);
    const float grow = exp_negative(largest - top);
    return Merged{top, fma(total, grow, so_far.total * shrink), fma(sum, float4(grow), so_far.sum * shrink)};
}

// In a row that sees nothing, sum and total are 0.
static inline float4 quotient(Merged row) { return row.sum * (1.0f / max(row.total, 1e-30f)); }

// Writes elements 4·quad .. of a head, or adds them.
static inline void put(device float* head, uint head_dim, uint quad, float4 v, bool adds) {
    for (uint j = 0; j < 4; ++j) {
        const uint d = 4u * quad + j;
        if (d < head_dim) head[d] = adds ? head[d] + v[j] : v[j];
    }
}
