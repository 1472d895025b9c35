// The lowest bit of code e in a word of sixteen codes. A code is value + 1 in two bits.
static inline uint code_bit(uint e) { return 8u * (e % 4u) + 2u * (e / 4u); }
// Sixteen times the value 0.
#define ZEROS 0x55555555u
