// Rows by the expert that they use: `sorted` has the numbers of the `uses` rows, those of an expert side by side, and tiles of up to `tile` of them: the first
// vector has the number of tiles, those after it an expert, where its rows begin in `sorted`, and how many they are. Rows of no expert come last, as those of
// expert number `experts`. An expert's rows are in order. One workgroup, whose threads have three experts each.
struct Params { uses: u32, experts: u32, tile: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> chosen: array<u32>;
@group(0) @binding(1) var<storage, read_write> sorted: array<u32>;
@group(0) @binding(2) var<storage, read_write> tiles: array<vec4<u32>>;

// Of each expert its rows, and then where the next of them goes.
var<workgroup> places: array<atomic<u32>, 3u * THREADS>;
// Experts of as many rows as there are threads.
var<workgroup> experts: array<u32, THREADS>;
// Of each thread's experts and all before, rows and tiles.
var<workgroup> sums: array<vec2<u32>, THREADS>;

const NO_ROW: u32 = 0xffffffffu;
fn expert_of(row: u32) -> u32 { return min(chosen[row], params.experts); }
fn tiles_of(rows: u32) -> u32 { return (rows + params.tile - 1u) / params.tile; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sort_experts(group: Group, ids: Ids) {
    let first = 3u * ids.local;
    for (var i = 0u; i < 3u; i += 1u) { atomicStore(&places[first + i], 0u); }
    workgroupBarrier();
    for (var row = ids.local; row < params.uses; row += THREADS) { atomicAdd(&places[expert_of(row)], 1u); }
    workgroupBarrier();
    var own = vec2<u32>();
    for (var i = 0u; i < 3u; i += 1u) {
        let rows = atomicLoad(&places[first + i]);
        own += vec2<u32>(rows, tiles_of(rows));
    }
    sums[ids.local] = own;
    workgroupBarrier();
    for (var step = 1u; step < THREADS; step *= 2u) {
        let before = sums[ids.local - min(step, ids.local)];
        workgroupBarrier();
        if ids.local >= step { sums[ids.local] += before; }
        workgroupBarrier();
    }
    var at = sums[ids.local] - own;
    for (var i = 0u; i < 3u; i += 1u) {
        let rows = atomicLoad(&places[first + i]);
        for (var done = 0u; done < rows; done += params.tile) {
            at.y += 1u;
            tiles[at.y] = vec4<u32>(first + i, at.x + done, min(params.tile, rows - done), 0u);
        }
        atomicStore(&places[first + i], at.x);
        at.x += rows;
    }
    if ids.local == THREADS - 1u { tiles[0] = vec4<u32>(at.y, 0u, 0u, 0u); }
    workgroupBarrier();
    for (var before = 0u; before < params.uses; before += THREADS) {
        let row = before + ids.local;
        let exists = row < params.uses;
        var expert = NO_ROW;
        if exists { expert = expert_of(row); }
        experts[ids.local] = expert;
        workgroupBarrier();
        // Of the same expert: rows before this one, and all.
        var rank = 0u;
        var count = 0u;
        for (var i = 0u; i < THREADS; i += 1u) {
            if experts[i] == expert {
                count += 1u;
                rank += u32(i < ids.local);
            }
        }
        var place = 0u;
        if exists {
            place = atomicLoad(&places[expert]);
            sorted[place + rank] = row;
        }
        workgroupBarrier();
        if exists && rank == 0u { atomicStore(&places[expert], place + count); }
        workgroupBarrier();
    }
}
