// Sixteen codes times sixteen int8 activations, by packed integer dot products. Exact for k < 2^17.
alias Acc = i32;
const PLANES: u32 = 1u;

// A lane loads two words at a time, as one load of 8 bytes.
alias Words = vec2<u32>;
const WORDS: u32 = 2u;
fn word(w: Words, c: u32) -> u32 { return w[c]; }

const FIELDS: u32 = 0x03030303u;

fn dot_word(word: u32, x: array<vec4<u32>, PLANES>, acc: i32) -> i32 {
    return acc + dot4I8Packed(word & FIELDS, x[0].x) + dot4I8Packed((word >> 2u) & FIELDS, x[0].y)
        + dot4I8Packed((word >> 4u) & FIELDS, x[0].z) + dot4I8Packed((word >> 6u) & FIELDS, x[0].w);
}

fn team_sum(acc: i32, ids: Ids) -> i32 { return team_sum_i32(acc, ids); }
fn exchange(acc: i32, mask: u32, ids: Ids) -> i32 { return bitcast<i32>(team_exchange(bitcast<u32>(acc), mask, ids)); }

// Codes are value + 1, so the sum of the activations is subtracted.
fn finish(sum: i32, x_sum: vec2<i32>) -> f32 { return f32(sum - x_sum.x); }
