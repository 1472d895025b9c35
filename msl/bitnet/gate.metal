// The gate of a feed-forward block; the activation function is the `forward` of a part before.
static inline float combine(float gate, float up) { return forward(gate) * up; }
