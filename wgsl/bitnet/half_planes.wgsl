// The half layout: a row is two planes of as many words as the weights have codes in pairs. For the f-th group of four codes in a word,
// plane 0 holds codes 0 and 2 as halves, plane 1 codes 1 and 3, all times 4^-f (exact: codes have 8 bits). There the masked weight
// fields, code·4^f, find their factors.
fn place(token: u32, plane: u32, group: u32) -> u32 { return (token * 2u + plane) * params.words * 4u + group; }

// exp2 may be a bit off.
fn power_of_four(f: i32) -> f32 { return bitcast<f32>(u32(127 + 2 * f) << 23u); }
