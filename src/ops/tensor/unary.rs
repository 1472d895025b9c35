//! Functions of one number, and their gradients: what dy is at the output, at the input.

use crate::ops::op_tables::unary;

unary! {
    /// -x of every element.
    neg () "-x" |x| -x;
    neg_backward "-dy" |x, dy| -dy;

    /// |x| of every element. Its gradient is 0 at 0.
    abs () "abs(x)" |x| x.abs();
    abs_backward "dy * sign(x)" |x, dy| if x == 0.0 { 0.0 } else { dy * x.signum() };

    /// e^x of every element, as the device has it: within 3 + 2·|x| units in the last place by
    /// Vulkan's rules.
    exp () "exp(x)" |x| x.exp();
    exp_backward "dy * exp(x)" |x, dy| dy * x.exp();

    /// ln x of every element, as the device has it: by Vulkan's rules within 2^-21 between 0.5 and
    /// 2, else within 3 units in the last place.
    log () "log(x)" |x| x.ln();
    log_backward "dy / x" |x, dy| dy / x;

    /// √x of every element.
    sqrt () "sqrt(x)" |x| x.sqrt();
    sqrt_backward "dy * 0.5 * inverseSqrt(x)" |x, dy| dy * 0.5 / x.sqrt();

    /// 1/√x of every element.
    rsqrt () "inverseSqrt(x)" |x| 1.0 / x.sqrt();
    rsqrt_backward "dy * -0.5 * inverseSqrt(x) / x" |x, dy| dy * -0.5 / x.sqrt() / x;

    /// 1 where x > 0, else -1, of 0 too: the Sign of BitNet (arXiv:2310.11453, equation 2). The
    /// gradient is taken for that of clamp(x, -1, 1): dy where
    /// |x| <= 1, else 0 (Hubara et al. 2016, arXiv:1602.02830).
    binarize () "select(-1.0, 1.0, x > 0.0)" |x| if x > 0.0 { 1.0 } else { -1.0 };
    binarize_backward "select(0.0, dy, abs(x) <= 1.0)" |x, dy| if x.abs() <= 1.0 { dy } else { 0.0 };

    /// x² of every element.
    square () "x * x" |x| x * x;
    square_backward "dy * (2.0 * x)" |x, dy| dy * (2.0 * x);

    /// 1/x of every element.
    recip () "1.0 / x" |x| 1.0 / x;
    recip_backward "-dy / x / x" |x, dy| -dy / x / x;

    /// factor·x of every element.
    scale (factor) "params.alpha * x" |x| factor * x;
    scale_backward "params.alpha * dy" |x, dy| factor * dy;

    /// Every element, but no less than `low` and no more than `high`; `high` where that is the
    /// lower. The gradient is dy where x is between them or one of them, else 0.
    clamp (low, high) "select(min(max(x, params.alpha), params.beta), x, is_nan(x))"
        |x| if x.is_nan() { x } else { x.max(low).min(high) };
    clamp_backward "select(0.0, dy, x >= params.alpha && x <= params.beta)"
        |x, dy| if x >= low && x <= high { dy } else { 0.0 };
}
