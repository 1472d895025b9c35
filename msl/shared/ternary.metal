// The bit at which element e of a word of sixteen codes lies; codes are value + 1.
static inline uint code_bit(uint e) { return 8u * (e % 4u) + 2u * (e / 4u); }
#define ZEROS 0x55555555u
