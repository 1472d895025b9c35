// Sides of products: matrices of floats, whose lines `ALIGNED` says are whole quads.

// A side of floats: its lines, the elements of a line, its first line, and whether lines run along k.
struct Floats { device const X* from; uint lines, length, start; bool along_k; };

// Elements at .. at + 4 of a line are 0 where there is none.
static inline X4 load4(Floats side, uint line, uint at) {
    if (line >= side.lines || at >= side.length) return X4(X(0.0f));
    const uint first = (side.start + line) * side.length + at;
    if (ALIGNED != 0) return *(device const X4*)(side.from + first);
    X4 v = X4(X(0.0f));
    for (uint i = 0; i < 4; ++i) {
        if (at + i < side.length) v[i] = side.from[first + i];
    }
    return v;
}
