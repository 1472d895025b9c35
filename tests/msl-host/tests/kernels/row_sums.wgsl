// The same as row_sums.metal.
struct Params { rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read> w: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;

var<workgroup> parts: array<i32, 4>;

@compute @workgroup_size(128)
fn row_sums(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    var sum = 0i;
    for (var i = local; i < params.columns; i += 128u) { sum += x[group.x * params.columns + i] * w[i]; }
    let part = subgroupAdd(sum);
    if lane == 0u { parts[subgroup] = part; }
    workgroupBarrier();
    if local == 0u { y[group.x] = parts[0] + parts[1] + parts[2] + parts[3]; }
}
