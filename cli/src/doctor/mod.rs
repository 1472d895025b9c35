//! `bitnet doctor`: what a device makes of the library's kernels.

mod arithmetic;
mod cases;
mod compare;
mod compile;
mod device;
mod endurance;
mod report;
mod run;
mod trial;

use self::{cases::Case, device::Device, report::Report};
use crate::{
    model::{chosen, progress},
    printable, say,
};
use anyhow::{Result, bail};
use bitnet_wgpu::kernel::KernelRef;
use clap::Args;
use std::{fmt::Display, time::Duration};

/// Checks a GPU and its driver
///
/// Compiles all kernels, compares ops with the CPU, and probes arithmetic, memory and long
/// submissions. Needs no model and no developer tools. The exit status is 0 only if all of these
/// pass; otherwise every failure is listed. The output names the GPU, its driver and the system,
/// and nothing else of the machine, so it can go into a bug report.
#[derive(Args)]
pub struct Doctor {
    /// GPU by part of its name or by its number in `bitnet adapters`
    /// [default: the one that models run on]
    #[arg(long, value_name = "NAME|NUMBER")]
    adapter: Option<String>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// Lengths of submissions to try.
const SUBMISSIONS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];

impl Doctor {
    pub fn run(self) -> Result<()> {
        let mut device = Device::open(self.adapter.as_deref().map(chosen))?;
        let kernels: Vec<KernelRef> =
            bitnet_wgpu::internals::catalog().map(KernelRef::from).collect();
        let json = self.json;
        let report = examine(&mut device, &kernels, &cases::all(), &mut |part| {
            if json { Ok(()) } else { Ok(say(printable(&part.to_string()))?) }
        })?;
        if json {
            say(format!("{}\n", report.object()))?;
        }
        match report.verdict() {
            Err(failures) => bail!(failures),
            Ok(line) if !json => Ok(say(format!("\n{line}\n"))?),
            Ok(_) => Ok(()),
        }
    }
}

/// Examines a device with these kernels and cases. Parts of the report are shown as they come, for
/// the last ones may stop the device.
fn examine(
    device: &mut Device,
    kernels: &[KernelRef],
    cases: &[Case],
    show: &mut dyn FnMut(&dyn Display) -> Result<()>,
) -> Result<Report> {
    show(device)?;
    let bar = progress("compiling", "kernel variants");
    let compiled = compile::all(&device.context, kernels, &bar);
    bar.finish_and_clear();
    show(&compiled)?;
    let bar = progress("comparing", "cases");
    let ran = run::all(&mut device.context, cases, &bar)?;
    bar.finish_and_clear();
    show(&ran)?;
    let arithmetic = arithmetic::Findings::of(&device.context);
    show(&arithmetic)?;
    let memory = device.memory(endurance::memory(&device.context, device.adapter.memory_bytes));
    show(&memory)?;
    let submissions = endurance::Submissions::of(&device.context, &SUBMISSIONS);
    show(&submissions)?;
    Ok(Report { device: device.object(), compiled, ran, arithmetic, memory, submissions })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitnet_wgpu::{Kernel, internals::catalog};
    use std::sync::Arc;

    fn examined(kernels: &[KernelRef], cases: &[Case]) -> (Report, String) {
        let (mut device, mut shown) = (Device::open(None).unwrap(), String::new());
        let report = examine(&mut device, kernels, cases, &mut |part| {
            shown += &part.to_string();
            Ok(())
        });
        (report.unwrap(), shown)
    }

    fn wrong(t: &mut trial::Trial) -> Result<()> {
        let x = t.context.upload(&[1.0f32, 2.0], [2])?;
        t.same(&x, vec![1.0, 2.5]);
        Ok(())
    }

    fn right(t: &mut trial::Trial) -> Result<()> {
        let x = t.context.upload(&[1.0f32, 2.0], [2])?;
        t.same(&x, vec![1.0, 2.0]);
        Ok(())
    }

    fn few_kernels() -> Vec<KernelRef> {
        catalog().take(2).map(KernelRef::from).collect()
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn a_sound_device_passes() {
        let (report, shown) =
            examined(&few_kernels(), &[Case { name: "right", f16: false, run: right }]);
        assert!(
            report.verdict().unwrap().ends_with(" kernel variants compile, all 1 cases agree"),
            "{shown}"
        );
        assert_eq!(report.object()["passed"], true, "{shown}");
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn wrong_results_are_reported_by_name() {
        let cases = [
            Case { name: "right", f16: false, run: right },
            Case { name: "planted", f16: false, run: wrong },
        ];
        let (report, shown) = examined(&few_kernels(), &cases);
        assert!(
            shown.contains("planted") && shown.contains("number 1 is 2e0 instead of 2.5e0"),
            "{shown}"
        );
        assert!(report.verdict().unwrap_err().contains("cases that disagree: 1 of 2"), "{shown}");
        assert_eq!(report.object()["cases"]["failures"][0]["case"], "planted");
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn kernels_that_fail_to_compile_are_named() {
        let planted: Arc<Kernel> = Arc::new(
            catalog().next().unwrap().with_wgsl("fn planted() -> u32 { return missing; }"),
        );
        let kernels = [few_kernels(), vec![KernelRef::from(&planted)]].concat();
        let (report, shown) = examined(&kernels, &[]);
        assert!(shown.contains(planted.name) && shown.contains("missing"), "{shown}");
        assert!(report.verdict().unwrap_err().contains("do not compile: 2 of"), "{shown}");
        assert_eq!(report.object()["passed"], false);
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn a_case_without_checks_fails() {
        let (report, _) = examined(&[], &[Case { name: "empty", f16: false, run: |_| Ok(()) }]);
        assert_eq!(report.object()["cases"]["failures"][0]["error"], "nothing is checked");
    }
}
