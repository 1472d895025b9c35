// Four weights a thread, which lie as far apart as a workgroup has threads. All are read before one is written, so that their loads wait together. A kernel that
// includes this defines `params.length`, `gradient` and `weights`.
struct Four { all: vec4<u32>, at: vec4<u32>, gradient: vec4<f32>, weight: vec4<f32> }

// `all` may be beyond the last weight; `at` is never.
fn four(group: Group, ids: Ids) -> Four {
    let all = flat_group(group) * TILE_X + ids.local + THREADS * vec4<u32>(0u, 1u, 2u, 3u);
    let at = min(all, vec4<u32>(params.length - 1u));
    let g = vec4<f32>(f32(gradient[at.x]), f32(gradient[at.y]), f32(gradient[at.z]), f32(gradient[at.w]));
    return Four(all, at, g, vec4<f32>(weights[at.x], weights[at.y], weights[at.z], weights[at.w]));
}
