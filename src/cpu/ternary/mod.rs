//! Ternary matrices times quantized activations: the bits of
//! [`bitlinear_quantized`](crate::reference::bitlinear_quantized).
//!
//! A vector of sixteen rows' words (see [`InterleavedTernary`]) holds four fields; masked, each is
//! a code a byte, and meets four activations that are the same for all rows. Codes are value + 1,
//! so the sum of the activations is taken off at the end. Several tokens share what is loaded.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512_vnni;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon_dot;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod portable;
pub(super) mod tasks;
mod tile;
mod tokens;

use super::isa::{Extension, Isa};
use crate::{
    error::Result, ops::bitnet::host_activations::HostActivations,
    weights::ternary::interleaved::InterleavedTernary,
};
use std::ops::Range;
use tasks::by_blocks;
use tokens::Tokens;

/// `x` `[tokens, columns]` times `w` `[rows, columns]` as `[tokens, rows]`, with instructions that
/// this processor has.
pub fn bitlinear(isa: Isa, x: &HostActivations, w: &InterleavedTernary) -> Result<Vec<f32>> {
    x.check_bitlinear(w.columns())?;
    let m = x.tokens;
    if m == 0 {
        return Ok(Vec::new());
    }
    let x = Tokens::of(isa, x, w);
    Ok(by_blocks(m, w, |blocks, y| multiply(isa, &x, w, blocks, y)))
}

/// Some blocks of rows times all tokens: `[tokens, 16 rows a block]`.
#[allow(unsafe_code)]
fn multiply(isa: Isa, x: &Tokens, w: &InterleavedTernary, blocks: Range<usize>, y: &mut [f32]) {
    match isa.kind() {
        // SAFETY: only what the processor has becomes an `Isa`.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx512Vnni => unsafe { avx512_vnni::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::AvxVnni => unsafe { avx_vnni::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 => unsafe { avx2::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::NeonI8mm => unsafe { neon_i8mm::multiply(x, w, blocks, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::NeonDot => unsafe { neon_dot::multiply(x, w, blocks, y) },
        Extension::Portable => portable::multiply(x, w, blocks, y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Error,
        ops::{bitnet::host_activations::MAX_FEATURES, reference},
        weights::ternary::{packed::PackedTernary, scales::Scales},
    };
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn check(rng: &mut StdRng, [m, n, k]: [usize; 3], group: Option<usize>, extreme: bool) {
        let values: Vec<i8> =
            (0..n * k).map(|_| if extreme { 1 } else { rng.random_range(-1..=1) }).collect();
        let scales = match group {
            Some(size) => Scales::Groups {
                size,
                scales: (0..n * k.div_ceil(size)).map(|_| rng.random_range(-2.0..2.0)).collect(),
            },
            None => Scales::Segments((0..n).map(|_| (1, rng.random_range(0.5..2.0))).collect()),
        };
        let w = PackedTernary::from_values(n, k, &values, scales).unwrap();
        let codes =
            (0..m * k).map(|_| if extreme { -128 } else { rng.random_range(-128..=127) }).collect();
        let scales = (0..m).map(|_| rng.random_range(1.0..100.0)).collect();
        let x = HostActivations { tokens: m, features: k, codes, scales };
        let expected: Vec<u32> =
            reference::bitlinear_quantized(&x, &w).unwrap().into_iter().map(f32::to_bits).collect();
        let w = InterleavedTernary::new(&w);
        for isa in Isa::all() {
            let found: Vec<u32> =
                bitlinear(isa, &x, &w).unwrap().into_iter().map(f32::to_bits).collect();
            assert_eq!(found, expected, "{isa:?}, {m} tokens, {n} × {k}, groups of {group:?}");
        }
    }

    #[test]
    fn every_instruction_set_equals_the_cpu_reference() {
        let mut rng = StdRng::seed_from_u64(1);
        for m in [0, 1, 2, 3, 7, 8, 9, 17, 25] {
            for [n, k] in [
                [1, 1],
                [16, 64],
                [17, 63],
                [48, 65],
                [5, 0],
                [0, 5],
                [100, 640],
                [33, 1000],
                [640, 128],
            ] {
                check(&mut rng, [m, n, k], None, false);
            }
            for ([n, k], size) in [
                ([17, 128], 128),
                ([40, 300], 32),
                ([16, 1000], 128),
                ([3, 50], 64),
                ([20, 130], 16),
                ([80, 3], 16),
            ] {
                check(&mut rng, [m, n, k], Some(size), false);
            }
        }
        for _ in 0..40 {
            let shape =
                [rng.random_range(1..20), rng.random_range(1..90), rng.random_range(1..700)];
            check(&mut rng, shape, None, false);
            let size = 16 * rng.random_range(1..20);
            check(&mut rng, shape, Some(size), false);
        }
    }

    #[test]
    fn the_largest_sums_are_exact() {
        let mut rng = StdRng::seed_from_u64(2);
        for m in [1, 2, 8] {
            check(&mut rng, [m, 17, 6912], None, true);
            check(&mut rng, [m, 1, MAX_FEATURES], None, true);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let w = InterleavedTernary::new(
            &PackedTernary::from_values(2, 3, &[0; 6], Scales::Tensor(1.0)).unwrap(),
        );
        let x = |features, len: usize| HostActivations {
            tokens: 1,
            features,
            codes: vec![0; len],
            scales: vec![1.0],
        };
        assert!(matches!(
            bitlinear(Isa::best(), &x(4, 4), &w),
            Err(Error::Shape { what: "x", .. })
        ));
        assert!(matches!(
            bitlinear(Isa::best(), &x(3, 4), &w),
            Err(Error::Length { found: 4, .. })
        ));
    }
}
