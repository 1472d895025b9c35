// Does widening a half to a float keep subnormals? y[0] = Σ_f (low_f + 2·high_f)·4^f·2^-24 over the four pairs of codes of word[0] that are masked in
// place; smaller where subnormals are flushed. One thread.
@group(0) @binding(0) var<storage, read> word: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn f16_subnormals() {
    var sum = 0.0;
    for (var f = 0u; f < 4u; f += 1u) {
        let h = unpack2x16float(word[0] & (0x00030003u << (2u * f)));
        sum = fma(h.x, 1.0, fma(h.y, 2.0, sum));
    }
    y[0] = sum;
}
