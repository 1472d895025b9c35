// Maps floats to unsigned integers in the same order, every NaN to NONE, the largest. 0 stands for no number; back from a key, it is -infinity.
#define NONE 0xffffffffu

static inline uint to_key(float v) {
    const uint bits = as_type<uint>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return NONE;
    return bits >= 0x80000000u ? ~bits : bits | 0x80000000u;
}
// Is it the key of a number that is not infinite?
static inline bool is_finite_key(uint key) { return key > 0x007fffffu && key < 0xff800000u; }
static inline float from_key(uint key) {
    const uint v = max(key == NONE ? 0xffc00000u : key, 0x007fffffu);
    return as_type<float>(v >= 0x80000000u ? v & 0x7fffffffu : ~v);
}
