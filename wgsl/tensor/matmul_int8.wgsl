// y[b, i, j] = Σ a[b, i, l]·b[b, j, l] over l, of bytes with signs in words. Rows have k bytes one after another, so they may begin within a word.
// A workgroup makes a tile of TILE_Y × TILE_X: it stages DEPTH words of its rows at a time, and a thread makes 4 × 4 of it, in columns that lie 16
// apart. a_batch and b_batch are bytes from a matrix to the next.
struct Params { m: u32, n: u32, k: u32, a_batch: u32, b_batch: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;

// A row of staged words is one longer, so that writing across rows meets no bank twice.
const A_PITCH: u32 = TILE_Y + 1u;
const B_PITCH: u32 = TILE_X + 1u;
var<workgroup> staged_a: array<u32, DEPTH * (TILE_Y + 1u)>;
var<workgroup> staged_b: array<u32, DEPTH * (TILE_X + 1u)>;

// `count` bytes from byte `skip` of `low` on, the rest of them in `high`; then zeros.
fn join(low: u32, high: u32, skip: u32, count: u32) -> u32 {
    var bytes = low >> (8u * skip);
    if skip != 0u { bytes |= high << (32u - 8u * skip); }
    return extractBits(bytes, 0u, 8u * count);
}

// Word `word` of a row that begins at byte `row`. Nothing is read beyond the row's last word.
fn word_of_a(row: u32, word: u32) -> u32 {
    let first = row + 4u * word;
    let count = min(params.k - 4u * word, 4u);
    var high = 0u;
    if first % 4u + count > 4u { high = a[first / 4u + 1u]; }
    return join(a[first / 4u], high, first % 4u, count);
}
fn word_of_b(row: u32, word: u32) -> u32 {
    let first = row + 4u * word;
    let count = min(params.k - 4u * word, 4u);
    var high = 0u;
    if first % 4u + count > 4u { high = b[first / 4u + 1u]; }
    return join(b[first / 4u], high, first % 4u, count);
}

// A function of its own: naga's Metal would declare the bytes of an operand again for each product of a block.
fn product(left: u32, right: u32) -> i32 { return dot4I8Packed(left, right); }
fn products(left: u32, right: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(product(left, right.x), product(left, right.y), product(left, right.z), product(left, right.w));
}

fn write(batch: u32, row: u32, column0: u32, sums: vec4<i32>) {
    if row >= params.m { return; }
    for (var c = 0u; c < 4u; c += 1u) {
        let column = column0 + 16u * c;
        if column < params.n { y[(batch * params.m + row) * params.n + column] = sums[c]; }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul_int8(group: Group, ids: Ids) {
    let first_row = group.id.y * TILE_Y;
    let first_column = group.id.x * TILE_X;
    let batch = group.id.z;
    let across = ids.local % 16u;
    let down = ids.local / 16u;
    let words = (params.k + 3u) / 4u;
    // A variable for each row, since compilers may put an array into memory instead of registers.
    var sums0 = vec4<i32>();
    var sums1 = vec4<i32>();
    var sums2 = vec4<i32>();
    var sums3 = vec4<i32>();
    for (var first = 0u; first < words; first += DEPTH) {
        // Neighboring threads read what lies side by side.
        for (var i = ids.local; i < TILE_Y * DEPTH; i += THREADS) {
            let row = first_row + i / DEPTH;
            let word = first + i % DEPTH;
            var v = 0u;
            if row < params.m && word < words { v = word_of_a(batch * params.a_batch + row * params.k, word); }
            staged_a[i % DEPTH * A_PITCH + i / DEPTH] = v;
        }
        for (var i = ids.local; i < TILE_X * DEPTH; i += THREADS) {
            let row = first_column + i / DEPTH;
            let word = first + i % DEPTH;
            var v = 0u;
            if row < params.n && word < words { v = word_of_b(batch * params.b_batch + row * params.k, word); }
            staged_b[i % DEPTH * B_PITCH + i / DEPTH] = v;
        }
        workgroupBarrier();
        for (var l = 0u; l < DEPTH; l += 1u) {
            let of_a = l * A_PITCH + 4u * down;
            let of_b = l * B_PITCH + across;
            let beside = vec4<u32>(staged_b[of_b], staged_b[of_b + 16u], staged_b[of_b + 32u], staged_b[of_b + 48u]);
            sums0 += products(staged_a[of_a], beside);
            sums1 += products(staged_a[of_a + 1u], beside);
            sums2 += products(staged_a[of_a + 2u], beside);
            sums3 += products(staged_a[of_a + 3u], beside);
        }
        workgroupBarrier();
    }
    let row = first_row + 4u * down;
    write(batch, row, first_column + across, sums0);
    write(batch, row + 1u, first_column + across, sums1);
    write(batch, row + 2u, first_column + across, sums2);
    write(batch, row + 3u, first_column + across, sums3);
}
