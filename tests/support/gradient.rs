//! Gradients against the functions that they are of.

/// Panics unless `gradient` is that of `f` at `x`, by central differences in `f64`: their own
/// error, and that of `f32`, is below 2e-5 for functions as smooth as those of the tests.
pub fn assert_gradient(name: &str, x: &[f32], gradient: &[f32], f: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-4;
    assert_eq!(x.len(), gradient.len(), "{name}");
    let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
    for (i, &found) in gradient.iter().enumerate() {
        let at = |step: f64| {
            let mut x = x.clone();
            x[i] += step;
            f(&x)
        };
        let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        assert!(
            (f64::from(found) - slope).abs() <= 2e-5 * (1.0 + slope.abs()),
            "{name}: number {i} is {found}, not {slope}"
        );
    }
}
