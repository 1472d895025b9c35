// The index of a workgroup in a one-dimensional grid, which the host may have folded into two dimensions.
fn flat_group(group: Group) -> u32 { return group.id.x + group.id.y * group.count.x; }

// The index of a thread in such a grid.
fn flat_thread(group: Group, ids: Ids) -> u32 { return flat_group(group) * THREADS + ids.local; }
