// Sixteen codes times sixteen activations in the f16 layout. A field of the word, masked in place, is already a number: the half with the bits
// code << 2f is the subnormal code·4^f·2^-24, and its activation comes times 4^-f. So one `and` feeds two multiply-adds. Exact for k <= 65536: all
// sums are multiples of 2^-24, fewer than 2^24 of them.
alias Acc = f32;
const PLANES: u32 = 2u;

// A lane loads one word at a time: k = 2560 is five turns of 32 words, but 1.25 turns of 32 times four words.
alias Words = u32;
const WORDS: u32 = 1u;
fn word(w: Words, c: u32) -> u32 { return w; }

fn dot_pair(field: u32, x: u32, acc: f32) -> f32 {
    let w = unpack2x16float(field);
    let a = unpack2x16float(x);
    return fma(w.y, a.y, fma(w.x, a.x, acc));
}

fn dot_word(word: u32, x: array<vec4<u32>, PLANES>, acc: f32) -> f32 {
    let high = word >> 8u;
    var s = dot_pair(word & 0x00030003u, x[0].x, acc);
    s = dot_pair(word & 0x000c000cu, x[0].y, s);
    s = dot_pair(word & 0x00300030u, x[0].z, s);
    s = dot_pair(word & 0x00c000c0u, x[0].w, s);
    s = dot_pair(high & 0x00030003u, x[1].x, s);
    s = dot_pair(high & 0x000c000cu, x[1].y, s);
    s = dot_pair(high & 0x00300030u, x[1].z, s);
    return dot_pair(high & 0x00c000c0u, x[1].w, s);
}

fn team_sum(acc: f32, ids: Ids) -> f32 { return team_sum_f32(acc, ids); }
fn exchange(acc: f32, mask: u32, ids: Ids) -> f32 { return bitcast<f32>(team_exchange(bitcast<u32>(acc), mask, ids)); }

// Codes are value + 1, so the sum of the activations is subtracted.
fn finish(sum: f32, x_sum: vec2<i32>) -> f32 { return sum * 16777216.0 - f32(x_sum.x); }
