// v turned by an angle (cos, sin), where `partner` is the other number of its pair, with its sign; see wgsl/transformer/turned.wgsl.
static inline float turned(float v, float partner, float2 angle) { return fma(v, angle.x, partner * angle.y); }
