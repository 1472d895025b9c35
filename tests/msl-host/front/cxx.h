// Metal's words in C++14 with clang's address spaces, which is strict in references, `this` and copies of classes.
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define kernel
typedef _Float16 half;
constexpr half operator""h(long double x) { return (half)x; }
constexpr half operator""h(unsigned long long x) { return (half)x; }
#define GLOBAL_BOOLS(name, count) GLOBAL_VECTOR(bool, name, count)
