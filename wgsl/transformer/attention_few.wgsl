// Causal attention of few new tokens to all cached positions: y = Σ_p e^(s_p)·values[p] / Σ_p e^(s_p) with s_p = `scale`·q·keys[p]. A workgroup takes
// TILE_X rows of one key head and one share of the positions. A single share makes y [tokens, heads, head_dim]; what becomes of
// several is for the part before to say (attention_left.wgsl, attention_joined.wgsl). Where `rotate` is not 0, it also does what rope.wgsl does, for one new token a sequence.
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> keys: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> values: array<vec4<C>>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Loads what may not be needed, so that all loads are on their way at once.
fn plain(start: u32, d: u32) -> f32 { return select(0.0, qkv[start + min(d, params.head_dim - 1u)], d < params.head_dim); }

fn rotated(start: u32, d: u32, position: u32) -> f32 {
    let middle = params.head_dim / 2u;
    let at = min(d, params.head_dim - 1u);
    let low = at < middle;
    let other = qkv[start + select(at - middle, at + middle, low)];
    let v = turned(qkv[start + at], select(other, -other, low), angles[position * middle + select(at - middle, at, low)]);
    return select(0.0, v, d < params.head_dim);
}

fn head_quad(start: u32, quad: u32, rotates: bool, position: u32) -> vec4<f32> {
    let d = 4u * quad;
    if rotates {
        return vec4<f32>(
            rotated(start, d, position), rotated(start, d + 1u, position), rotated(start, d + 2u, position), rotated(start, d + 3u, position),
        );
    }
    return vec4<f32>(plain(start, d), plain(start, d + 1u), plain(start, d + 2u), plain(start, d + 3u));
}

fn key_index(rows: Rows, position: u32, d: u32) -> u32 {
    return ((rows.sequence * params.kv_heads + rows.kv_head) * rows.quads + d) * params.capacity + position;
}

fn value_index(rows: Rows, position: u32, d: u32) -> u32 {
    return ((rows.sequence * params.kv_heads + rows.kv_head) * params.capacity + position) * rows.quads + d;
}

fn key_quad(rows: Rows, position: u32, d: u32) -> vec4<C> { return keys[key_index(rows, position, d)]; }

fn value_quad(rows: Rows, position: u32, d: u32) -> vec4<C> { return values[value_index(rows, position, d)]; }

// Puts the key and the value of a sequence's one new token into the cache, from which this workgroup then reads them.
fn append(rows: Rows, ids: Ids) {
    let row_length = params.heads + 2u * params.kv_heads;
    let key = (rows.token * row_length + params.heads + rows.kv_head) * params.head_dim;
    let value = key + params.kv_heads * params.head_dim;
    // By the last threads, since the first have queries to load.
    for (var quad = THREADS - 1u - ids.local; quad < rows.quads; quad += THREADS) {
        keys[key_index(rows, rows.past, quad)] = vec4<C>(head_quad(key, quad, true, rows.past));
        values[value_index(rows, rows.past, quad)] = vec4<C>(head_quad(value, quad, false, rows.past));
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_few(group: Group, ids: Ids) {
    let share = group.id.y / params.kv_heads;
    let rows = rows_of(group.id.x, group.id.y % params.kv_heads, group.id.z);
    if share * SPAN >= rows.visible || share < rows.start / SPAN { return; }
    load_queries(rows, ids);
    if params.rotate != 0u && share == rows.past / SPAN && rows.past < params.capacity {
        append(rows, ids);
        storageBarrier();
    }
    // Its barrier is for all that is in workgroup memory.
    clear_cells(ids);
    let found = attend(rows, share, ids);
    let row = rows.first + row_of(ids);
    // Where a tile has four rows, eight threads know each twice.
    let known = row < rows.count && ids.local % 8u < TILE_X;
    let output = head_of(rows, min(row, rows.count - 1u), params.heads);
    if !is_single(rows, group) {
        leave(rows, share, output, known, found, group, ids);
    } else if known {
        for (var q = 0u; q < QUADS; q += 1u) {
            let whole = merged(Merged(LOWEST, 0.0, vec4<f32>()), found.largest, found.total, found.sum[q]);
            put(output * params.head_dim, ids.local / 8u + q * (THREADS / 8u), quotient(whole));
        }
    }
}
