// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, on the tensor cores: f16 are multiplied, and added up in floats
// in the hardware's order. tensor/matmul_dense says how the sides lie in memory; their lines are whole quads. A workgroup makes a tile of (64·BLOCKS)². It
// stages DEPTH of l at a time, lines as they lie in memory: tensor cores read rows or columns. A subgroup makes 2·BLOCKS × 2 matrices of SIDE × SIDE outputs.
// The next lines are loaded while these are multiplied.
alias X = f16;
@group(0) @binding(0) var<storage, read> a: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f16>>;

// Quads of a line along k and of one along the outputs, and how far such lines are apart: two quads more, so that eight of them meet no bank twice.
const K_QUADS: u32 = DEPTH / 4u;
const QUADS: u32 = TILE_X / 4u;
const K_PITCH: u32 = K_QUADS + 2u;
const PITCH: u32 = QUADS + 2u;
// Lines along k take more.
const RIGHT: u32 = TILE_X * K_PITCH;
var<workgroup> staged: array<vec4<f16>, 2u * TILE_X * K_PITCH>;
// A matrix of outputs of each subgroup.
var<workgroup> outputs: array<f32, THREADS / LANES * SIDE * SIDE>;

// What a thread stages of a side: four quads at one place of their lines, which are `step` apart.
struct Place { line: u32, quad: u32, step: u32 }
struct Quads { x: vec4<f16>, y: vec4<f16>, z: vec4<f16>, w: vec4<f16> }

// Neighboring threads read what lies side by side.
fn place(along_k: bool, local: u32) -> Place {
    let quads = select(QUADS, K_QUADS, along_k);
    return Place(local / quads, local % quads, THREADS / quads);
}

// Elements at .. at + 4 of a line, 0 where there is none.
fn left_quad(batch: u32, line: u32, at: u32) -> vec4<f16> {
    let size = left_size();
    if line >= size.x || at >= size.y { return vec4<f16>(); }
    return a[((left_start(batch) + line) * size.y + at) / 4u];
}
fn right_quad(batch: u32, line: u32, at: u32) -> vec4<f16> {
    let size = right_size();
    if line >= size.x || at >= size.y { return vec4<f16>(); }
    return b[((right_start(batch) + line) * size.y + at) / 4u];
}

fn load_left(batch: u32, row: u32, first: u32, p: Place) -> Quads {
    let line = p.line + select(first, row, left_along_k());
    let at = 4u * p.quad + select(row, first, left_along_k());
    return Quads(
        left_quad(batch, line, at), left_quad(batch, line + p.step, at),
        left_quad(batch, line + 2u * p.step, at), left_quad(batch, line + 3u * p.step, at),
    );
}
fn load_right(batch: u32, column: u32, first: u32, p: Place) -> Quads {
    let line = p.line + select(first, column, right_along_k());
    let at = 4u * p.quad + select(column, first, right_along_k());
    return Quads(
        right_quad(batch, line, at), right_quad(batch, line + p.step, at),
        right_quad(batch, line + 2u * p.step, at), right_quad(batch, line + 3u * p.step, at),
    );
}

fn stage(start: u32, along_k: bool, quads: Quads, p: Place) {
    let pitch = select(PITCH, K_PITCH, along_k);
    let at = start + p.line * pitch + p.quad;
    staged[at] = quads.x;
    staged[at + p.step * pitch] = quads.y;
    staged[at + 2u * p.step * pitch] = quads.z;
    staged[at + 3u * p.step * pitch] = quads.w;
}

// The matrices from a row, or a column, of the tile and from `l` of what is staged on.
fn left_matrix(row: u32, l: u32) -> Left {
    if left_along_k() {
        let at = row * K_PITCH + l / 4u;
        return coopLoadT<Left>(&staged[at], K_PITCH);
    }
    let at = l * PITCH + row / 4u;
    return coopLoad<Left>(&staged[at], PITCH);
}
fn right_matrix(column: u32, l: u32) -> Right {
    if right_along_k() {
        let at = RIGHT + column * K_PITCH + l / 4u;
        return coopLoad<Right>(&staged[at], K_PITCH);
    }
    let at = RIGHT + l * PITCH + column / 4u;
    return coopLoadT<Right>(&staged[at], PITCH);
}

// Stores a matrix by way of workgroup memory, since lanes do not know which of its elements they hold.
fn store_matrix(batch: u32, row: u32, column: u32, sum: Sum, lane: Lane) {
    let start = lane.subgroup * SIDE * SIDE;
    let pitch = SIDE;
    coopStoreT(sum, &outputs[start], pitch);
    workgroupBarrier();
    for (var i = lane.id; i < SIDE * SIDE; i += LANES) { store(batch, row + i / SIDE, column + i % SIDE, outputs[start + i]); }
    workgroupBarrier();
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul_tensor_cores(group: Group, ids: Ids, lane: Lane) {
    let row = group.id.y * TILE_Y;
    let column = group.id.x * TILE_X;
    let batch = group.id.z;
    let of_left = place(left_along_k(), ids.local);
    let of_right = place(right_along_k(), ids.local);
    // The first output of a subgroup in the tile.
    let across = TILE_X / (2u * SIDE);
    let down = lane.subgroup / across * 2u * BLOCKS * SIDE;
    let right = lane.subgroup % across * 2u * SIDE;
    var sum00: Sum;
    var sum01: Sum;
    var sum10: Sum;
    var sum11: Sum;
    var sum20: Sum;
    var sum21: Sum;
    var sum30: Sum;
    var sum31: Sum;
    var next_left = load_left(batch, row, 0u, of_left);
    var next_right = load_right(batch, column, 0u, of_right);
    for (var first = 0u; first < params.k; first += DEPTH) {
        stage(0u, left_along_k(), next_left, of_left);
        stage(RIGHT, right_along_k(), next_right, of_right);
        workgroupBarrier();
        next_left = load_left(batch, row, first + DEPTH, of_left);
        next_right = load_right(batch, column, first + DEPTH, of_right);
        for (var l = 0u; l < DEPTH; l += SIDE) {
            let b0 = right_matrix(right, l);
            let b1 = right_matrix(right + SIDE, l);
            let a0 = left_matrix(down, l);
            sum00 = coopMultiplyAdd(a0, b0, sum00);
            sum01 = coopMultiplyAdd(a0, b1, sum01);
            let a1 = left_matrix(down + SIDE, l);
            sum10 = coopMultiplyAdd(a1, b0, sum10);
            sum11 = coopMultiplyAdd(a1, b1, sum11);
            if BLOCKS > 1u {
                let a2 = left_matrix(down + 2u * SIDE, l);
                sum20 = coopMultiplyAdd(a2, b0, sum20);
                sum21 = coopMultiplyAdd(a2, b1, sum21);
                let a3 = left_matrix(down + 3u * SIDE, l);
                sum30 = coopMultiplyAdd(a3, b0, sum30);
                sum31 = coopMultiplyAdd(a3, b1, sum31);
            }
        }
        workgroupBarrier();
    }
    let y0 = row + down;
    let x0 = column + right;
    let x1 = x0 + SIDE;
    store_matrix(batch, y0, x0, sum00, lane);
    store_matrix(batch, y0, x1, sum01, lane);
    store_matrix(batch, y0 + SIDE, x0, sum10, lane);
    store_matrix(batch, y0 + SIDE, x1, sum11, lane);
    if BLOCKS > 1u {
        store_matrix(batch, y0 + 2u * SIDE, x0, sum20, lane);
        store_matrix(batch, y0 + 2u * SIDE, x1, sum21, lane);
        store_matrix(batch, y0 + 3u * SIDE, x0, sum30, lane);
        store_matrix(batch, y0 + 3u * SIDE, x1, sum31, lane);
    }
}
