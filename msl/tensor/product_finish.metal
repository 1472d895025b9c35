// A product is stored after a bias, which is not read where `biased` is 0, and an activation function: in place of tensor/product_plain. Parts before bring
// `activated`, and the bias as the last argument of a kernel (BIAS_ARGUMENT) and of a function (BIAS_PARAMETER).
#define BIAS_GIVEN , bias
#define FINISHED(product, column) activated(params.biased != 0 ? (product) + float(bias[column]) : (product), params.activation)
