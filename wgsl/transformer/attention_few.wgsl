// Causal attention of few new tokens to all cached positions: y = Σ_p e^(s_p)·values[p] / Σ_p e^(s_p) with s_p = `scale`·q·keys[p]. A workgroup takes
// TILE_X rows of one key head and one share of the positions. A single share makes y [tokens, heads, head_dim]; what becomes of
// several is for the part before to say (attention_left.wgsl, attention_joined.wgsl). Where `rotate` is not 0, it also does what rope.wgsl does, for one new token a sequence.
@group(0) @binding(0) var<storage, read> positions: array<u32>;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> keys: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> values: array<vec4<C>>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

fn head_quad(start: u32, quad: u32, rotates: bool, position: u32) -> vec4<f32> {
    let middle = params.head_dim / 2u;
    var v = vec4<f32>();
    for (var j = 0u; j < 4u; j += 1u) {
        let d = 4u * quad + j;
        if d < params.head_dim {
            v[j] = qkv[start + d];
            if rotates {
                let low = d < middle;
                let other = qkv[start + select(d - middle, d + middle, low)];
                v[j] = turned(v[j], select(other, -other, low), angles[position * middle + select(d - middle, d, low)]);
            }
        }
    }
    return v;
}

// Puts the key and the value of a sequence's one new token into the cache.
fn append(rows: Rows, ids: Ids) {
    let row_length = params.heads + 2u * params.kv_heads;
    let cache_row = rows.sequence * params.kv_heads + rows.kv_head;
    let key = (rows.token * row_length + params.heads + rows.kv_head) * params.head_dim;
    let value = key + params.kv_heads * params.head_dim;
    for (var quad = ids.local; quad < rows.quads; quad += THREADS) {
        keys[(cache_row * rows.quads + quad) * params.capacity + rows.past] = vec4<C>(head_quad(key, quad, true, rows.past));
        values[(cache_row * params.capacity + rows.past) * rows.quads + quad] = vec4<C>(head_quad(value, quad, false, rows.past));
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_few(group: Group, ids: Ids) {
    let share = group.id.y / params.kv_heads;
    let rows = rows_of(group.id.x, group.id.y % params.kv_heads, group.id.z);
    if share * SPAN >= rows.visible { return; }
    load_queries(rows, ids);
    if params.rotate != 0u && share == rows.past / SPAN && rows.past < params.capacity { append(rows, ids); }
    storageBarrier();
    workgroupBarrier();
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
