//! Checks that the sources match their declarations, without a GPU, and that the check finds
//! planted faults.

use bitnet_wgpu::{
    Context, Kernel,
    internals::{KernelInternals as _, Needs, catalog, contract},
    kernel::{Binding, Params as _, Part, ShaderLanguage, Source, Type::*, read, read_write},
    params, wgpu,
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
    for kernel in catalog() {
        assert!(names.insert(kernel.name), "two kernels are named {}", kernel.name);
        for source in kernel.sources() {
            let path = kernel.parts(source).last().unwrap().path;
            let stem = path.rsplit('/').next().unwrap().split('.').next().unwrap();
            assert_eq!(stem, kernel.entry, "{path}");
        }
        assert!(kernel.params.len() <= 32, "{}: immediates are 128 bytes", kernel.name);
    }
}

#[test]
fn every_shader_file_is_used() {
    let mut used = HashSet::from(
        [
            "wgsl/shared/reduce_portable.wgsl",
            "wgsl/shared/cells_portable.wgsl",
            "wgsl/shared/exact_unfused.wgsl",
        ]
        .map(str::to_owned),
    );
    for kernel in catalog() {
        for source in kernel.sources() {
            used.extend(kernel.parts(source).map(|part| part.path.to_owned()));
        }
    }
    let root = support::repository("");
    let mut paths: Vec<_> = ["wgsl", "msl", "glsl"].map(|language| root.join(language)).into();
    while let Some(path) = paths.pop() {
        match std::fs::read_dir(&path) {
            Ok(folder) => paths.extend(folder.map(|entry| entry.unwrap().path())),
            Err(_) => {
                let path = path.strip_prefix(&root).unwrap().display().to_string();
                assert!(used.contains(&path), "{path} belongs to no kernel");
            }
        }
    }
}

params! { struct Good { rows: u32, factor: f32 } }

const PARTS: &[Part] = &[Part::new("planted/scale.wgsl", include_str!("../planted/scale.wgsl"))];
const METAL: &[Part] = &[Part::new("planted/scale.metal", include_str!("../planted/scale.metal"))];

const BINDINGS: &[Binding] = &[read("x", F32), read("bias", U32), read_write("y", Float("Y"))];
// SAFETY: nothing runs it.
const SOURCES: &[Source] = &[Source::wgsl(PARTS), unsafe { Source::msl_unchecked(METAL) }];

/// A sound kernel in both languages; each test below breaks one thing in its declaration, which is
/// the same as in the source.
const GOOD: Kernel = Kernel::new("scale", Good::FIELDS, BINDINGS, SOURCES);

fn outcomes(kernel: &Kernel) -> Vec<(ShaderLanguage, Result<(), String>)> {
    kernel
        .variants()
        .iter()
        .map(|variant| (variant.language, contract::check(kernel, variant)))
        .collect()
}

#[test]
fn the_sound_kernel_passes() {
    for (language, outcome) in outcomes(&GOOD) {
        outcome.unwrap_or_else(|e| panic!("{language:?}: {e}"));
    }
}

#[test]
fn differences_are_said_in_words() {
    params! { struct Swapped { factor: f32, rows: u32 } }
    let said =
        |kernel: &Kernel| outcomes(kernel).into_iter().map(|(_, outcome)| outcome.unwrap_err());
    for error in said(&Kernel::new("scale", Swapped::FIELDS, BINDINGS, SOURCES)) {
        let words =
            "the source has rows: u32, factor: f32; the declaration has factor: f32, rows: u32";
        assert_eq!(error, format!("params: {words}"));
    }
    const SIGNED: &[Binding] = &[read("x", F32), read("bias", I32), read_write("y", Float("Y"))];
    for error in said(&Kernel::new("scale", Good::FIELDS, SIGNED, SOURCES)) {
        let (source, declared) = error.split_once("; the declaration has ").unwrap();
        assert!(source.starts_with("bindings: the source has "), "{error}");
        assert!(source.contains("bias: u32 (read), "), "{error}");
        assert!(declared.contains("bias: i32 (read), "), "{error}");
    }
}

#[test]
fn planted_faults_are_found_in_both_languages() {
    params! { struct Swapped { factor: f32, rows: u32 } }
    params! { struct Retyped { rows: i32, factor: f32 } }
    let bound = |bindings| Kernel::new("scale", Good::FIELDS, bindings, SOURCES);
    let passed = |params| Kernel::new("scale", params, BINDINGS, SOURCES);
    let faults = [
        (
            "swapped bindings",
            bound(const { &[read("bias", U32), read("x", F32), read_write("y", Float("Y"))] }),
        ),
        (
            "a renamed binding",
            bound(const { &[read("x", F32), read("offset", U32), read_write("y", Float("Y"))] }),
        ),
        (
            "a binding of another type",
            bound(const { &[read("x", F32), read("bias", I32), read_write("y", Float("Y"))] }),
        ),
        (
            "an output declared as input",
            bound(const { &[read("x", F32), read("bias", U32), read("y", Float("Y"))] }),
        ),
        ("a missing binding", bound(const { &[read("x", F32), read("bias", U32)] })),
        ("swapped params", passed(Swapped::FIELDS)),
        ("a param of another type", passed(Retyped::FIELDS)),
        ("params that are not declared", passed(&[])),
        ("another entry point", GOOD.entry("scaled")),
        ("a grid that may be folded, for a text that does not know of it", GOOD.flat()),
    ];
    for (fault, kernel) in &faults {
        for (language, outcome) in outcomes(kernel) {
            assert!(outcome.is_err(), "{fault} is not found in {language:?}");
        }
    }
}

/// A binary says what it binds in words of its own.
#[test]
fn planted_faults_are_found_in_binaries() {
    const SWAPPED: &[Binding] = &[
        read("w_scale", F32),
        read("codes", U32),
        read("x", U32),
        read("x_scale", F32),
        read("x_sum", I32),
        read_write("y", Float("Y")),
    ];
    const READ: &[Binding] = &[
        read("codes", U32),
        read("w_scale", F32),
        read("x", U32),
        read("x_scale", F32),
        read("x_sum", I32),
        read("y", Float("Y")),
    ];
    let sound =
        catalog().find(|kernel| kernel.name == "bitlinear_gemm_int8_tensor_cores_8").unwrap();
    assert!(
        outcomes(sound)
            .iter()
            .all(|(language, outcome)| *language == ShaderLanguage::Spirv && outcome.is_ok())
    );
    type Plant = fn(&mut Kernel);
    let faults: [(&str, Plant); 6] = [
        ("swapped bindings", |kernel| kernel.bindings = SWAPPED),
        ("an output declared as input", |kernel| kernel.bindings = READ),
        ("a missing binding", |kernel| kernel.bindings = &kernel.bindings[..5]),
        ("other params", |kernel| kernel.params = Good::FIELDS),
        ("another entry point", |kernel| kernel.entry = "main"),
        ("a grid that may be folded", |kernel| *kernel = kernel.clone().flat()),
    ];
    for (fault, plant) in faults {
        let mut kernel = sound.clone();
        plant(&mut kernel);
        assert!(
            outcomes(&kernel).iter().all(|(_, outcome)| outcome.is_err()),
            "{fault} is not found"
        );
    }
}

/// What the check says of a source in place of the sound one.
fn check_text(
    language: ShaderLanguage,
    text: &str,
    workgroup_bytes: u32,
    flat: bool,
) -> Result<(), String> {
    let parts: &'static [Part] =
        Box::leak(Box::new([Part::new("planted", Box::leak(text.to_owned().into_boxed_str()))]));
    let source =
        // SAFETY: nothing runs it.
        if language == ShaderLanguage::Msl { unsafe { Source::msl_unchecked(parts) } } else { Source::wgsl(parts) };
    let source = source.workgroup_bytes(workgroup_bytes);
    let kernel = Kernel::new("scale", Good::FIELDS, BINDINGS, Box::leak(Box::new([source])));
    let kernel = if flat { kernel.flat() } else { kernel };
    contract::check(&kernel, &kernel.variants()[0])
}

#[test]
fn metal_needs_a_stated_group_size_and_attributes() {
    let sound = METAL[0].source;
    let check = |text: &str| check_text(ShaderLanguage::Msl, text, 0, false);
    check(sound).unwrap();
    let without = |piece: &str| {
        assert!(sound.contains(piece));
        sound.replace(piece, "")
    };
    assert!(
        check(&without("[[max_total_threads_per_threadgroup(THREADS)]]"))
            .unwrap_err()
            .contains("must follow")
    );
    assert!(check(&without("[[buffer(2)]]")).unwrap_err().contains("no attribute"));
    assert!(check(&without("device const float")).is_err());
}

#[test]
fn grids_and_workgroup_memory_match_the_sources() {
    let wgsl = PARTS[0].source;
    let metal = METAL[0].source;
    let folded = [
        (
            ShaderLanguage::Wgsl,
            format!(
                "fn flat_group(i: u32) -> u32 {{ return i; }}\n{}",
                wgsl.replace("if id.x", "if flat_group(id.x)")
            ),
        ),
        (ShaderLanguage::Msl, metal.replace("if (id", "if (flat_group(id)")),
    ];
    for (language, text) in folded {
        assert!(text.contains("flat_group(id"), "{language:?}");
        check_text(language, &text, 0, true).unwrap();
        assert!(
            check_text(language, &text, 0, false).unwrap_err().contains("grid"),
            "{language:?}"
        );
    }
    // A function that is there and not called does not count.
    check_text(
        ShaderLanguage::Wgsl,
        &format!("fn flat_group(i: u32) -> u32 {{ return i; }}\n{wgsl}"),
        0,
        false,
    )
    .unwrap();
    let shared = [
        (
            ShaderLanguage::Wgsl,
            format!("var<workgroup> a: array<vec4<f32>, THREADS>; var<workgroup> b: f32;\n{wgsl}"),
        ),
        (
            ShaderLanguage::Msl,
            metal.replacen(
                "{\n",
                "{\n    threadgroup float4 a[THREADS];\n    threadgroup float b[1 * 1];\n",
                1,
            ),
        ),
    ];
    for (language, text) in shared {
        if language == ShaderLanguage::Msl {
            assert!(text.contains("threadgroup float4"));
        }
        check_text(language, &text, 1024 + 16, false).unwrap();
        assert!(
            check_text(language, &text, 1024, false).unwrap_err().contains("1040 bytes"),
            "{language:?}"
        );
    }
}

#[test]
fn declared_workgroup_memory_is_that_of_the_texts() {
    let mut wrong = Vec::new();
    for (kernel, source) in
        catalog().flat_map(|kernel| kernel.sources().iter().map(move |source| (kernel, source)))
    {
        let variants =
            kernel.variants().into_iter().filter(|variant| variant.language == source.language);
        let most = variants
            .map(|variant| contract::workgroup_bytes(kernel, &variant).unwrap())
            .max()
            .unwrap();
        if most != source.workgroup_bytes {
            wrong.push(format!(
                "{} {:?}: {most} bytes, not {}",
                kernel.name, source.language, source.workgroup_bytes
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How names of kernels begin that have more workgroup memory or threads than are required of a
/// device: taken only where there is as much, by `Capabilities::max_workgroup_bytes` and
/// `max_workgroup_threads`.
const LARGE: [&str; 2] = ["attention_buffered", "norm_bitlinear_block_float_packed_large"];

/// A device that offers this runs every kernel that asks for no feature of its own, but for those
/// that are [`LARGE`].
#[test]
fn required_limits_follow_from_the_catalog() {
    let optional = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP;
    let wgsl = |kernel: &'static Kernel| {
        kernel.variants().into_iter().filter(|variant| variant.language == ShaderLanguage::Wgsl)
    };
    let needs = catalog()
        .filter(|kernel| !LARGE.iter().any(|name| kernel.name.starts_with(name)))
        .flat_map(|kernel| wgsl(kernel).map(|variant| kernel.needs(&variant)));
    let plain =
        needs.filter(|needs| (needs.features - optional - Context::REQUIRED.features).is_empty());
    let all = plain.fold(Needs::NONE, Needs::union);
    assert_eq!(all.features - optional, Context::REQUIRED.features);
    let limits = |needs: Needs| (needs.storage_buffers, needs.threads, needs.workgroup_bytes);
    assert_eq!(limits(all), limits(Context::REQUIRED));
    assert!(
        all.immediate_bytes <= Context::REQUIRED.immediate_bytes,
        "{} bytes of parameters",
        all.immediate_bytes
    );
}
