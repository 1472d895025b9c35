// Sums and maxima over a team (here a subgroup: the lanes that share a row of work) and over the whole workgroup, by subgroup operations.
// reduce_portable.wgsl has the same functions without them. All threads of the workgroup must call the group_ functions together, and the team_ sums
// and exchanges in the same turns; all get the result.

// A struct of its own: Tint, the compiler of Chromium, takes all members of a struct for non-uniform where one is.
struct Group {
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
}

struct Ids {
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) lanes: u32,
}

// Teams share pieces of work in turns: for turn = team_first, then team_count more each time, as long as turn is a piece, a team takes the piece
// turn + team_offset, if there is one. Here teams need not wait for each other, so each starts with its own first piece.
fn team_first(ids: Ids) -> u32 { return ids.subgroup; }
fn team_offset(ids: Ids) -> u32 { return 0u; }
fn team_count(ids: Ids) -> u32 { return ids.subgroups; }
fn team_lane(ids: Ids) -> u32 { return ids.lane; }
fn team_lanes(ids: Ids) -> u32 { return ids.lanes; }

// The `v` of the lane whose number differs in the bit `mask`.
fn team_exchange(v: u32, mask: u32, ids: Ids) -> u32 {
    // Within four neighboring lanes there are cheaper instructions.
    if mask == 1u { return quadSwapX(v); }
    if mask == 2u { return quadSwapY(v); }
    return subgroupShuffleXor(v, mask);
}

fn team_sum_i32(v: i32, ids: Ids) -> i32 { return subgroupAdd(v); }
fn team_sum_f32(v: f32, ids: Ids) -> f32 { return subgroupAdd(v); }

// One number per subgroup, which has at least four lanes.
var<workgroup> scratch: array<u32, (THREADS + 3u) / 4u>;

fn group_max_u32(v: u32, ids: Ids) -> u32 {
    let part = subgroupMax(v);
    if ids.lane == 0u { scratch[ids.subgroup] = part; }
    workgroupBarrier();
    var total = 0u;
    for (var i = ids.lane; i < ids.subgroups; i += ids.lanes) { total = max(total, scratch[i]); }
    workgroupBarrier();
    return subgroupMax(total);
}

// The same, but every lane reads every part. NVIDIA's compiler (580.159) makes the second subgroupMax above 0xffffffff in top_k; where subgroups are
// small, this takes longer.
fn group_max_by_reads_u32(v: u32, ids: Ids) -> u32 {
    let part = subgroupMax(v);
    if ids.lane == 0u { scratch[ids.subgroup] = part; }
    workgroupBarrier();
    var total = 0u;
    for (var i = 0u; i < ids.subgroups; i += 1u) { total = max(total, scratch[i]); }
    workgroupBarrier();
    return total;
}

var<workgroup> scratch2: array<vec2<u32>, (THREADS + 3u) / 4u>;

// Two sums with one pair of barriers. They are modulo 2^32, so they serve for signed numbers too.
fn group_sum2_u32(v: vec2<u32>, ids: Ids) -> vec2<u32> {
    let part = vec2<u32>(subgroupAdd(v.x), subgroupAdd(v.y));
    if ids.lane == 0u { scratch2[ids.subgroup] = part; }
    workgroupBarrier();
    var total = vec2<u32>();
    for (var i = ids.lane; i < ids.subgroups; i += ids.lanes) { total += scratch2[i]; }
    workgroupBarrier();
    return vec2<u32>(subgroupAdd(total.x), subgroupAdd(total.y));
}

fn group_sum_f32(v: f32, ids: Ids) -> f32 {
    let part = subgroupAdd(v);
    if ids.lane == 0u { scratch[ids.subgroup] = bitcast<u32>(part); }
    workgroupBarrier();
    var total = 0.0;
    for (var i = ids.lane; i < ids.subgroups; i += ids.lanes) { total += bitcast<f32>(scratch[i]); }
    workgroupBarrier();
    return subgroupAdd(total);
}
