// Causal attention of many new tokens, after rope.wgsl: as attention_few.wgsl, but a workgroup goes through all shares that its TILE_X rows see.
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<C>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn head_quad(start: u32, quad: u32, rotates: bool, position: u32) -> vec4<f32> {
    var v = vec4<f32>();
    for (var j = 0u; j < 4u; j += 1u) {
        if 4u * quad + j < params.head_dim { v[j] = qkv[start + 4u * quad + j]; }
    }
    return v;
}

fn key_quad(rows: Rows, position: u32, d: u32) -> vec4<C> {
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    return keys[(row * rows.quads + d) * params.capacity + position];
}

fn value_quad(rows: Rows, position: u32, d: u32) -> vec4<C> {
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    return values[(row * params.capacity + position) * rows.quads + d];
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_many(group: Group, ids: Ids) {
    let rows = rows_of(group.id.x, group.id.y, group.id.z);
    load_queries(rows, ids);
    var so_far = array<Merged, QUADS>();
    for (var q = 0u; q < QUADS; q += 1u) { so_far[q] = Merged(LOWEST, 0.0, vec4<f32>()); }
    for (var share = 0u; share * SPAN < rows.visible; share += 1u) {
        // Before the share before is done with its cells and weights, none may be overwritten.
        workgroupBarrier();
        clear_cells(ids);
        let found = attend(rows, share, ids);
        for (var q = 0u; q < QUADS; q += 1u) { so_far[q] = merged(so_far[q], found.largest, found.total, found.sum[q]); }
    }
    let row = rows.first + row_of(ids);
    if row >= rows.count { return; }
    let output = head_of(rows, row, params.heads) * params.head_dim;
    for (var q = 0u; q < QUADS; q += 1u) { put(output, ids.local / 8u + q * (THREADS / 8u), quotient(so_far[q])); }
}
