// A row for a workgroup, whose threads share it: for shared/row. shared/row_of_thread has the same.
const SHARERS: u32 = THREADS;
fn place(ids: Ids) -> u32 { return ids.local; }
fn row_of(group: Group, ids: Ids) -> u32 { return flat_group(group); }
