// For matrix_of_expert.metal: activations in floats.
#define EXPERTS_ARGUMENT , device const uint* chosen [[buffer(5)]]
#define BLOCK_SCALE(scale) (scale)
#define STORED(total, token, row) NAN_UNLESS(chosen[token] < params.experts, total)
