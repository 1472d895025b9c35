// As rope.wgsl, of heads whose halves are whole quads, and the same bits. A thread has a quad of each half, in two heads of a token. Neighboring
// threads are 8 quads by 4 tokens, so that 128 bytes of qkv are read together, and 32 bytes and more of keys and values written.
struct Params { tokens: u32, run: u32, sequences: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> angles: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> qkv: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> keys: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> values: array<vec4<C>>;

// Where a token goes, the first of a thread's two quads, and the angles of its numbers.
struct Place { sequence: u32, position: u32, quad: u32, cosines: vec4<f32>, sines: vec4<f32> }

// `turned` of four numbers.
fn turned_quad(v: vec4<f32>, partner: vec4<f32>, place: Place) -> vec4<f32> {
    return vec4<f32>(
        turned(v.x, partner.x, vec2<f32>(place.cosines.x, place.sines.x)),
        turned(v.y, partner.y, vec2<f32>(place.cosines.y, place.sines.y)),
        turned(v.z, partner.z, vec2<f32>(place.cosines.z, place.sines.z)),
        turned(v.w, partner.w, vec2<f32>(place.cosines.w, place.sines.w)),
    );
}

// Writes both quads of a head, which are at `at` and half a head further in qkv.
fn write_quads(place: Place, head: u32, at: u32, low: vec4<f32>, high: vec4<f32>) {
    let quads = params.head_dim / 4u;
    if head >= params.heads + params.kv_heads {
        let row = place.sequence * params.kv_heads + head - params.heads - params.kv_heads;
        let to = (row * params.capacity + place.position) * quads + place.quad;
        values[to] = vec4<C>(low);
        values[to + quads / 2u] = vec4<C>(high);
        return;
    }
    let turned_low = turned_quad(low, vec4<f32>(-high.x, -high.y, -high.z, -high.w), place);
    let turned_high = turned_quad(high, low, place);
    if head < params.heads {
        qkv[at] = turned_low;
        qkv[at + quads / 2u] = turned_high;
    } else {
        let row = place.sequence * params.kv_heads + head - params.heads;
        keys[(row * quads + place.quad) * params.capacity + place.position] = vec4<C>(turned_low);
        keys[(row * quads + place.quad + quads / 2u) * params.capacity + place.position] = vec4<C>(turned_high);
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rope_quads(group: Group, ids: Ids) {
    let token = group.id.x * TILE_X + ids.local / 8u % TILE_X;
    if token >= params.tokens { return; }
    let run = runs[token / params.run];
    let position = run.y + token % params.run;
    if position >= params.capacity { return; }
    let half_quads = params.head_dim / 8u;
    let heads = params.heads + 2u * params.kv_heads;
    let head = group.id.y * TILE_Y;
    for (var quad = ids.local % 8u + ids.local / (8u * TILE_X) * 8u; quad < half_quads; quad += THREADS / TILE_X) {
        // Pairs (cos, sin).
        let front = angles[2u * (position * half_quads + quad)];
        let back = angles[2u * (position * half_quads + quad) + 1u];
        let place = Place(
            min(run.x, params.sequences - 1u), position, quad, vec4<f32>(front.xz, back.xz), vec4<f32>(front.yw, back.yw),
        );
        // Of two heads, so that four loads are on their way together; the last may have no neighbor.
        let at = (token * heads + head) * 2u * half_quads + quad;
        let beside = (token * heads + min(head + 1u, heads - 1u)) * 2u * half_quads + quad;
        let low = qkv[at];
        let high = qkv[at + half_quads];
        let low_beside = qkv[beside];
        let high_beside = qkv[beside + half_quads];
        write_quads(place, head, at, low, high);
        if head + 1u < heads { write_quads(place, head + 1u, beside, low_beside, high_beside); }
    }
}
