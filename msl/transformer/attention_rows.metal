// The rows of attention, and what they see: see wgsl/transformer/attention_rows.wgsl.
struct Params { uint run, sequences, heads, kv_heads, head_dim, capacity, longest, rotate, add, window; float scale; };

// Below every score. Finite, since some compilers assume that infinities do not occur.
#define LOWEST (-1e30f)

// Where the rows of a threadgroup are, and what they see.
struct Rows { uint sequence, token, kv_head, first, count, sharing, past, start, visible, quads; };

// The first position that a sequence's new token sees: with itself, `window` at most.
static inline uint start_of(uint past, uint token, uint window) { return past + token + 1u - min(past + token + 1u, window); }

// Which rows a threadgroup takes, and of which head: wgsl/transformer/attention_rows.wgsl says why.
static inline uint2 longest_first(uint3 group, uint3 groups) {
    const uint turn = group.y * groups.x + group.x;
    return uint2(groups.x - 1u - turn / groups.y, turn % groups.y);
}

static inline Rows rows_of(constant Params& params, device const uint2* runs, uint x, uint kv_head, uint z) {
    const uint sharing = params.heads / params.kv_heads;
    const uint count = params.run * sharing;
    const uint past = runs[z].y;
    const uint visible = min(past + (min((x + 1u) * TILE_X, count) - 1u) / sharing + 1u, params.longest);
    const uint start = start_of(past, x * TILE_X / sharing, params.window);
    return Rows{min(runs[z].x, params.sequences - 1u), z * params.run, kv_head, x * TILE_X, count, sharing, past, start, visible, (params.head_dim + 3u) / 4u};
}

// The row of the output, and of queries in units of a head: token · heads + head.
static inline uint head_of(Rows rows, uint row, uint heads) {
    return (rows.token + row / rows.sharing) * heads + rows.kv_head * rows.sharing + row % rows.sharing;
}
