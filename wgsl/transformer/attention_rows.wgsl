// The rows of attention: a key head serves heads / kv_heads query heads; these times the new tokens of a sequence are its rows. Positions are taken in
// shares of SPAN neighbors, whatever the context, the batch, and what else a workgroup does. qkv and the caches are as in rope.wgsl.
struct Params {
    run: u32, sequences: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32, longest: u32, rotate: u32, add: u32, window: u32,
    scale: f32,
}
var<immediate> params: Params;

// Below every score. Finite, since some compilers assume that infinities do not occur.
const LOWEST: f32 = -1e30;

// Where the rows of a workgroup are, and what they see.
struct Rows {
    sequence: u32,
    // Of the new tokens in qkv, the sequence's first.
    token: u32,
    kv_head: u32,
    first: u32,
    count: u32,
    sharing: u32,
    // Tokens that the sequence has had before.
    past: u32,
    // The first position that the first row sees, and where those of the last row end.
    start: u32,
    visible: u32,
    quads: u32,
}

// The first position that a sequence's new token sees: with itself, `window` at most.
fn start_of(past: u32, token: u32) -> u32 { return past + token + 1u - min(past + token + 1u, params.window); }

// Which rows a workgroup takes, and of which head. The last rows of a sequence see most: those of all heads begin first.
fn longest_first(group: Group) -> vec2<u32> {
    let turn = group.id.y * group.count.x + group.id.x;
    return vec2<u32>(group.count.x - 1u - turn / group.count.y, turn % group.count.y);
}

fn rows_of(x: u32, kv_head: u32, z: u32) -> Rows {
    let sharing = params.heads / params.kv_heads;
    let count = params.run * sharing;
    let past = runs[z].y;
    let visible = min(past + (min((x + 1u) * TILE_X, count) - 1u) / sharing + 1u, params.longest);
    let start = start_of(past, x * TILE_X / sharing);
    let quads = (params.head_dim + 3u) / 4u;
    return Rows(min(runs[z].x, params.sequences - 1u), z * params.run, kv_head, x * TILE_X, count, sharing, past, start, visible, quads);
}

// The row of the output, and of queries in units of a head: token · heads + head.
fn head_of(rows: Rows, row: u32, heads: u32) -> u32 {
    return (rows.token + row / rows.sharing) * heads + rows.kv_head * rows.sharing + row % rows.sharing;
}
