// The logits of a chunk, by their keys (shared/order). A workgroup has one chunk of TILE_X = THREADS · TURNS logits of a row, a thread TURNS neighbors of
// them. The kernel that includes this has `logits` [rows, count].

// The first of a thread's logits.
fn first_column(group: Group, ids: Ids) -> u32 { return group.id.x * TILE_X + ids.local * TURNS; }

// The key of a logit, 0 beyond the row's end.
fn key_at(row: u32, column: u32) -> u32 {
    if column >= params.count { return 0u; }
    return to_key(logits[row * params.count + column]);
}

// How far the logit of a key lies below that of the largest, in octaves of weight.
fn octaves_below(largest: u32, key: u32, scale: f32) -> u32 { return distance_below(from_key(largest), from_key(key), scale); }
