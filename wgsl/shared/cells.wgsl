// A maximum or a sum over the workgroup in a cell of workgroup memory, each with one barrier. A cell serves once: clear_cells is for all of them.
var<workgroup> cells: array<atomic<u32>, 8>;

fn clear_cells(ids: Ids) {
    if ids.local < 8u { atomicStore(&cells[ids.local], 0u); }
    workgroupBarrier();
}

fn cell_max(cell: u32, v: u32, ids: Ids) -> u32 {
    let part = subgroupMax(v);
    if ids.lane == 0u { atomicMax(&cells[cell], part); }
    workgroupBarrier();
    return atomicLoad(&cells[cell]);
}

// Of this cell and the next; modulo 2^32, so for signed numbers too.
fn cell_sum2(cell: u32, v: vec2<u32>, ids: Ids) -> vec2<u32> {
    let part = vec2<u32>(subgroupAdd(v.x), subgroupAdd(v.y));
    if ids.lane == 0u {
        atomicAdd(&cells[cell], part.x);
        atomicAdd(&cells[cell + 1u], part.y);
    }
    workgroupBarrier();
    return vec2<u32>(atomicLoad(&cells[cell]), atomicLoad(&cells[cell + 1u]));
}

fn cell_sum(cell: u32, v: u32, ids: Ids) -> u32 {
    let part = subgroupAdd(v);
    if ids.lane == 0u { atomicAdd(&cells[cell], part); }
    workgroupBarrier();
    return atomicLoad(&cells[cell]);
}

// As cell_sum, for whoever calls a barrier before cell_value.
fn cell_add(cell: u32, v: u32, ids: Ids) {
    let part = subgroupAdd(v);
    if ids.lane == 0u { atomicAdd(&cells[cell], part); }
}

fn cell_value(cell: u32) -> u32 { return atomicLoad(&cells[cell]); }
