// For matrix_of_expert.metal: activations of eight bits, code / x_scale. Without groups (`scaled_last`), sums of codes are exact, and are scaled last.
#define EXPERTS_ARGUMENT , device const uint* chosen [[buffer(5)]], device const float* x_scale [[buffer(6)]]
#define BLOCK_SCALE(scale) (params.scaled_last != 0 ? float4(1.0f) : float4(scale))
#define SCALED(total, token, row) (params.scaled_last != 0 ? (total) * w_scale[FIRST_ROW(token) + (row)] : (total))
#define STORED(total, token, row) NAN_UNLESS(chosen[token] < params.experts, exact_quotient(SCALED(total, token, row), x_scale[INPUT_ROW(token)]))
