//! Results as numbers, and the one function that compares them.

use bitnet_wgpu::{
    cpu::{HostActivations, HostCodes},
    tensor::f16,
    transformer::HostKvCache,
    weights::{PackedInt, PackedTernary},
};

/// How far a result may be from what is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Not at all. Any NaN equals any other.
    Exact,
    /// By this share of the largest finite number that is expected.
    Within(f64),
}

/// A number that is exact in `f64`.
pub trait Number: Copy {
    fn number(self) -> f64;
}

macro_rules! numbers {
    ($($ty:ty),+) => { $(impl Number for $ty { fn number(self) -> f64 { self.into() } })+ };
}
numbers!(f32, f16, i8, u8, i32, u32);

/// All numbers of a result, in one order.
pub trait Numbers {
    fn numbers(&self) -> Vec<f64>;
}

impl<T: Number> Numbers for Vec<T> {
    fn numbers(&self) -> Vec<f64> {
        self.iter().map(|number| number.number()).collect()
    }
}

impl<A: Numbers, B: Numbers> Numbers for (A, B) {
    fn numbers(&self) -> Vec<f64> {
        [self.0.numbers(), self.1.numbers()].concat()
    }
}

impl Numbers for HostActivations {
    fn numbers(&self) -> Vec<f64> {
        [self.codes.numbers(), self.scales.numbers()].concat()
    }
}

impl Numbers for HostCodes {
    fn numbers(&self) -> Vec<f64> {
        let zero_points = self.zero_points.clone().unwrap_or_default();
        [self.codes.numbers(), self.scales.numbers(), zero_points.numbers()].concat()
    }
}

impl Numbers for PackedTernary {
    fn numbers(&self) -> Vec<f64> {
        [self.to_values().numbers(), self.dequantize().numbers()].concat()
    }
}

impl Numbers for PackedInt {
    fn numbers(&self) -> Vec<f64> {
        [self.to_codes().numbers(), self.affine().scales.numbers(), self.affine().zeros.numbers()]
            .concat()
    }
}

impl Numbers for HostKvCache {
    fn numbers(&self) -> Vec<f64> {
        [self.keys(), self.values()].concat().numbers()
    }
}

/// Describes how two results differ; `None` where they agree.
pub fn difference(got: &[f64], expected: &[f64], bound: Bound) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} numbers instead of {}", got.len(), expected.len()));
    }
    let largest = expected
        .iter()
        .filter(|number| number.is_finite())
        .fold(0.0, |largest: f64, number| largest.max(number.abs()));
    let differs = |&(got, expected): &(&f64, &f64)| match bound {
        _ if got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan() => false,
        Bound::Within(share) if expected.is_finite() => {
            (got - expected).abs() > share * largest || got.is_nan()
        }
        _ => true,
    };
    let pairs = || got.iter().zip(expected);
    let at = pairs().position(|pair| differs(&pair))?;
    let (all, count) = (got.len(), pairs().filter(differs).count());
    let allowed = match bound {
        Bound::Exact => String::new(),
        Bound::Within(share) => format!(" ± {:.1e}", share * largest),
    };
    Some(format!(
        "{count} of {all} numbers differ; number {at} is {} instead of {}{allowed}",
        shown(got[at]),
        shown(expected[at])
    ))
}

/// A number in as many digits as tell it from others of its type.
fn shown(number: f64) -> String {
    let single = number as f32;
    if f64::from(single) == number { format!("{single:e}") } else { format!("{number:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_results_are_compared_by_their_bits() {
        let same =
            |got: f64, expected: f64| difference(&[got], &[expected], Bound::Exact).is_none();
        assert!(same(1.5, 1.5) && same(f64::NAN, -f64::NAN) && same(f64::INFINITY, f64::INFINITY));
        assert!(!same(0.0, -0.0) && !same(1.0, 1.0 + f64::EPSILON) && !same(f64::NAN, 0.0));
    }

    #[test]
    fn bounds_are_relative_to_the_largest_number() {
        let within = |got: &[f64], expected: &[f64]| {
            difference(got, expected, Bound::Within(0.01)).is_none()
        };
        assert!(within(&[100.0, 0.9], &[100.0, 0.0]) && !within(&[100.0, 1.1], &[100.0, 0.0]));
        assert!(
            !within(&[f64::NAN], &[1.0])
                && !within(&[1.0], &[f64::NAN])
                && !within(&[1e300], &[f64::INFINITY])
        );
        assert!(!within(&[f64::INFINITY], &[1.0]) && within(&[0.0, 1.0, -0.0], &[-0.0, 1.0, 0.0]));
        assert!(!within(&[], &[1.0]));
    }

    #[test]
    fn numbers_are_shown_in_few_digits() {
        assert_eq!(
            [f64::from(0.1f32), f64::from(u32::MAX), f64::NAN].map(shown),
            ["1e-1", "4.294967295e9", "NaN"]
        );
    }

    #[test]
    fn differences_name_number_and_count() {
        let text = difference(&[1.0, 2.0, 4.0], &[1.0, 3.0, 5.0], Bound::Exact);
        assert_eq!(text.as_deref(), Some("2 of 3 numbers differ; number 1 is 2e0 instead of 3e0"));
    }
}
