// For finish.metal: products with quantized activations, divided by their row's scale.
#define NUMBERS_ARGUMENTS , device const float* x [[buffer(1)]], device const float* x_scale [[buffer(4)]]
#define NUMBER(i) exact_quotient(x[i], x_scale[i / params.columns])
