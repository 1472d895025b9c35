// A row for a thread alone: for software adapters, at whose barriers the registers of all threads are saved. In place of shared/row_of_group, and of
// shared/cells, since a thread has all of its row.
const SHARERS: u32 = 1u;
fn place(ids: Ids) -> u32 { return 0u; }
fn row_of(group: Group, ids: Ids) -> u32 { return flat_thread(group, ids); }

fn clear_cells(ids: Ids) {}
fn cell_max(cell: u32, v: u32, ids: Ids) -> u32 { return v; }
fn cell_sum2(cell: u32, v: vec2<u32>, ids: Ids) -> vec2<u32> { return v; }
fn is_one(ids: Ids) -> bool { return true; }
fn from_one(cell: u32, v: f32, ids: Ids) -> f32 { return v; }
