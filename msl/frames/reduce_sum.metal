// A reduction that adds floats.
static inline float identity() { return 0.0f; }
static inline float combine(float a, float b) { return a + b; }
