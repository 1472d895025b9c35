//! What the library measures of a device.

use super::{Case, case};
use crate::doctor::{compare::Bound, trial::Trial};
use anyhow::{Result, ensure};
use bitnet_wgpu::telemetry;
use pollster::block_on;

pub const CASES: &[Case] = &[case("measure::arithmetic", arithmetic)];

/// A rate has no reference: it must be a positive number.
fn arithmetic(t: &mut Trial) -> Result<()> {
    let context = t.context.clone();
    let read = move || {
        let rate = block_on(telemetry::peak_compute(&context))?;
        ensure!(rate.is_finite() && rate > 0.0, "{rate} operations a second");
        Ok(vec![1.0f32])
    };
    t.check(Bound::Exact, read, &vec![1.0f32]);
    Ok(())
}
