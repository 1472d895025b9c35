// The activation function that `activation` names; 0 is none. More in wgsl/tensor/activated.wgsl. Metal's max is undefined for a NaN; a comparison gives 0.
static inline float positive_part(float v) { return v > 0.0f ? v : 0.0f; }

static inline float activated(float v, uint activation) {
    switch (activation) {
        case 1: return positive_part(v);
        case 2: return positive_part(v) * positive_part(v);
        case 3: return v * sigmoid(v);
        case 4: return v * normal_below(v);
        default: return v;
    }
}
