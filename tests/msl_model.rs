//! Whole models with every kernel in Metal, executed on the CPU: a recorded prompt is taken dispatch by dispatch, and its logits are compared with
//! transformers' and with those of the device's WGSL.
#![cfg(target_os = "linux")]

use bitnet_wgpu::{Dispatch, ShaderLanguage, bytemuck, kernel::Variant, model::Model};
use msl_host::{Order, Program};
use std::{collections::HashMap, path::Path};
use support::{Golden, block_on, context};

/// Metal texts compiled for the CPU, and the contents of a recording's buffers.
#[derive(Default)]
struct Machine {
    programs: HashMap<(usize, Variant), Program>,
    memory: HashMap<usize, Vec<u8>>,
}

impl Machine {
    fn run(&mut self, dispatch: &Dispatch<'_>) {
        let (kernel, language) = (dispatch.kernel(), ShaderLanguage::Msl);
        assert!(kernel.source(ShaderLanguage::Msl).is_some(), "{} has no Metal text", kernel.name);
        let variant = Variant { language, subgroups: true, floats: dispatch.floats().to_vec() };
        let key = (std::ptr::from_ref(kernel).addr(), variant.clone());
        let program = self.programs.entry(key).or_insert_with(|| {
            let program = Program::compile(&kernel.text(&variant), kernel.entry, kernel.source_for(language).workgroup_size);
            program.unwrap_or_else(|e| panic!("{}: {e}", kernel.name))
        });
        let names = dispatch.buffers();
        let mut buffers = vec![dispatch.params().to_vec()];
        buffers.extend(names.iter().map(|name| self.memory[name].clone()));
        let grid = kernel.workgroups(language, dispatch.extent(), 65_535).map(|n| u32::try_from(n).unwrap());
        program.dispatch(&mut buffers, grid, Order::Random(1)).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
        self.memory.extend(names.into_iter().zip(buffers.into_iter().skip(1)));
    }
}

/// The last logits of a prompt, by Metal on the CPU and by WGSL on the device.
fn logits(directory: &Path, ids: &[u32]) -> [Vec<f32>; 2] {
    // Kernels that are meant for processors that play a GPU have no Metal text.
    let context = context().restricted(|c| c.software = false);
    let model = Model::load(&context, directory).unwrap();
    let (recording, logits) = model.record_prompt(ids).unwrap();
    let mut machine = Machine::default();
    for dispatch in recording.dispatches() {
        for (binding, name) in dispatch.buffers().into_iter().enumerate() {
            machine.memory.entry(name).or_insert_with(|| block_on(dispatch.read(binding)).unwrap());
        }
    }
    let dispatches: Vec<_> = recording.dispatches().collect();
    dispatches.iter().for_each(|dispatch| machine.run(dispatch));
    recording.submit().unwrap().wait().unwrap();
    let last = dispatches.last().unwrap().buffers().pop().unwrap();
    let by_metal = bytemuck::pod_collect_to_vec(&machine.memory[&last]);
    [by_metal[..logits.len()].to_vec(), block_on(logits.read()).unwrap()]
}

fn check(directory: &Path, golden: &str, prompt: usize, tolerance: f32) {
    let golden = Golden::open(directory.join(golden));
    let ids = golden.ids(&format!("prompt{prompt}.ids"));
    let wanted = golden.floats(&format!("prompt{prompt}.last_logits"));
    for (whose, got) in ["Metal on the CPU", "WGSL on the device"].into_iter().zip(logits(directory, &ids)) {
        let off = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{}, {} tokens: {whose} is {off:.1e} off", directory.display(), ids.len());
        assert!(got.len() == wanted.len() && off < tolerance, "{}: {whose} is {off} off", directory.display());
    }
}

/// Prompts of 1 and 7 tokens, by GEMV, and of 40, by GEMM on emulated matrix units.
#[test]
fn small_models_equal_transformers() {
    for name in ["newer", "llama"] {
        for prompt in 0..3 {
            check(&support::data("models").join(name), "golden.safetensors", prompt, 2e-4);
        }
    }
}

/// A prompt for which two correct implementations were 3e-6 apart, and one with noise in its last bits 0.1.
#[test]
fn a_real_model_equals_transformers() {
    check(&support::repository("assets/tales-22m"), "golden/golden.safetensors", 4, 0.2);
}
