// Which thread of which subgroup this is, for kernels on tensor cores, which subgroups work with.
struct Lane {
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) id: u32,
}
