// The functions of cells.wgsl without subgroup operations.
var<workgroup> cells: array<atomic<u32>, 8>;

fn clear_cells(ids: Ids) {
    if ids.local < 8u { atomicStore(&cells[ids.local], 0u); }
    workgroupBarrier();
}

fn cell_max(cell: u32, v: u32, ids: Ids) -> u32 {
    atomicMax(&cells[cell], v);
    workgroupBarrier();
    return atomicLoad(&cells[cell]);
}

fn cell_sum2(cell: u32, v: vec2<u32>, ids: Ids) -> vec2<u32> {
    atomicAdd(&cells[cell], v.x);
    atomicAdd(&cells[cell + 1u], v.y);
    workgroupBarrier();
    return vec2<u32>(atomicLoad(&cells[cell]), atomicLoad(&cells[cell + 1u]));
}

fn cell_sum(cell: u32, v: u32, ids: Ids) -> u32 {
    atomicAdd(&cells[cell], v);
    workgroupBarrier();
    return atomicLoad(&cells[cell]);
}

fn cell_add(cell: u32, v: u32, ids: Ids) { atomicAdd(&cells[cell], v); }

fn cell_value(cell: u32) -> u32 { return atomicLoad(&cells[cell]); }
