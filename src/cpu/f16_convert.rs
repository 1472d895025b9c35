//! Numbers of 16 bits as numbers of 32.

use half::f16;

/// The bits of a half as a float, in a form that compilers turn into vectors: its exponent is moved
/// by a product, which is right for subnormals too.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    const TO_112: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(bits & 0x7fff);
    let finite = f32::from_bits(magnitude << 13) * TO_112;
    // Infinities and NaN have the largest exponent in either type.
    let special = f32::from_bits(0x7f80_0000 | magnitude << 13);
    let value = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// `from` as `f32`. Both are equally long.
#[allow(unsafe_code)]
pub fn widen(from: &[f16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has both.
        return unsafe { widen_f16c(from, to) };
    }
    widen_portable(from, to);
}

fn widen_portable(from: &[f16], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = f16_to_f32(from.to_bits()));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn widen_f16c(from: &[f16], to: &mut [f32]) {
    use std::arch::x86_64::*;
    let ((eights, rest), (to, rest_to)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (to, from) in to.iter_mut().zip(eights) {
        *to = bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(*from)));
    }
    widen_portable(rest, rest_to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_is_widened_exactly() {
        let all: Vec<_> = (0..=u16::MAX).map(f16::from_bits).collect();
        for widen in [widen, widen_portable] {
            for from in [&all[..], &all[3..]] {
                let mut found = vec![0f32; from.len()];
                widen(from, &mut found);
                for (from, found) in from.iter().zip(found) {
                    let expected = from.to_f32();
                    assert!(
                        found.to_bits() == expected.to_bits()
                            || found.is_nan() && expected.is_nan(),
                        "{from:?}: {found}"
                    );
                }
            }
        }
    }
}
