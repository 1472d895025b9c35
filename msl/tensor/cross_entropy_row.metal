// What a loss needs of a row: what softmax does, and Σ x; the fourth is nothing. After shared/softmax.
static inline float4 combine(float4 a, float4 b) {
    const float2 joined = combine(float2(a.x, a.y), float2(b.x, b.y));
    return float4(joined.x, joined.y, a.z + b.z, 0.0f);
}
