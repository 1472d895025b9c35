//! Every op by every executor: a trial each, `bitnet::quantize_activations::our_metal` and so on.
//! `TEST_SEED` seeds the random cases; `TEST_PART=I/N` takes every N-th op from the I-th on.
//! `UPDATE=1 cargo test --test gpu -- table` writes the table of docs/internals/kernels.md.

use bitnet_wgpu::{
    Element, Kernel,
    internals::{KernelInternals as _, Variant, catalog},
    kernel::ShaderLanguage,
};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    collections::{BTreeSet, HashSet},
    sync::LazyLock,
};
use support::{
    EXECUTORS, Executor, Op, context, files, ops, seed, threadgroups_limit, with_matrix_units,
};

fn main() {
    let trial = |op: &'static Op, name: &str, executor: Executor| {
        Trial::test(format!("{}::{name}", op.name), move || run(op, executor))
    };
    let of_op = |op: &'static Op| {
        EXECUTORS
            .iter()
            .filter(|(_, executor)| executor.runs(op))
            .map(move |&(name, executor)| trial(op, name, executor))
    };
    let (first, step) = part();
    let mut trials: Vec<_> = ops().iter().skip(first).step_by(step).flat_map(of_op).collect();
    trials.push(Trial::test(
        "every_kernel_and_variant_has_a_case",
        every_kernel_and_variant_has_a_case,
    ));
    // Of kernels that software adapters take.
    if context().capabilities().software {
        trials.push(Trial::test("the_table_of_ops_is_true", the_table_of_ops_is_true));
    }
    let arguments = Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // A mistyped name must not look like a pass.
    if let (Some(filter), 0, false) =
        (&arguments.filter, conclusion.num_passed + conclusion.num_failed, arguments.list)
    {
        eprintln!("no op is named {filter:?}: `--list` prints the names (an op's is its file's)");
        std::process::exit(1);
    }
    conclusion.exit();
}

/// The first op's index, and the step from one to the next.
fn part() -> (usize, usize) {
    let Ok(part) = std::env::var("TEST_PART") else { return (0, 1) };
    let numbers = part.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    numbers.filter(|&(i, n)| i < n).unwrap_or_else(|| panic!("TEST_PART is {part:?}, not I/N"))
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
        return Err(format!(
            "{} of {} cases, TEST_SEED={}:\n{shown}",
            failures.len(),
            op.cases().len(),
            seed()
        )
        .into());
    }
    // Most ops have nothing that would be another without subgroup operations.
    if ran == 0 && threadgroups_limit().is_none() && !matches!(executor, Executor::Portable) {
        return Err("no case runs".into());
    }
    Ok(())
}

/// What the cases of all ops record, on this device and its tensor cores.
struct Everything {
    /// Kernels, by their addresses, and element types. Cases that an emulated GPU can run count
    /// only, and what a device of this kind has.
    variants: HashSet<(usize, Vec<(&'static str, Element)>)>,
    /// Names of kernels in WGSL without tensor cores, an op each.
    names: Vec<BTreeSet<&'static str>>,
}

fn address(kernel: &Kernel) -> usize {
    std::ptr::from_ref(kernel).addr()
}

/// Recorded once, since it takes a minute.
fn everything() -> Result<&'static Everything, Failed> {
    static EVERYTHING: LazyLock<Result<Everything, String>> = LazyLock::new(|| {
        let wgsl = context().with_language(ShaderLanguage::Wgsl).map_err(|e| e.to_string())?;
        let mut everything =
            Everything { variants: HashSet::new(), names: vec![BTreeSet::new(); ops().len()] };
        // Whose tensor cores are Metal's.
        let apple = wgsl.restricted(|c| (c.device_barriers, c.apple) = (false, true));
        for (op, names) in ops().iter().zip(&mut everything.names) {
            let [apple, units] = [Some(&apple), with_matrix_units()]
                .map(|context| context.filter(|_| op.on_matrix_units()));
            for context in [Some(&wgsl), apple, units].into_iter().flatten() {
                for case in op.cases().iter().filter(|case| !case.f16 || context.capabilities().f16)
                {
                    let recorded = case
                        .record(&context.restricted(case.restrict))
                        .map_err(|e| format!("{}: {e}", case.name))?;
                    for dispatch in recorded.recording.dispatches() {
                        if !case.device_only
                            || dispatch.kernel().source(ShaderLanguage::Msl).is_none()
                        {
                            everything
                                .variants
                                .insert((address(dispatch.kernel()), dispatch.floats().to_vec()));
                        }
                        if units.is_none_or(|units| !std::ptr::eq(context, units)) {
                            names.insert(dispatch.kernel().name);
                        }
                    }
                }
            }
        }
        Ok(everything)
    });
    EVERYTHING.as_ref().map_err(|e| e.into())
}

fn every_kernel_and_variant_has_a_case() -> Result<(), Failed> {
    let recorded = &everything()?.variants;
    let missing = |kernel: &'static Kernel| {
        let variants = kernel
            .variants()
            .into_iter()
            .filter(|variant| variant.language != ShaderLanguage::Msl && variant.subgroups);
        // A tensor core that this device does not have is for others to test.
        let absent = kernel.matrix_unit.is_some_and(|unit| {
            with_matrix_units().is_none_or(|c| !c.capabilities().matrix_units.contains(&unit))
        });
        let there = |variant: &Variant| {
            absent || recorded.contains(&(address(kernel), variant.floats.clone()))
        };
        variants
            .filter(|variant| !there(variant))
            .map(|variant| format!("{} {:?}", kernel.name, variant.floats))
            .collect::<Vec<_>>()
    };
    let missing: Vec<_> = catalog().flat_map(missing).collect();
    if !missing.is_empty() {
        return Err(format!("no case has {}", missing.join(", ")).into());
    }
    let tried: BTreeSet<_> = ops()
        .iter()
        .zip(&everything()?.names)
        .filter(|(op, _)| !op.by.is_wgsl_only())
        .flat_map(|(_, names)| names)
        .collect();
    let in_metal = catalog()
        .filter(|kernel| kernel.source(ShaderLanguage::Msl).is_some())
        .map(|kernel| kernel.name);
    let recorded: BTreeSet<_> = everything()?.names.iter().flatten().collect();
    let untried: Vec<_> =
        in_metal.filter(|name| recorded.contains(name) && !tried.contains(name)).collect();
    if untried.is_empty() {
        Ok(())
    } else {
        Err(format!("only ops in WGSL have {}", untried.join(", ")).into())
    }
}

/// The table of docs/internals/kernels.md is made from the cases.
fn the_table_of_ops_is_true() -> Result<(), Failed> {
    let mut table =
        "| op | its kernels (*italic*: in WGSL only) | compared by |\n| --- | --- | --- |\n"
            .to_owned();
    for (op, names) in ops().iter().zip(&everything()?.names) {
        // In the order of the catalog.
        let kernels = catalog().filter(|kernel| names.contains(kernel.name));
        let shown: Vec<_> = kernels
            .map(|kernel| match kernel.source(ShaderLanguage::Msl) {
                Some(_) => format!("`{}`", kernel.name),
                None => format!("*`{}`*", kernel.name),
            })
            .collect();
        let exact = op.cases().iter().filter(|case| case.exact).count();
        let by = match exact {
            0 => "derived bounds",
            all if all == op.cases().len() => "equal bits",
            _ => "equal bits, or derived bounds",
        };
        table += &format!("| `{}` | {} | {by} |\n", op.name, shown.join(", "));
    }
    Ok(files::check_table("docs/internals/kernels.md", "kernels", &table)?)
}
