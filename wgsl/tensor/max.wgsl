// The largest of (x & mask) ^ flip, taken back: max, min (flip is the sign) or absmax (mask leaves the sign out). NaN is above all.
alias Acc = f32;
fn identity() -> f32 { return from_key(0u); }
fn load(v: f32) -> f32 { return bitcast<f32>((bitcast<u32>(v) & params.mask) ^ params.flip); }
fn combine(a: f32, b: f32) -> f32 { return select(b, a, to_key(a) >= to_key(b)); }
fn finish(v: f32) -> f32 { return bitcast<f32>(bitcast<u32>(v) ^ params.flip); }
