// A row is a workgroup's, whose threads share it: for shared/row. In shared/row_of_thread a row is a thread's, by the same names.
const SHARERS: u32 = THREADS;
fn place(ids: Ids) -> u32 { return ids.local; }
fn row_of(group: Group, ids: Ids) -> u32 { return flat_group(group); }

// One thread works out what all that share the row need, and takes no time of the others. is_one: is it this thread? from_one: what that thread has, for all,
// through a cell that serves once. All must call from_one together.
fn is_one(ids: Ids) -> bool { return ids.local == 0u; }
fn from_one(cell: u32, v: f32, ids: Ids) -> f32 {
    if is_one(ids) { atomicStore(&cells[cell], bitcast<u32>(v)); }
    workgroupBarrier();
    return bitcast<f32>(atomicLoad(&cells[cell]));
}
