//! Every op by every executor: a trial each, `bitnet::quantize_activations::our_metal` and so on.
//! `TEST_SEED` seeds the random cases; `TEST_PART=I/N` takes every N-th op from the I-th on.
//! `UPDATE=1 cargo test --test gpu -- table` writes the table of docs/internals/kernels.md.

use bitnet_wgpu::{
    Context, Element, Kernel, Recording,
    internals::{KernelInternals as _, Variant, catalog},
    kernel::ShaderLanguage,
};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    collections::{BTreeSet, HashSet},
    sync::{LazyLock, OnceLock},
};
use support::{
    Case, Compared, EXECUTORS, Executor, Op, context, files, ops, seed, threadgroups_limit,
    with_tensor_cores,
};

fn main() {
    let trial = |index: usize, name: &str, executor: Executor| {
        let op = &ops()[index];
        let in_wgsl = name == WGSL.0;
        Trial::test(format!("{}::{name}", op.name), move || match in_wgsl {
            true => Run::in_wgsl(index).judge(op, executor),
            false => Run::new(op, executor).judge(op, executor),
        })
    };
    let of_op = |index: usize| {
        EXECUTORS
            .iter()
            .filter(move |(_, executor)| executor.runs(&ops()[index]))
            .map(move |&(name, executor)| trial(index, name, executor))
    };
    let (first, step) = part();
    let mut trials: Vec<_> = (first..ops().len()).step_by(step).flat_map(of_op).collect();
    if step == 1 {
        trials.push(Trial::test(
            "every_kernel_and_variant_has_a_case",
            every_kernel_and_variant_has_a_case,
        ));
        // Of kernels that software adapters take.
        if context().capabilities().software {
            trials.push(Trial::test("the_table_of_ops_is_true", the_table_of_ops_is_true));
        }
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

/// The executor whose runs the table is made of.
const WGSL: (&str, Executor) = EXECUTORS[1];

/// The first op's index, and the step from one to the next.
fn part() -> (usize, usize) {
    let Ok(part) = std::env::var("TEST_PART") else { return (0, 1) };
    let numbers = part.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    numbers.filter(|&(i, n)| i < n).unwrap_or_else(|| panic!("TEST_PART is {part:?}, not I/N"))
}

/// What came of an op's cases.
#[derive(Default)]
struct Run {
    ran: usize,
    failures: Vec<String>,
    compared: Compared,
    recorded: Recorded,
}

/// What cases recorded on a device.
#[derive(Clone, Default)]
struct Recorded {
    /// Kernels, by their addresses, and element types. Cases that an emulated GPU can run count
    /// only, and what a device of this kind has.
    variants: HashSet<(usize, Vec<(&'static str, Element)>)>,
    /// Names of kernels.
    names: BTreeSet<&'static str>,
}

impl Recorded {
    fn add(&mut self, case: &Case, recording: &Recording) {
        for dispatch in recording.dispatches() {
            let kernel = dispatch.kernel();
            if !case.device_only || kernel.source(ShaderLanguage::Msl).is_none() {
                self.variants.insert((address(kernel), dispatch.floats().to_vec()));
            }
            self.names.insert(kernel.name);
        }
    }
}

fn address(kernel: &Kernel) -> usize {
    std::ptr::from_ref(kernel).addr()
}

impl Run {
    fn new(op: &Op, executor: Executor) -> Self {
        let mut run = Self::default();
        for case in op.cases() {
            let recorded = &mut run.recorded;
            match executor.observed(case, &mut |recording| recorded.add(case, recording)) {
                Ok(ran) => run.ran += usize::from(ran),
                Err(error) => run.failures.push(format!("{}: {error}", case.name)),
            }
        }
        run.compared = Compared::take();
        run
    }

    /// By the device in WGSL, once for each op: the table is made of it.
    fn in_wgsl(index: usize) -> &'static Self {
        static RUNS: LazyLock<Vec<OnceLock<Run>>> =
            LazyLock::new(|| ops().iter().map(|_| OnceLock::new()).collect());
        RUNS[index].get_or_init(|| Self::new(&ops()[index], WGSL.1))
    }

    fn judge(&self, op: &Op, executor: Executor) -> Result<(), Failed> {
        if !self.failures.is_empty() {
            let shown = self.failures[..self.failures.len().min(5)].join("\n");
            return Err(format!(
                "{} of {} cases, TEST_SEED={}:\n{shown}",
                self.failures.len(),
                op.cases().len(),
                seed()
            )
            .into());
        }
        // Most ops have nothing that would be another without subgroup operations.
        if self.ran == 0
            && threadgroups_limit().is_none()
            && !matches!(executor, Executor::Portable)
        {
            return Err("no case runs".into());
        }
        Ok(())
    }
}

/// What the cases of all ops record, on this device and its tensor cores.
struct Everything {
    /// As of a [`Recorded`].
    variants: HashSet<(usize, Vec<(&'static str, Element)>)>,
    /// Names of kernels in WGSL without tensor cores, and how results were compared, an op each.
    ops: Vec<(BTreeSet<&'static str>, Compared)>,
}

/// Runs the ops that have not run in WGSL yet.
fn everything() -> Result<&'static Everything, Failed> {
    static EVERYTHING: LazyLock<Result<Everything, String>> = LazyLock::new(|| {
        let wgsl = context().with_language(ShaderLanguage::Wgsl).map_err(|e| e.to_string())?;
        // Whose tensor cores are Metal's.
        let apple = wgsl.restricted(|c| (c.device_barriers, c.apple) = (false, true));
        let mut everything = Everything { variants: HashSet::new(), ops: Vec::new() };
        for (index, op) in ops().iter().enumerate() {
            let (recorded, compared) = if WGSL.1.runs(op) {
                let run = Run::in_wgsl(index);
                (run.recorded.clone(), run.compared)
            } else {
                (record(op, &wgsl)?, Compared::default())
            };
            let mut names = recorded.names;
            everything.variants.extend(recorded.variants);
            if op.on_tensor_cores() {
                let recorded = record(op, &apple)?;
                everything.variants.extend(recorded.variants);
                names.extend(recorded.names);
                if let Some(cores) = with_tensor_cores() {
                    everything.variants.extend(record(op, cores)?.variants);
                }
            }
            everything.ops.push((names, compared));
        }
        Ok(everything)
    });
    EVERYTHING.as_ref().map_err(|e| e.into())
}

/// What the cases of an op record, without running it.
fn record(op: &Op, context: &Context) -> Result<Recorded, String> {
    let mut recorded = Recorded::default();
    for case in op.cases().iter().filter(|case| !case.f16 || context.capabilities().f16) {
        let here = case
            .record(&context.restricted(case.restrict))
            .map_err(|e| format!("{}: {e}", case.name))?;
        recorded.add(case, &here.recording);
    }
    Ok(recorded)
}

fn every_kernel_and_variant_has_a_case() -> Result<(), Failed> {
    let recorded = &everything()?.variants;
    let missing = |kernel: &'static Kernel| {
        let variants = kernel
            .variants()
            .into_iter()
            .filter(|variant| variant.language != ShaderLanguage::Msl && variant.subgroups);
        // A tensor core that this device does not have is for others to test.
        let absent = kernel.tensor_core.is_some_and(|core| {
            with_tensor_cores().is_none_or(|c| !c.capabilities().tensor_cores.contains(&core))
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
        .zip(&everything()?.ops)
        .filter(|(op, _)| !op.by.is_wgsl_only())
        .flat_map(|(_, (names, _))| names)
        .collect();
    let in_metal = catalog()
        .filter(|kernel| kernel.source(ShaderLanguage::Msl).is_some())
        .map(|kernel| kernel.name);
    let recorded: BTreeSet<_> = everything()?.ops.iter().flat_map(|(names, _)| names).collect();
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
    // An op without kernels is for tensor cores that a device may have.
    let ops = ops().iter().zip(&everything()?.ops).filter(|(_, (names, _))| !names.is_empty());
    for (op, (names, compared)) in ops {
        // In the order of the catalog.
        let kernels = catalog().filter(|kernel| names.contains(kernel.name));
        let shown: Vec<_> = kernels
            .map(|kernel| match kernel.source(ShaderLanguage::Msl) {
                Some(_) => format!("`{}`", kernel.name),
                None => format!("*`{}`*", kernel.name),
            })
            .collect();
        let by = match compared {
            Compared { by_bits: true, by_bounds: true } => "bits, bounds",
            Compared { by_bits: true, .. } => "bits",
            Compared { by_bounds: true, .. } => "bounds",
            // Tensor cores and Metal run it.
            _ if !WGSL.1.runs(op) => "bounds",
            _ => return Err(format!("{} compares nothing", op.name).into()),
        };
        table += &format!("| `{}` | {} | {by} |\n", op.name, shown.join(", "));
    }
    Ok(files::check_table("docs/internals/kernels.md", "kernels", &table)?)
}
