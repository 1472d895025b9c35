//! What a decoding step of BitNet b1.58 2B4T is made of, one token. `cargo bench -p bitnet-wgpu-benches --bench decoding`

use bitnet_wgpu::{
    Tensor,
    bitnet::{self, Gate},
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{floats, rng, ternary};
use timing::{LAYERS, bench, device};

/// Norm, quantiser and BitLinear in one dispatch; gate + up with their gate. So many copies of the matrix take turns that no cache holds them.
fn norm_bitlinear(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "norm_bitlinear");
    let beyond_caches = if context.capabilities().software { 64 << 20 } else { 384 << 20 };
    for (rows, columns) in LAYERS {
        let w = ternary(&mut rng(1), rows, columns);
        let copies = (beyond_caches / (4 * w.words().len())).max(1);
        let matrices: Vec<_> = (0..copies).map(|_| w.upload(context).expect("it fits")).collect();
        let x = context.upload(&floats(&mut rng(1), columns, 2.0), [1, columns]).expect("it fits");
        let gain = context.upload(&floats(&mut rng(2), columns, 2.0), [columns]).expect("it fits");
        let (y, gated) = (Tensor::<f32>::zeros(context, [1, rows]).expect("it fits"), rows > 2 * columns);
        let half = Tensor::<f32>::zeros(context, [1, rows / 2]).expect("it fits");
        for (name, norm) in [("normalised", Some((&gain, 1e-5))), ("quantised only", None)] {
            let mut encoder = context.encoder("norm_bitlinear");
            for w in &matrices {
                match gated {
                    true => bitnet::norm_bitlinear_gated_into(&mut encoder, &x, norm, w, Gate::Relu2, &half),
                    false => bitnet::norm_bitlinear_into(&mut encoder, &x, norm, w, &y),
                }
                .expect("it multiplies");
            }
            bench(&mut group, name, &format!("{rows}x{columns}"), &encoder.finish(), copies, matrices[0].code_bytes());
        }
    }
}

criterion_group!(benches, norm_bitlinear);
criterion_main!(benches);
