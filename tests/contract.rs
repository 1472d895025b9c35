//! Do the shader texts match their declarations? Needs no GPU. And does the check find what it is for?

use bitnet_wgpu::{
    CATALOG, Kernel, ShaderLanguage, catalog, contract,
    kernel::{Params as _, Part, Source, Type::*, read, read_write},
    params,
};
use std::collections::HashSet;

#[test]
fn every_variant_of_every_kernel_keeps_its_contract() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for kernel in catalog() {
        for variant in kernel.variants() {
            checked += 1;
            if let Err(error) = contract::check(kernel, &variant) {
                wrong.push(format!("{} {variant:?}: {error}", kernel.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 2 * catalog().count(), "only {checked} variants");
}

#[test]
fn names_are_unique_and_stems_are_entry_points() {
    let mut names = HashSet::new();
    for kernel in CATALOG.iter().copied().flatten() {
        assert!(names.insert(kernel.name), "two kernels are named {}", kernel.name);
        for source in std::iter::once(&kernel.wgsl).chain(&kernel.msl) {
            let path = source.parts.last().unwrap().path;
            let stem = path.rsplit('/').next().unwrap().split('.').next().unwrap();
            assert_eq!(stem, kernel.entry, "{path}");
        }
        assert!(kernel.params.len() <= 32, "{}: immediates are 128 bytes", kernel.name);
    }
}

#[test]
fn every_shader_file_is_used() {
    let mut used = HashSet::from(["wgsl/shared/reduce_portable.wgsl".to_owned()]);
    for kernel in catalog() {
        for source in std::iter::once(&kernel.wgsl).chain(&kernel.msl) {
            used.extend(source.parts.iter().map(|part| part.path.to_owned()));
        }
    }
    for language in ["wgsl", "msl"] {
        let root = support::repository("");
        for folder in std::fs::read_dir(root.join(language)).unwrap() {
            for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
                let path = file.unwrap().path().strip_prefix(&root).unwrap().display().to_string();
                assert!(used.contains(&path), "{path} belongs to no kernel");
            }
        }
    }
}

params! { struct Good { rows: u32, factor: f32 } }

const PARTS: &[Part] = &[Part::new("planted/scale.wgsl", include_str!("planted/scale.wgsl"))];
const METAL: &[Part] = &[Part::new("planted/scale.metal", include_str!("planted/scale.metal"))];

/// A sound kernel in both languages; each test below breaks one thing in its declaration, which is the same as in the text.
const GOOD: Kernel = Kernel {
    name: "scale",
    entry: "scale",
    params: Good::FIELDS,
    bindings: &[read("x", F32), read("bias", U32), read_write("y", Float("Y"))],
    wgsl: Source { parts: PARTS, workgroup_size: [64, 1, 1], tile: [64, 1, 1], constants: &[] },
    msl: Some(Source { parts: METAL, workgroup_size: [64, 1, 1], tile: [64, 1, 1], constants: &[] }),
};

fn outcomes(kernel: &Kernel) -> Vec<(ShaderLanguage, Result<(), String>)> {
    kernel.variants().iter().map(|variant| (variant.language, contract::check(kernel, variant))).collect()
}

#[test]
fn the_sound_kernel_passes() {
    for (language, outcome) in outcomes(&GOOD) {
        outcome.unwrap_or_else(|e| panic!("{language:?}: {e}"));
    }
}

#[test]
fn planted_faults_are_found_in_both_languages() {
    params! { struct Swapped { factor: f32, rows: u32 } }
    params! { struct Retyped { rows: i32, factor: f32 } }
    let faults = [
        ("swapped bindings", Kernel { bindings: const { &[read("bias", U32), read("x", F32), read_write("y", Float("Y"))] }, ..GOOD }),
        ("a renamed binding", Kernel { bindings: const { &[read("x", F32), read("offset", U32), read_write("y", Float("Y"))] }, ..GOOD }),
        (
            "a binding of another type",
            Kernel { bindings: const { &[read("x", F32), read("bias", I32), read_write("y", Float("Y"))] }, ..GOOD },
        ),
        ("an output declared as input", Kernel { bindings: const { &[read("x", F32), read("bias", U32), read("y", Float("Y"))] }, ..GOOD }),
        ("a missing binding", Kernel { bindings: const { &[read("x", F32), read("bias", U32)] }, ..GOOD }),
        ("swapped params", Kernel { params: Swapped::FIELDS, ..GOOD }),
        ("a param of another type", Kernel { params: Retyped::FIELDS, ..GOOD }),
        ("params that are not declared", Kernel { params: &[], ..GOOD }),
        ("another entry point", Kernel { entry: "scaled", ..GOOD }),
    ];
    for (fault, kernel) in &faults {
        for (language, outcome) in outcomes(kernel) {
            assert!(outcome.is_err(), "{fault} is not found in {language:?}");
        }
    }
}

#[test]
fn metal_needs_a_stated_group_size_and_attributes() {
    let check = |text: &'static str| {
        let part: &'static [Part] = Box::leak(Box::new([Part::new("planted", text)]));
        let kernel = Kernel { msl: Some(Source { parts: part, ..GOOD.wgsl }), ..GOOD };
        let variant = kernel.variants().into_iter().find(|v| v.language == ShaderLanguage::Msl).unwrap();
        contract::check(&kernel, &variant)
    };
    let sound = METAL[0].text;
    check(sound).unwrap();
    let without = |piece: &str| {
        assert!(sound.contains(piece));
        Box::leak(sound.replace(piece, "").into_boxed_str())
    };
    assert!(check(without("[[max_total_threads_per_threadgroup(THREADS)]]")).unwrap_err().contains("must follow"));
    assert!(check(without("[[buffer(2)]]")).unwrap_err().contains("no attribute"));
    assert!(check(without("device const float")).is_err());
}
