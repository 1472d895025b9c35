// y[t, c] = silu(Σ_j weights[c, j] · x[t - taps + 1 + j, c]) of the first `channels` columns of x [tokens, stride]. Tokens are runs of `run`: runs says
// of each which of the `sequences` it continues, and how many tokens that has so far. state [sequences, taps - 1, channels] has the last tokens before
// these, and then the last of these; without tokens before, it is taken for zeros. One thread per piece of a run and channel. A thread that `keeps` has
// all of the run, or no token of it, so that nobody else reads its part of the state while it is written.
struct Params { count: u32, run: u32, sequences: u32, channels: u32, stride: u32, taps: u32, pieces: u32, piece: u32, keeps: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Where a channel's tokens before a run are, whether there are some, and where its own are.
struct Channel { before: u32, past: bool, own: u32 }

// Token `at` of a channel, counted from the first in the state.
fn seen(channel: Channel, at: u32) -> f32 {
    let before = params.taps - 1u;
    if at >= before { return x[channel.own + (at - before) * params.stride]; }
    if channel.past { return state[channel.before + at * params.channels]; }
    return 0.0;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn short_conv(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.count { return; }
    let c = index % params.channels;
    let piece = index / params.channels % params.pieces * params.piece;
    let place = index / params.channels / params.pieces;
    let run = runs[place];
    let sequence = min(run.x, params.sequences - 1u);
    let first = place * params.run;
    let channel = Channel(sequence * (params.taps - 1u) * params.channels + c, run.y > 0u, first * params.stride + c);
    for (var t = piece; t < min(piece + params.piece, params.run); t += 1u) {
        var sum = 0.0;
        for (var j = 0u; j < params.taps; j += 1u) { sum = fma(weights[c * params.taps + j], seen(channel, t + j), sum); }
        y[(first + t) * params.channels + c] = forward(sum);
    }
    if params.keeps == 0u { return; }
    // In their order: one that stays is read before its place is taken.
    for (var j = 0u; j + 1u < params.taps; j += 1u) { state[channel.before + j * params.channels] = seen(channel, params.run + j); }
}
