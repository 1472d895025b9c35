// For norm_bitlinear_block_float.wgsl and norm_bitlinear_block_float_large.wgsl: what they bind, and what a thread loads. They define `params`, and a part before them `group_of`, the group of a block.
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gain: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn magnitude(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// Beyond the row, numbers are 0.
fn source_quad(token: u32, quad: u32) -> vec4<f32> {
    let quads = params.features / 4u;
    return select(vec4<f32>(), source[token * quads + min(quad, quads - 1u)], quad < quads);
}

// What it is multiplied with, where there is a norm.
fn gain_quad(quad: u32) -> vec4<f32> { return gain[min(quad, params.features / 4u - 1u)]; }

// What the neighboring lane has, whose quad of words is the other half of a block.
fn neighbours(bits: vec4<u32>, ids: Ids) -> vec4<u32> {
    return vec4<u32>(
        team_exchange(bits.x, 1u, ids), team_exchange(bits.y, 1u, ids), team_exchange(bits.z, 1u, ids), team_exchange(bits.w, 1u, ids));
}

// A lane's weights of a turn: a quad of words of four rows, and the scales of its block in the two of these rows whose sums it scales.
struct Turn { rows: Rows, scale: vec2<f32> }

// Of four rows from number `first` on, and of columns from block `block` on. Rows that do not exist are read as the last one, and not written.
fn load_turn(first: u32, block: u32, lane: u32) -> Turn {
    let last = params.rows - 1u;
    let rows = vec4<u32>(
        matrix_row(min(first, last)), matrix_row(min(first + 1u, last)), matrix_row(min(first + 2u, last)), matrix_row(min(first + 3u, last)));
    let scaled = select(rows.xy, rows.zw, (lane & 1u) != 0u) * params.groups;
    let of_group = group_of(min(block + lane / 2u, params.blocks - 1u));
    return Turn(
        load_rows(rows * (params.words / 4u), 2u * block + lane), vec2<f32>(w_scale[scaled.x + of_group], w_scale[scaled.y + of_group]));
}
