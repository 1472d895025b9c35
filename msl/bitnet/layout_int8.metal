// Writes and reads the four codes of a quad in the int8 layout: codes in order, four to a word.
static inline void store(device uint* x, uint words, uint token, uint quad, int4 codes) {
    x[token * words * 4u + quad] = as_type<uint>(char4(codes));
}

static inline int4 load(device const uint* x, uint words, uint token, uint quad) {
    return int4(as_type<char4>(x[token * words * 4u + quad]));
}
