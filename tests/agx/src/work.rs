//! The work of one iteration of each kernel's hot loop, from its source. For a kernel that is missing here, the table has no such figure.

/// A count and its unit.
pub fn of_turn(kernel: &str, language: &str) -> Option<(u32, &'static str)> {
    Some(match (kernel, language) {
        // 8 rows × one word of 16 weights.
        ("bitlinear_gemv_half" | "bitlinear_gemv_biased", _) => (128, "weights"),
        // TURNS × ROWS pairs of words, 32 weights each.
        ("bitlinear_gemv_int8", _) => (4 * 2 * 32, "weights"),
        ("bitlinear_gemv_int8_tall", _) => (4 * 4 * 32, "weights"),
        ("bitlinear_grouped", _) => (16, "weights"),
        // 4 × 4 outputs × four words of 16.
        ("bitlinear_gemm_int8", _) => (16 * 4 * 16, "products"),
        ("bitlinear_gemm_half", "WGSL") => (128, "products"),
        ("quantize_activations_int8" | "quantize_activations_half", _) => (4, "elements"),
        ("rms_norm_quantize_int8" | "rms_norm_quantize_half", _) => (4, "elements"),
        ("gate_quantize_int8" | "gate_quantize_half", _) => (4, "elements"),
        // 4 rows × 4 tokens × the elements in 16 bytes. With one token, three quarters are skipped.
        ("dense_gemv_f32", _) => (4 * 4 * 4, "products"),
        ("dense_gemv_f16" | "dense_gemv_bf16", _) => (4 * 4 * 8, "products"),
        ("dense_gemv_int8", _) => (4 * 4 * 16, "products"),
        // Scores of 8 rows × 4 elements of a key. In WGSL the hot loop is another one, which loads queries and runs only a few times.
        ("attention_many", "MSL") => (8 * 4, "products"),
        ("attention_combine", _) => (1, "share"),
        ("top_k", _) => (1, "winner"),
        // In Metal the loop over a word's elements is unrolled, and only the loop over partial sums is left.
        ("quantize_weights" | "dequantize_weights", "WGSL") => (1, "element"),
        ("read_bandwidth", _) => (64, "bytes"),
        _ => return None,
    })
}
