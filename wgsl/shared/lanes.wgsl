// Combines what `lanes` threads have, `step` threads apart, in a binary tree: the upper half of the lanes to the lower, until one is left. The order
// is the same on every device. `lanes` is a power of two. All threads must call this together; all get the result.
// A kernel that includes this defines `Acc` and `combine(a: Acc, b: Acc) -> Acc`, which must not mind which comes first.
var<workgroup> tree: array<Acc, THREADS>;

fn over_lanes(v: Acc, lanes: u32, step: u32, local: u32) -> Acc {
    let lane = local / step % lanes;
    tree[local] = v;
    workgroupBarrier();
    for (var stride = lanes / 2u; stride > 0u; stride /= 2u) {
        if lane < stride { tree[local] = combine(tree[local], tree[local + stride * step]); }
        workgroupBarrier();
    }
    let all = tree[local - lane * step];
    workgroupBarrier();
    return all;
}
