//! What a turn of the hot loop does, as the kernels' sources say; a kernel that is not here has no such figure in the table.

/// How many of what.
pub fn of_turn(kernel: &str, language: &str) -> Option<(u32, &'static str)> {
    Some(match (kernel, language) {
        // 8 rows, a word of 16.
        ("bitlinear_gemv_half" | "bitlinear_gemv_biased", _) => (128, "weights"),
        // TURNS × ROWS pairs of words.
        ("bitlinear_gemv_int8", _) => (4 * 2 * 32, "weights"),
        ("bitlinear_gemv_int8_tall", _) => (4 * 4 * 32, "weights"),
        ("bitlinear_grouped", _) => (16, "weights"),
        // 4 × 4 outputs, four words of 16 each.
        ("bitlinear_gemm_int8", _) => (16 * 4 * 16, "products"),
        ("bitlinear_gemm_half", "WGSL") => (128, "products"),
        ("quantize_activations_int8" | "quantize_activations_half", _) => (4, "elements"),
        ("rms_norm_quantize_int8" | "rms_norm_quantize_half", _) => (4, "elements"),
        ("gate_quantize_int8" | "gate_quantize_half", _) => (4, "elements"),
        // 4 rows × 4 tokens, sixteen bytes; for one token, three quarters are skipped.
        ("dense_gemv_f32", _) => (4 * 4 * 4, "products"),
        ("dense_gemv_f16" | "dense_gemv_bf16", _) => (4 * 4 * 8, "products"),
        ("dense_gemv_int8", _) => (4 * 4 * 16, "products"),
        // Scores of 8 rows by a position; elsewhere, the loop that loads queries, a few times, has the dearest turn.
        ("attention_many", "MSL") => (8 * 4, "products"),
        ("attention_combine", _) => (1, "share"),
        ("top_k", _) => (1, "winner"),
        // In Metal the loop over a word's elements is unrolled; what is left is the one over partial sums.
        ("quantize_weights" | "dequantize_weights", "WGSL") => (1, "element"),
        ("read_bandwidth", _) => (64, "bytes"),
        _ => return None,
    })
}
