// Which workgroup and which of its threads this is, for kernels without reductions.

// In a struct of its own, since compilers for browsers take a whole struct for non-uniform where one member is.
struct Group {
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
}

struct Ids {
    @builtin(local_invocation_index) local: u32,
}
