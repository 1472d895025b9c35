// The interface of reduce.wgsl through workgroup memory: a team is 32 neighbouring threads (all of them in a smaller group).
struct Group {
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
}

struct Ids {
    @builtin(local_invocation_index) local: u32,
}

const LANES: u32 = min(32u, THREADS);
// Teams share pieces of work: in a turn, which starts at team_first and goes on by team_count, a team takes piece turn + team_offset. All teams take
// the same number of turns, since they wait for each other.
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

// Trees over `width` neighbouring threads, a power of two; the result is in the first, and the callers read it from there.
fn tree_sum_i32(v: i32, width: u32, i: u32) -> i32 {
    scratch[i] = bitcast<u32>(v);
    workgroupBarrier();
    for (var stride = width / 2u; stride > 0u; stride /= 2u) {
        if i % width < stride { scratch[i] = bitcast<u32>(bitcast<i32>(scratch[i]) + bitcast<i32>(scratch[i + stride])); }
        workgroupBarrier();
    }
    let total = bitcast<i32>(scratch[i - i % width]);
    workgroupBarrier();
    return total;
}

fn tree_sum_f32(v: f32, width: u32, i: u32) -> f32 {
    scratch[i] = bitcast<u32>(v);
    workgroupBarrier();
    for (var stride = width / 2u; stride > 0u; stride /= 2u) {
        if i % width < stride { scratch[i] = bitcast<u32>(bitcast<f32>(scratch[i]) + bitcast<f32>(scratch[i + stride])); }
        workgroupBarrier();
    }
    let total = bitcast<f32>(scratch[i - i % width]);
    workgroupBarrier();
    return total;
}

fn team_sum_i32(v: i32, ids: Ids) -> i32 { return tree_sum_i32(v, LANES, ids.local); }
fn team_sum_f32(v: f32, ids: Ids) -> f32 { return tree_sum_f32(v, LANES, ids.local); }
fn group_sum2_i32(v: vec2<i32>, ids: Ids) -> vec2<i32> {
    return vec2<i32>(tree_sum_i32(v.x, THREADS, ids.local), tree_sum_i32(v.y, THREADS, ids.local));
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
