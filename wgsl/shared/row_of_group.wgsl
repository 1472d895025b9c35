// A row is a workgroup's, whose threads share it: for shared/row. In shared/row_of_thread a row is a thread's, by the same names.
const SHARERS: u32 = THREADS;
fn place(ids: Ids) -> u32 { return ids.local; }
fn row_of(group: Group, ids: Ids) -> u32 { return flat_group(group); }
