// As dot_f16.wgsl, for devices that flush subnormal f16: 0x6400 | field is the half 1024 + code·4^f. What the 1024 add, the second of the
// activations' sums, is subtracted at the end. The sum of a word is exact as a float, everything after it is integer: exact for k <= 32768.
alias Acc = i32;
const PLANES: u32 = 2u;

// A lane loads one word at a time: k = 2560 is five turns of 32 words, but 1.25 turns of 32 times four words.
alias Words = u32;
const WORDS: u32 = 1u;
fn word(w: Words, c: u32) -> u32 { return w; }

const BIAS: u32 = 0x64006400u;

fn dot_pair(field: u32, x: u32, acc: f32) -> f32 {
    let w = unpack2x16float(field | BIAS);
    let a = unpack2x16float(x);
    return fma(w.y, a.y, fma(w.x, a.x, acc));
}

fn dot_word(word: u32, x: array<vec4<u32>, PLANES>, acc: i32) -> i32 {
    let high = word >> 8u;
    var s = dot_pair(word & 0x00030003u, x[0].x, 0.0);
    s = dot_pair(word & 0x000c000cu, x[0].y, s);
    s = dot_pair(word & 0x00300030u, x[0].z, s);
    s = dot_pair(word & 0x00c000c0u, x[0].w, s);
    s = dot_pair(high & 0x00030003u, x[1].x, s);
    s = dot_pair(high & 0x000c000cu, x[1].y, s);
    s = dot_pair(high & 0x00300030u, x[1].z, s);
    return acc + i32(dot_pair(high & 0x00c000c0u, x[1].w, s));
}

fn team_sum(acc: i32, ids: Ids) -> i32 { return team_sum_i32(acc, ids); }
fn exchange(acc: i32, mask: u32, ids: Ids) -> i32 { return bitcast<i32>(team_exchange(bitcast<u32>(acc), mask, ids)); }

// Codes are value + 1, so the sum of the activations is subtracted, and the bias's share.
fn finish(sum: i32, x_sum: vec2<i32>) -> f32 { return f32(sum - x_sum.x - x_sum.y); }
