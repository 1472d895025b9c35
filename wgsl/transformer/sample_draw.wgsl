// Who wins the race (shared/race) among the logits of each chunk that are kept: best [rows, chunks, 2] is the complement of the time, and the id. Kept
// are those above the key in which a search ended, the first of those of that key, and of both what weighs enough. The
// random word of an id is one of the four of the Philox counter (id / 4, position), whose key is the seed of the row's sequence. Where the largest logit is
// taken, all that are as large take the same time.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> largest: array<u32>;
@group(0) @binding(2) var<storage, read> path: array<u32>;
@group(0) @binding(3) var<storage, read> ties: array<u32>;
@group(0) @binding(4) var<storage, read> draws: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> best: array<u32>;

// Which of a thread's logits have the last key, a bit each.
var<workgroup> marks: array<u32, THREADS>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sample_draw(group: Group, ids: Ids) {
    let row = group.id.y;
    let first = first_column(group, ids);
    let top = largest_key(row, ids);
    var last = 0u;
    var kept = 0u;
    var before = 0u;
    if params.passes > 0u {
        let end = 3u * (row * (params.passes + 1u) + params.passes);
        last = path[end];
        kept = path[end + 1u];
        for (var i = ids.local; i < group.id.x; i += THREADS) { before += ties[row * params.chunks + i]; }
    }
    before = group_sum2_u32(vec2<u32>(before, 0u), ids).x;
    var mark = 0u;
    for (var u = 0u; u < TURNS; u += 1u) { mark |= u32(key_at(row, first + u) == last) << u; }
    marks[ids.local] = mark;
    workgroupBarrier();
    if mark != 0u {
        for (var i = 0u; i < ids.local; i += 1u) { before += countOneBits(marks[i]); }
    }
    let draw = draw_of(row);
    let position = runs[row / params.each].y + params.skipped + row % params.each;
    let random = philox(vec4<u32>(first / TURNS, position, 0u, 0u), draw.seed);
    var time = 0u;
    var winner = 0u;
    for (var u = 0u; u < TURNS; u += 1u) {
        let key = key_at(row, first + u);
        let far = octaves_below(top, key, draw.scale);
        let rank = before + countOneBits(mark & ((1u << u) - 1u));
        if key > last || (key == last && rank < kept) {
            // The longer it takes, the smaller.
            let complement = select(~(far + noise(random[u])), u32(key == top), is_greedy(draw));
            if weight(far) >= draw.least && complement > time {
                time = complement;
                winner = first + u;
            }
        }
    }
    let shortest = group_max_by_reads_u32(time, ids);
    let lowest = ~group_max_by_reads_u32(select(0u, ~winner, time == shortest), ids);
    if ids.local == 0u {
        let to = 2u * (row * params.chunks + group.id.x);
        best[to] = shortest;
        best[to + 1u] = lowest;
    }
}
