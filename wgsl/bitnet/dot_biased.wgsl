// As dot_half.wgsl, for devices that flush subnormal halves: 0x6400 | field is the half 1024 + code·4^f. The bias is subtracted once, with the
// activations' weighted sum. A word's sum is an exact float, the rest is integer: exact for k <= 32768.
alias Acc = i32;
const PLANES: u32 = 2u;

// One word a lane and turn: k = 2560 is five turns of 32 words, but 1.25 turns of 32 quads.
alias Words = u32;
const WORDS: u32 = 1u;
fn word(w: Words, c: u32) -> u32 { return w; }
const BIAS: u32 = 0x64006400u;

fn dot_pair(field: u32, x: u32, acc: f32) -> f32 {
    let w = unpack2x16float(field | BIAS);
    let a = unpack2x16float(x);
    return fma(w.y, a.y, fma(w.x, a.x, acc));
}

fn dot_plane(word: u32, plane: u32, x: vec4<u32>, acc: i32) -> i32 {
    let fields = word >> (8u * plane);
    var s = dot_pair(fields & 0x00030003u, x.x, 0.0);
    s = dot_pair(fields & 0x000c000cu, x.y, s);
    s = dot_pair(fields & 0x00300030u, x.z, s);
    return acc + i32(dot_pair(fields & 0x00c000c0u, x.w, s));
}

fn team_sum(acc: i32, ids: Ids) -> i32 { return team_sum_i32(acc, ids); }
fn exchange(acc: i32, mask: u32, ids: Ids) -> i32 { return bitcast<i32>(team_exchange(bitcast<u32>(acc), mask, ids)); }

fn finish(sum: i32, x_sum: vec2<i32>) -> f32 { return f32(sum - x_sum.x - x_sum.y); }
