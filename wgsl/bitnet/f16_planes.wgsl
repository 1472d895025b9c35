// The half layout of activations. A row is two planes of four words per word of weights. Of the four codes of quad q, plane 0 holds codes 0 and 2 as
// two halves of a word, plane 1 codes 1 and 3, all times 4^-f with f = q mod 4 (exact, since codes have 8 bits). They belong to the weights' fields
// that are masked in place, and so are code·4^f.
fn plane_index(token: u32, plane: u32, quad: u32) -> u32 { return (token * 2u + plane) * params.words * 4u + quad; }

// Made of bits, since exp2 may be a unit off.
fn power_of_four(f: i32) -> f32 { return bitcast<f32>(u32(127 + 2 * f) << 23u); }
