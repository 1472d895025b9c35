// A product is stored after a bias, which is not read where `biased` is 0, and an activation function: in place of bitnet/product_plain.
struct Params { uint rows, tokens, words, add, biased, activation; };
#define BIAS_ARGUMENT , device const Y* bias [[buffer(7)]]
#define FINISHED(product, row) activated(params.biased != 0 ? (product) + float(bias[row]) : (product), params.activation)
