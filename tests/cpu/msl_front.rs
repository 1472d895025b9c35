//! Every Metal source through the front that refuses what Apple's compiler refuses;
//! scripts/msl-check runs this.

use bitnet_wgpu::{
    Kernel,
    internals::{KernelInternals as _, catalog},
    kernel::{Part, ShaderLanguage, Source},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    thread,
};

/// The probe of `bitnet doctor`, which is in no catalog.
static PROBE: Kernel = Kernel::new(
    "arithmetic",
    &[],
    &[],
    // SAFETY: nothing runs it.
    &[unsafe {
        Source::msl_unchecked(&[Part::new(
            "cli/msl/arithmetic.metal",
            include_str!("../../cli/msl/arithmetic.metal"),
        )])
    }],
);

/// The Metal source of every variant of every kernel, and the kernel's name; equal texts once.
fn texts() -> BTreeMap<String, String> {
    let variants = catalog()
        .chain([&PROBE])
        .flat_map(|kernel| kernel.variants().into_iter().map(move |variant| (kernel, variant)));
    let metal = variants.filter(|(_, variant)| variant.language == ShaderLanguage::Msl);
    metal
        .map(|(kernel, variant)| {
            (kernel.joined_source(&variant), format!("{} {variant:?}", kernel.name))
        })
        .collect()
}

#[test]
#[ignore = "needs clang 19, which scripts/msl-check installs"]
fn every_text_passes_in_every_version() {
    let texts = texts();
    let (left, refused) = (Mutex::new(texts.iter()), Mutex::new(BTreeSet::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((text, name)) = { left.lock().unwrap().next() } {
                    if let Err(error) = msl_host::front::check_all(text) {
                        refused.lock().unwrap().insert(format!("{name} {error}"));
                    }
                }
            });
        }
    });
    let refused: Vec<_> = refused.into_inner().unwrap().into_iter().collect();
    assert!(
        refused.is_empty(),
        "{} of {} texts are refused:\n{}",
        refused.len(),
        texts.len(),
        refused.join("\n")
    );
}

#[test]
fn texts_import_names_one_by_one() {
    let words = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        lines
            .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
            .map(str::to_owned)
            .collect()
    };
    let (mut imported, mut used) = (BTreeSet::new(), BTreeSet::new());
    for text in texts().keys() {
        assert!(!text.contains("using namespace"), "{text}");
        let (imports, rest): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.starts_with("using metal::"));
        imported.extend(words(&imports.join("\n")));
        used.extend(words(&rest.join("\n")));
    }
    let unused: Vec<_> = imported
        .difference(&used)
        .filter(|name| !["", "using", "metal"].contains(&name.as_str()))
        .collect();
    assert!(unused.is_empty(), "imported, and used by no kernel: {unused:?}");
}
