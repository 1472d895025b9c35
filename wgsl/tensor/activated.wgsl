// The activation function that `activation` names (src/ops/tensor/epilogue.rs); 0 is none.
fn activated(v: f32) -> f32 {
    switch params.activation {
        case 1u: { return max(v, 0.0); }
        case 2u: { return max(v, 0.0) * max(v, 0.0); }
        case 3u: { return v * sigmoid(v); }
        case 4u: { return v * normal_below(v); }
        default: { return v; }
    }
}
