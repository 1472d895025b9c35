// Which workgroup and which of its threads this is, for kernels without reductions.

// A struct of its own: Tint, the compiler of Chromium, takes all members of a struct for non-uniform where one is.
struct Group {
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
}

struct Ids {
    @builtin(local_invocation_index) local: u32,
}
