//! Every op by every executor: a trial each, `bitnet::quantize_activations::our_metal` and so on. `TEST_SEED` seeds the random cases.

use bitnet_wgpu::{Kernel, ShaderLanguage, catalog, kernel::Variant};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::HashSet;
use support::{EXECUTORS, Executor, Op, context, ops, seed};

fn main() {
    let here: Vec<_> = EXECUTORS.iter().filter(|(_, executor)| executor.is_here()).collect();
    let trial = |op: &'static Op, &&(name, executor): &&(&str, Executor)| {
        Trial::test(format!("{}::{name}", op.name), move || run(op, executor)).with_ignored_flag(false)
    };
    let mut trials: Vec<_> = ops().iter().flat_map(|op| here.iter().map(move |executor| trial(op, executor))).collect();
    trials.push(Trial::test("every_kernel_and_variant_has_a_case", every_kernel_and_variant_has_a_case));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn run(op: &Op, executor: Executor) -> Result<(), Failed> {
    let failures: Vec<_> = op.cases().iter().filter_map(|case| executor.run(case).err().map(|e| format!("{}: {e}", case.name))).collect();
    if failures.is_empty() {
        return Ok(());
    }
    let (count, shown) = (failures.len(), failures[..failures.len().min(5)].join("\n"));
    Err(format!("{count} of {} cases, TEST_SEED={}:\n{shown}", op.cases().len(), seed()).into())
}

/// Cases that an emulated GPU can run count only, and what a device of this kind has.
fn every_kernel_and_variant_has_a_case() -> Result<(), Failed> {
    let mut recorded: HashSet<(usize, Vec<_>)> = HashSet::new();
    let address = |kernel: &Kernel| std::ptr::from_ref(kernel).addr();
    let wgsl = context().with_language(ShaderLanguage::Wgsl)?;
    for case in ops().iter().flat_map(Op::cases).filter(|case| !case.f16 || wgsl.capabilities().f16) {
        for dispatch in case.record(&wgsl.restricted(case.restrict))?.recording.dispatches() {
            if !case.device_only || dispatch.kernel().source(ShaderLanguage::Msl).is_none() {
                recorded.insert((address(dispatch.kernel()), dispatch.floats().to_vec()));
            }
        }
    }
    let missing = |kernel: &'static Kernel| {
        let variants = kernel.variants().into_iter().filter(|variant| variant.language == ShaderLanguage::Wgsl && variant.subgroups);
        let there = |variant: &Variant| recorded.contains(&(address(kernel), variant.floats.clone()));
        variants.filter(move |variant| !there(variant)).map(|variant| format!("{} {:?}", kernel.name, variant.floats)).collect::<Vec<_>>()
    };
    let missing: Vec<_> = catalog().flat_map(missing).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no case has {}", missing.join(", ")).into()) }
}
