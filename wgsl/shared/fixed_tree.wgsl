// The sum of v over a workgroup, added in the same order on every device. `local` is the thread's index in the workgroup. All threads must call
// this together; all get the sum.
var<workgroup> tree: array<f32, THREADS>;

fn fixed_tree(v: f32, local: u32) -> f32 {
    tree[local] = v;
    workgroupBarrier();
    for (var stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if local < stride { tree[local] += tree[local + stride]; }
        workgroupBarrier();
    }
    let total = tree[0];
    workgroupBarrier();
    return total;
}
