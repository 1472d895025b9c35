// The sum over a threadgroup, in the same order on every device; all threads call it together and get the result.
static inline float fixed_tree(float v, threadgroup float* tree, uint i) {
    tree[i] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if (i < stride) tree[i] += tree[i + stride];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float total = tree[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}
