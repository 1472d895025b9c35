// The activation function that `activation` names; 0 is none. More in wgsl/tensor/activated.wgsl.
static inline float activated(float v, uint activation) {
    switch (activation) {
        case 1: return max(v, 0.0f);
        case 2: return max(v, 0.0f) * max(v, 0.0f);
        case 3: return v * sigmoid(v);
        case 4: return v * normal_below(v);
        default: return v;
    }
}
