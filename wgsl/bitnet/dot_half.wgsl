// Sixteen codes times sixteen activations in the half layout. A field masked in place is already a number: the half with bits code << 2f is
// the subnormal code·4^f·2^-24, and its activation comes times 4^-f. One `and` feeds two multiply-adds. Exact for k <= 65536: all sums are
// multiples of 2^-24 below 2^24 of them.
alias Acc = f32;
const PLANES: u32 = 2u;

// One word a lane and turn: k = 2560 is five turns of 32 words, but 1.25 turns of 32 quads.
alias Words = u32;
const WORDS: u32 = 1u;
fn word(w: Words, c: u32) -> u32 { return w; }

fn dot_pair(field: u32, x: u32, acc: f32) -> f32 {
    let w = unpack2x16float(field);
    let a = unpack2x16float(x);
    return fma(w.y, a.y, fma(w.x, a.x, acc));
}

fn dot_plane(word: u32, plane: u32, x: vec4<u32>, acc: f32) -> f32 {
    let fields = word >> (8u * plane);
    var s = dot_pair(fields & 0x00030003u, x.x, acc);
    s = dot_pair(fields & 0x000c000cu, x.y, s);
    s = dot_pair(fields & 0x00300030u, x.z, s);
    return dot_pair(fields & 0x00c000c0u, x.w, s);
}

fn team_sum(acc: f32, ids: Ids) -> f32 { return team_sum_f32(acc, ids); }
fn exchange(acc: f32, mask: u32, ids: Ids) -> f32 { return bitcast<f32>(team_exchange(bitcast<u32>(acc), mask, ids)); }

fn finish(sum: f32, x_sum: vec2<i32>) -> f32 { return sum * 16777216.0 - f32(x_sum.x); }
