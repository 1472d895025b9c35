// y[t, c] = silu(Σ_j weights[c, j] · x[t - taps + 1 + j, c]), with the tokens before a run in its state. One thread per piece of a run and channel. Shapes:
// wgsl/recurrent/short_conv.wgsl.
struct Params { uint count, run, sequences, channels, stride, taps, pieces, piece, keeps; };

// A channel's tokens before a run, whether there are some, and its own.
struct Channel {
    device float* before;
    bool past;
    device const float* own;
    uint taps, channels, stride;

    // Token `at`, counted from the first in the state.
    float seen(uint at) const {
        const uint first = taps - 1;
        if (at >= first) return own[(at - first) * stride];
        return past ? before[at * channels] : 0.0f;
    }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void short_conv(
    constant Params& params      [[buffer(0)]],
    device const uint2* runs     [[buffer(1)]],
    device const float* x        [[buffer(2)]],
    device const float* weights  [[buffer(3)]],
    device float* state          [[buffer(4)]],
    device float* y              [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    if (index >= params.count) return;
    const uint c = index % params.channels;
    const uint piece = index / params.channels % params.pieces * params.piece;
    const uint place = index / params.channels / params.pieces;
    const uint2 run = runs[place];
    const uint sequence = min(run.x, params.sequences - 1u);
    const uint first = place * params.run;
    device float* before = state + sequence * (params.taps - 1) * params.channels + c;
    const Channel channel = {before, run.y > 0, x + first * params.stride + c, params.taps, params.channels, params.stride};
    for (uint t = piece; t < min(piece + params.piece, params.run); ++t) {
        float sum = 0.0f;
        for (uint j = 0; j < params.taps; ++j) sum = fma(weights[c * params.taps + j], channel.seen(t + j), sum);
        y[(first + t) * params.channels + c] = forward(sum);
    }
    if (params.keeps == 0) return;
    // In their order: one that stays is read before its place is taken.
    for (uint j = 0; j + 1 < params.taps; ++j) before[j * params.channels] = channel.seen(params.run + j);
}
