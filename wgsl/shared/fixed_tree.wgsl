// The sum over a workgroup, in the same order on every device; all threads call it together and get the result.
var<workgroup> tree: array<f32, THREADS>;

fn fixed_tree(v: f32, i: u32) -> f32 {
    tree[i] = v;
    workgroupBarrier();
    for (var stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if i < stride { tree[i] += tree[i + stride]; }
        workgroupBarrier();
    }
    let total = tree[0];
    workgroupBarrier();
    return total;
}
