// For finish.metal: numbers as they are.
#define NUMBERS_ARGUMENTS , device const X* x [[buffer(1)]]
#define NUMBER(i) float(x[i])
