//! Every op by every executor: a trial each, `bitnet::quantize_activations::our_metal` and so on. `TEST_SEED` seeds the random cases.

use bitnet_wgpu::{Kernel, ShaderLanguage, catalog, kernel::Variant};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::HashSet;
use support::{EXECUTORS, Executor, Op, context, ops, seed, threadgroups_limit, with_matrix_units};

fn main() {
    let trial = |op: &'static Op, name: &str, executor: Executor| Trial::test(format!("{}::{name}", op.name), move || run(op, executor));
    let of_op = |op: &'static Op| {
        EXECUTORS.iter().filter(|(_, executor)| executor.runs(op)).map(move |&(name, executor)| trial(op, name, executor))
    };
    let mut trials: Vec<_> = ops().iter().flat_map(of_op).collect();
    trials.push(Trial::test("every_kernel_and_variant_has_a_case", every_kernel_and_variant_has_a_case));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn run(op: &Op, executor: Executor) -> Result<(), Failed> {
    let (mut ran, mut failures) = (0, Vec::new());
    for case in op.cases() {
        match executor.run(case) {
            Ok(run) => ran += usize::from(run),
            Err(error) => failures.push(format!("{}: {error}", case.name)),
        }
    }
    if !failures.is_empty() {
        let shown = failures[..failures.len().min(5)].join("\n");
        return Err(format!("{} of {} cases, TEST_SEED={}:\n{shown}", failures.len(), op.cases().len(), seed()).into());
    }
    // Most ops have nothing that would be another without subgroup operations.
    if ran == 0 && threadgroups_limit().is_none() && !matches!(executor, Executor::Portable) {
        return Err("no case runs".into());
    }
    Ok(())
}

/// Cases that an emulated GPU can run count only, and what a device of this kind has.
fn every_kernel_and_variant_has_a_case() -> Result<(), Failed> {
    let mut recorded: HashSet<(usize, Vec<_>)> = HashSet::new();
    let address = |kernel: &Kernel| std::ptr::from_ref(kernel).addr();
    let wgsl = context().with_language(ShaderLanguage::Wgsl)?;
    let on_units = ops().iter().filter(|op| op.on_matrix_units() && with_matrix_units().is_some());
    let on_units = on_units.flat_map(Op::cases).map(|case| (with_matrix_units().unwrap(), case));
    for (context, case) in ops().iter().flat_map(Op::cases).map(|case| (&wgsl, case)).chain(on_units) {
        if case.f16 && !context.capabilities().f16 {
            continue;
        }
        for dispatch in case.record(&context.restricted(case.restrict))?.recording.dispatches() {
            if !case.device_only || dispatch.kernel().source(ShaderLanguage::Msl).is_none() {
                recorded.insert((address(dispatch.kernel()), dispatch.floats().to_vec()));
            }
        }
    }
    let missing = |kernel: &'static Kernel| {
        let variants = kernel.variants().into_iter().filter(|variant| variant.language != ShaderLanguage::Msl && variant.subgroups);
        // A matrix unit that this device does not have is for others to test.
        let absent =
            kernel.matrix_unit.is_some_and(|unit| with_matrix_units().is_none_or(|c| !c.capabilities().matrix_units.contains(&unit)));
        let there = |variant: &Variant| absent || recorded.contains(&(address(kernel), variant.floats.clone()));
        variants.filter(|variant| !there(variant)).map(|variant| format!("{} {:?}", kernel.name, variant.floats)).collect::<Vec<_>>()
    };
    let missing: Vec<_> = catalog().flat_map(missing).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no case has {}", missing.join(", ")).into()) }
}
