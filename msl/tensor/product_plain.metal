// A product is stored as it is.
#define BIAS_ARGUMENT
#define BIAS_PARAMETER
#define BIAS_GIVEN
#define FINISHED(product, column) (product)
