static inline float combine(float a, float b) { return a * b; }
