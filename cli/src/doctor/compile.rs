//! Compiles every variant of every kernel, by the compiler that programs on this system have at run
//! time.

use bitnet_wgpu::{
    Context, Element, Error, ErrorKind, Kernel,
    device::Capabilities,
    internals::{KernelInternals as _, Variant},
    kernel::{KernelRef, ShaderLanguage},
};
use indicatif::ProgressBar;
use rayon::prelude::*;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What came of the kernels.
#[derive(Debug, Default)]
pub struct Compiled {
    /// Variants that compile, by language.
    pub sound: BTreeMap<String, usize>,
    /// Variants that this device cannot run, and why.
    pub not_here: Vec<Refused>,
    /// Variants that do not compile, and what the compiler says.
    pub failures: Vec<Refused>,
    pub kernels: usize,
    pub time: Duration,
}

/// A variant and what speaks against it.
#[derive(Debug)]
pub struct Refused {
    pub kernel: &'static str,
    pub language: String,
    pub variant: String,
    pub why: String,
}

impl Compiled {
    /// Number of variants that were handed to the compiler.
    pub fn tried(&self) -> usize {
        self.sound.values().sum::<usize>() + self.failures.len()
    }
}

/// Compiles on all cores, and counts variants on the bar.
pub fn all(context: &Context, kernels: &[KernelRef], bar: &ProgressBar) -> Compiled {
    let start = Instant::now();
    let variants: Vec<(&KernelRef, Variant)> = kernels
        .iter()
        .flat_map(|kernel| {
            variants(kernel, context.capabilities())
                .into_iter()
                .map(move |variant| (kernel, variant))
        })
        .collect();
    bar.set_length(variants.len() as u64);
    let one = |(kernel, variant): &(&KernelRef, Variant)| {
        let result = compile(context, kernel, variant);
        bar.inc(1);
        result
    };
    let results: Vec<_> = variants.par_iter().map(one).collect();
    let mut compiled =
        Compiled { kernels: kernels.len(), time: start.elapsed(), ..Compiled::default() };
    for ((kernel, variant), result) in variants.iter().zip(results) {
        let refused = |why| Refused {
            kernel: kernel.name,
            language: variant.language.to_string(),
            variant: words(kernel, variant),
            why,
        };
        match result {
            Ok(()) => *compiled.sound.entry(variant.language.to_string()).or_default() += 1,
            Err((ErrorKind::Unsupported, why)) => compiled.not_here.push(refused(why)),
            Err((_, why)) => compiled.failures.push(refused(why)),
        }
    }
    compiled
}

/// The variants of the catalog, and that which this device is given, which may be between them:
/// with subgroup operations and without fused multiply-adds.
fn variants(kernel: &Kernel, capabilities: &Capabilities) -> Vec<Variant> {
    let mut all = kernel.variants();
    for i in 0..all.len() {
        let mut own = all[i].clone();
        own.subgroups = capabilities.subgroups
            || own.language != ShaderLanguage::Wgsl
            || !kernel.uses_subgroups();
        own.fused = capabilities.fused_multiply_add || !kernel.uses_fused(own.language);
        if !all.contains(&own) {
            all.push(own);
        }
    }
    all
}

fn compile(
    context: &Context,
    kernel: &KernelRef,
    variant: &Variant,
) -> Result<(), (ErrorKind, String)> {
    context.compile_kernel(kernel.clone(), variant).map_err(|error| match error {
        Error::Shader { message, .. } => (ErrorKind::Shader, message),
        other => (other.kind(), other.to_string()),
    })
}

/// What a variant is, beside its kernel and language; empty where there is only one.
fn words(kernel: &Kernel, variant: &Variant) -> String {
    let element = |(alias, element): &(&str, Element)| {
        let ty = match element {
            Element::F16 => "f16",
            Element::U32 => "u32",
            _ => "f32",
        };
        format!("{alias} = {ty}")
    };
    let mut words: Vec<String> = variant.floats.iter().map(element).collect();
    if !variant.subgroups {
        words.push("no subgroup operations".into());
    }
    if !variant.fused && kernel.uses_fused(variant.language) {
        words.push("no fused multiply-adds".into());
    }
    words.join(", ")
}
