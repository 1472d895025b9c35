//! Numbers of any element type, compared bit by bit.

use bitnet_wgpu::{Element, tensor::f16};
use std::cell::Cell;

/// The contents of a buffer.
#[derive(Clone, Debug)]
pub enum Data {
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    I8(Vec<i8>),
}

/// How results were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Some as bits.
    pub by_bits: bool,
    /// Some within bounds on rounding errors.
    pub by_bounds: bool,
}

impl Compared {
    /// As bits.
    pub const BITS: Self = Self { by_bits: true, by_bounds: false };
    /// Within bounds.
    pub const BOUNDS: Self = Self { by_bits: false, by_bounds: true };

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { by_bits: self.by_bits | other.by_bits, by_bounds: self.by_bounds | other.by_bounds }
    }

    /// Says so of this thread's case: checks that call no method of [`Data`] for it do.
    pub fn note(self) {
        COMPARED.set(COMPARED.get().and(self));
    }

    /// How this thread compared since it was last asked.
    pub fn take() -> Self {
        COMPARED.take()
    }
}

thread_local! {
    static COMPARED: Cell<Compared> = const { Cell::new(Compared { by_bits: false, by_bounds: false }) };
}

/// By how much a result may miss what is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leeway {
    /// Not at all; any NaN is as good as another.
    None,
    /// What Vulkan leaves to a device: a half may be off by one unit in the last place, and numbers
    /// that are too small to be normal may be 0, with what is made of them.
    Device,
}

/// A number, and by how much a result of `f32` arithmetic may miss it.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    pub exact: f64,
    pub error: f64,
}

impl Near {
    /// A number that is not computed.
    pub fn exactly(value: f32) -> Self {
        Self { exact: value.into(), error: 0.0 }
    }

    /// On top of `base`. Whether the number is rounded before that is the device's choice, and the
    /// sum is rounded.
    pub fn on_top_of(self, base: impl Into<f32>) -> Self {
        let exact = self.exact + f64::from(base.into());
        Self { exact, error: self.error + U * (self.exact.abs() + 1.01 * exact.abs()) }
    }
}

/// 2^-110: more than any op makes of a number below 2^-126.
pub const FROM_SUBNORMAL: f32 = 7.7e-34;

/// The most that a rounding is off, relatively.
pub const U: f64 = f32::EPSILON as f64 / 2.0;

impl Data {
    /// Numbers as floats of `element`.
    pub fn floats(element: Element, values: &[f32]) -> Self {
        match element {
            Element::F16 => Self::F16(values.iter().map(|&v| f16::from_f32(v)).collect()),
            _ => Self::F32(values.to_vec()),
        }
    }

    /// What a kernel sees of it in `f32`.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::F32(values) => values.clone(),
            Self::F16(values) => values.iter().map(|v| v.to_f32()).collect(),
            _ => panic!("not floats: {self:?}"),
        }
    }

    /// The type of its numbers.
    pub fn element(&self) -> Element {
        match self {
            Self::U32(_) => Element::U32,
            Self::I32(_) => Element::I32,
            Self::F32(_) => Element::F32,
            Self::F16(_) => Element::F16,
            Self::I8(_) => Element::I8,
        }
    }

    /// The numbers as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::U32(values) => bytemuck::cast_slice(values),
            Self::I32(values) => bytemuck::cast_slice(values),
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::I8(values) => bytemuck::cast_slice(values),
        }
    }

    /// Numbers from bytes.
    pub fn from_bytes(element: Element, bytes: &[u8]) -> Self {
        match element {
            Element::U32 => Self::U32(bytemuck::pod_collect_to_vec(bytes)),
            Element::I32 => Self::I32(bytemuck::pod_collect_to_vec(bytes)),
            Element::F32 => Self::F32(bytemuck::pod_collect_to_vec(bytes)),
            Element::F16 => Self::F16(bytemuck::pod_collect_to_vec(bytes)),
            Element::I8 => Self::I8(bytemuck::pod_collect_to_vec(bytes)),
            other => panic!("no kernel writes {other:?}"),
        }
    }

    /// Says which float is farther from the exact number than it may be; a half may also be rounded
    /// either way (Vulkan leaves it open).
    pub fn check_near(&self, expected: impl IntoIterator<Item = Near>) -> Result<(), String> {
        Compared::BOUNDS.note();
        let (got, half) = (self.to_f32(), self.element() == Element::F16);
        let expected: Vec<_> = expected.into_iter().collect();
        if got.len() != expected.len() {
            return Err(format!("{} numbers for {}", got.len(), expected.len()));
        }
        for (at, (&got, &Near { exact, error })) in got.iter().zip(&expected).enumerate() {
            // 2^-10 of a normal half, 2^-24 of others.
            let rounding = if half { (exact.abs() / 1024.0).max(0.000_000_06) } else { 0.0 };
            let largest = if half { 65_504.0 } else { f64::from(f32::MAX) };
            let near = if exact.is_nan() {
                got.is_nan()
            } else if exact.abs() > largest {
                f64::from(got) * exact.signum() >= largest
            } else {
                (f64::from(got) - exact).abs() <= error + rounding
            };
            if !near {
                return Err(format!("number {at} is {got}, not {exact} ± {error}"));
            }
        }
        Ok(())
    }

    /// Says which number is not what is wanted.
    pub fn check(&self, expected: &Self, leeway: Leeway) -> Result<(), String> {
        Compared::BITS.note();
        let difference = match (self, expected) {
            (Self::U32(got), Self::U32(want)) => first_difference(got, want, |g, w| g == w),
            (Self::I32(got), Self::I32(want)) => first_difference(got, want, |g, w| g == w),
            (Self::I8(got), Self::I8(want)) => first_difference(got, want, |g, w| g == w),
            (Self::F32(got), Self::F32(want)) => {
                let lost = |g: &f32, w: &f32| {
                    leeway == Leeway::Device && *g == 0.0 && w.abs() < FROM_SUBNORMAL
                };
                first_difference(got, want, |g, w| {
                    g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()) || lost(g, w)
                })
            }
            (Self::F16(got), Self::F16(want)) => {
                let ulps = if leeway == Leeway::None { 0 } else { 1 };
                let same = |g: &f16, w: &f16| {
                    (g.to_bits() as i16).abs_diff(w.to_bits() as i16) <= ulps
                        || (g.is_nan() && w.is_nan())
                };
                first_difference(got, want, same)
            }
            _ => Some(format!("{:?} for {:?}", self.element(), expected.element())),
        };
        difference.map_or(Ok(()), Err)
    }

    /// Whether the bytes are those of `other`, where both come from one device.
    pub fn has_bits_of(&self, other: &Self) -> bool {
        Compared::BITS.note();
        self.bytes() == other.bytes()
    }
}

fn first_difference<T: std::fmt::Debug>(
    got: &[T],
    want: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} numbers for {}", got.len(), want.len()));
    }
    let at = got.iter().zip(want).position(|(g, w)| !same(g, w))?;
    Some(format!("number {at} is {:?}, not {:?}", got[at], want[at]))
}

/// What lies in a tensor and a product on top of it. The product is rounded here, and there or not;
/// so is the sum.
pub fn sums(base: &[f32], products: &[f32]) -> Vec<Near> {
    let sum = |(&base, &product): (&f32, &f32)| {
        let exact = f64::from(base) + f64::from(product);
        Near { exact, error: U * (2.0 * f64::from(product).abs() + 1.01 * exact.abs()) }
    };
    base.iter().zip(products).map(sum).collect()
}
