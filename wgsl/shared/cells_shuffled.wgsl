// The functions of cells.wgsl by shuffles. NVIDIA's compiler adds code for missing lanes to subgroupMax and subgroupAdd of integers. Subgroups of 32
// lanes exchange in five steps, and their first lane enters the result. In subgroups of other sizes, all lanes enter theirs.
var<workgroup> cells: array<atomic<u32>, 8>;

fn clear_cells(ids: Ids) {
    if ids.local < 8u { atomicStore(&cells[ids.local], 0u); }
    workgroupBarrier();
}

// Whether a lane enters what lanes_max or lanes_add gave it.
fn enters(ids: Ids) -> bool { return ids.lanes != 32u || ids.lane == 0u; }

fn lanes_max(v: u32, ids: Ids) -> u32 {
    var most = v;
    if ids.lanes == 32u {
        most = max(most, subgroupShuffleXor(most, 16u));
        most = max(most, subgroupShuffleXor(most, 8u));
        most = max(most, subgroupShuffleXor(most, 4u));
        most = max(most, subgroupShuffleXor(most, 2u));
        most = max(most, subgroupShuffleXor(most, 1u));
    }
    return most;
}

fn lanes_add(v: u32, ids: Ids) -> u32 {
    var sum = v;
    if ids.lanes == 32u {
        sum += subgroupShuffleXor(sum, 16u);
        sum += subgroupShuffleXor(sum, 8u);
        sum += subgroupShuffleXor(sum, 4u);
        sum += subgroupShuffleXor(sum, 2u);
        sum += subgroupShuffleXor(sum, 1u);
    }
    return sum;
}

fn cell_max(cell: u32, v: u32, ids: Ids) -> u32 {
    let part = lanes_max(v, ids);
    if enters(ids) { atomicMax(&cells[cell], part); }
    workgroupBarrier();
    return atomicLoad(&cells[cell]);
}

fn cell_sum2(cell: u32, v: vec2<u32>, ids: Ids) -> vec2<u32> {
    let part = vec2<u32>(lanes_add(v.x, ids), lanes_add(v.y, ids));
    if enters(ids) {
        atomicAdd(&cells[cell], part.x);
        atomicAdd(&cells[cell + 1u], part.y);
    }
    workgroupBarrier();
    return vec2<u32>(atomicLoad(&cells[cell]), atomicLoad(&cells[cell + 1u]));
}

fn cell_add(cell: u32, v: u32, ids: Ids) {
    let part = lanes_add(v, ids);
    if enters(ids) { atomicAdd(&cells[cell], part); }
}

fn cell_value(cell: u32) -> u32 { return atomicLoad(&cells[cell]); }
