// The place of a workgroup, or of a thread, in a one-dimensional grid that the host may have folded into two.
fn flat_group(group: vec3<u32>, groups: vec3<u32>) -> u32 { return group.x + group.y * groups.x; }
