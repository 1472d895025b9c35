//! Functions of two numbers. Tensors of other shapes are broadcast: dimensions are aligned from the last on, and one of 1 serves for any.

use crate::ops::op_tables::binary;

binary! {
    /// a + b. Gradients: dy, dy.
    add, add_into, add_cpu "a + b" |a, b| a + b;

    /// a - b. Gradients: dy, -dy.
    sub, sub_into, sub_cpu "a - b" |a, b| a - b;

    /// a·b. Gradients: dy·b, dy·a.
    mul, mul_into, mul_cpu "a * b" |a, b| a * b;

    /// a / b. Gradients: dy / b, -dy·a / b².
    div, div_into, div_cpu "a / b" |a, b| a / b;

    /// The lesser of a and b; NaN where one is. Gradients: dy to the lesser.
    min, min_into, min_cpu "select(min(a, b), a + b, is_nan(a) || is_nan(b))" |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) };

    /// The greater of a and b; NaN where one is. Gradients: dy to the greater.
    max, max_into, max_cpu "select(max(a, b), a + b, is_nan(a) || is_nan(b))" |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) };

    /// a to the power of b, as 2^(b·log₂ |a|) with the sign that an odd b gives; NaN for a < 0 where b is no integer; 1 for b = 0. Gradients:
    /// dy·b·a^(b-1), dy·a^b·ln a.
    pow, pow_into, pow_cpu ["tensor/pow"] |a, b| a.powf(b);
}
