// A product is stored as it is.
struct Params { uint rows, tokens, words, add; };
#define BIAS_ARGUMENT
#define FINISHED(product, row) (product)
