// The functions of reduce.wgsl through workgroup memory. A team is 32 neighboring threads, or all threads of a smaller workgroup.

// A struct of its own: Tint, the compiler of Chromium, takes all members of a struct for non-uniform where one is.
struct Group {
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
}

struct Ids {
    @builtin(local_invocation_index) local: u32,
}

const LANES: u32 = min(32u, THREADS);

// Teams share pieces of work in turns: for turn = team_first, then team_count more each time, as long as turn is a piece, a team takes the piece
// turn + team_offset, if there is one. Here teams wait for each other, so all take the same turns, with a piece or without.
fn team_first(ids: Ids) -> u32 { return 0u; }
fn team_offset(ids: Ids) -> u32 { return ids.local / LANES; }
fn team_count(ids: Ids) -> u32 { return THREADS / LANES; }
fn team_lane(ids: Ids) -> u32 { return ids.local % LANES; }
fn team_lanes(ids: Ids) -> u32 { return LANES; }

var<workgroup> scratch: array<u32, THREADS>;

fn team_exchange(v: u32, mask: u32, ids: Ids) -> u32 {
    scratch[ids.local] = v;
    workgroupBarrier();
    let other = scratch[ids.local ^ mask];
    workgroupBarrier();
    return other;
}

// Sums over `width` neighboring threads, a power of two. Each step adds the upper half of the numbers to the lower.
fn tree_sum_u32(v: u32, width: u32, local: u32) -> u32 {
    scratch[local] = v;
    workgroupBarrier();
    for (var stride = width / 2u; stride > 0u; stride /= 2u) {
        if local % width < stride { scratch[local] += scratch[local + stride]; }
        workgroupBarrier();
    }
    let total = scratch[local - local % width];
    workgroupBarrier();
    return total;
}

fn tree_sum_f32(v: f32, width: u32, local: u32) -> f32 {
    scratch[local] = bitcast<u32>(v);
    workgroupBarrier();
    for (var stride = width / 2u; stride > 0u; stride /= 2u) {
        if local % width < stride { scratch[local] = bitcast<u32>(bitcast<f32>(scratch[local]) + bitcast<f32>(scratch[local + stride])); }
        workgroupBarrier();
    }
    let total = bitcast<f32>(scratch[local - local % width]);
    workgroupBarrier();
    return total;
}

fn team_sum_i32(v: i32, ids: Ids) -> i32 { return bitcast<i32>(tree_sum_u32(bitcast<u32>(v), LANES, ids.local)); }
fn team_sum_f32(v: f32, ids: Ids) -> f32 { return tree_sum_f32(v, LANES, ids.local); }
fn group_sum2_u32(v: vec2<u32>, ids: Ids) -> vec2<u32> {
    return vec2<u32>(tree_sum_u32(v.x, THREADS, ids.local), tree_sum_u32(v.y, THREADS, ids.local));
}
fn group_sum_f32(v: f32, ids: Ids) -> f32 { return tree_sum_f32(v, THREADS, ids.local); }

fn group_max_u32(v: u32, ids: Ids) -> u32 {
    scratch[ids.local] = v;
    workgroupBarrier();
    for (var stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if ids.local < stride { scratch[ids.local] = max(scratch[ids.local], scratch[ids.local + stride]); }
        workgroupBarrier();
    }
    let total = scratch[0];
    workgroupBarrier();
    return total;
}

fn group_max_by_reads_u32(v: u32, ids: Ids) -> u32 { return group_max_u32(v, ids); }
