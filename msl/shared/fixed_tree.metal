// The sum of v over a threadgroup, added in the same order on every device. `local` is the thread's index in the threadgroup. All threads must
// call this together; all get the sum.
static inline float fixed_tree(float v, threadgroup float* tree, uint local) {
    tree[local] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if (local < stride) tree[local] += tree[local + stride];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float total = tree[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}
