//! Where a problem runs: Metal text on the CPU, and WGSL on the device under test.

use super::{Data, Problem};
use bitnet_wgpu::{Bind, Context, ElementType, ShaderLanguage, Tensor, f16, kernel::Variant};
use msl_host::{Order, Program};
use std::collections::HashMap;

/// Metal promises none of these. For sanitizers, which see more than the results, one will do.
pub fn orders() -> &'static [Order] {
    const ALL: [Order; 5] = [Order::Random(1), Order::Forward, Order::Reverse, Order::Random(2), Order::Random(3)];
    if threadgroups_limit() == usize::MAX { &ALL } else { &ALL[..1] }
}

/// The most threadgroups of a problem: for runs under sanitizers, which take their time.
pub fn threadgroups_limit() -> usize {
    std::env::var("MSL_TEST_THREADGROUPS").map_or(usize::MAX, |limit| limit.parse().expect("MSL_TEST_THREADGROUPS is a number"))
}

/// Metal texts that are compiled for the CPU.
#[derive(Default)]
pub struct Host(HashMap<Variant, Program>);

impl Host {
    /// Runs a problem on the text of a variant of its kernel: Metal, or naga's Metal of WGSL.
    pub fn run(&mut self, problem: &Problem, variant: &Variant, order: Order) -> Vec<Data> {
        let (kernel, language) = (problem.kernel, variant.language);
        let program = self.0.entry(variant.clone()).or_insert_with(|| {
            let (text, entry) = match language {
                ShaderLanguage::Msl => (kernel.text(variant), kernel.entry.to_owned()),
                _ => super::naga_metal(kernel, variant),
            };
            let program = Program::compile(&text, &entry, kernel.source_for(language).workgroup_size);
            program.unwrap_or_else(|e| panic!("{} {variant:?}: {e}", kernel.name))
        });
        // The parameters, if any, then the bindings; naga's text asks for their sizes as well.
        let mut buffers: Vec<_> = problem.buffers.iter().map(|data| data.bytes().to_vec()).collect();
        let first = usize::from(!problem.params.is_empty());
        if first == 1 {
            buffers.insert(0, problem.params.clone());
        }
        if language == ShaderLanguage::Wgsl {
            buffers.push(problem.buffers.iter().flat_map(|data| (data.bytes().len() as u32).to_ne_bytes()).collect());
        }
        if !problem.extent.contains(&0) {
            let grid = kernel.workgroups(language, problem.extent, problem.max_workgroups).map(|n| u32::try_from(n).unwrap());
            let outcome = program.dispatch(&mut buffers, grid, order);
            outcome.unwrap_or_else(|e| panic!("{}, {variant:?}, {order:?}: {e}", problem.case));
        }
        problem.buffers.iter().zip(&buffers[first..]).map(|(data, bytes)| data.with_bytes(bytes)).collect()
    }
}

/// Runs a problem's WGSL on a device.
pub fn on_device(context: &Context, problem: &Problem) -> Vec<Data> {
    let context = context.restricted(|c| c.max_workgroups = problem.max_workgroups);
    let tensors: Vec<_> = problem.buffers.iter().map(|data| Bound::upload(&context, data)).collect();
    let bindings: Vec<&dyn Bind> = tensors.iter().map(Bound::bind).collect();
    let mut encoder = context.encoder("problem");
    (problem.dispatch)(&mut encoder, problem.kernel, &problem.params, &bindings, problem.extent).unwrap();
    let _ = encoder.submit().unwrap();
    tensors.iter().map(Bound::read).collect()
}

enum Bound {
    U32(Tensor<u32>),
    I32(Tensor<i32>),
    F32(Tensor<f32>),
    F16(Tensor<f16>),
}

impl Bound {
    fn upload(context: &Context, data: &Data) -> Self {
        fn tensor<T: ElementType>(context: &Context, data: &[T]) -> Tensor<T> {
            context.upload(data, [data.len()]).unwrap()
        }
        match data {
            Data::U32(data) => Self::U32(tensor(context, data)),
            Data::I32(data) => Self::I32(tensor(context, data)),
            Data::F32(data) => Self::F32(tensor(context, data)),
            Data::F16(data) => Self::F16(tensor(context, data)),
        }
    }

    fn bind(&self) -> &dyn Bind {
        match self {
            Self::U32(tensor) => tensor,
            Self::I32(tensor) => tensor,
            Self::F32(tensor) => tensor,
            Self::F16(tensor) => tensor,
        }
    }

    fn read(&self) -> Data {
        match self {
            Self::U32(tensor) => Data::U32(pollster::block_on(tensor.read()).unwrap()),
            Self::I32(tensor) => Data::I32(pollster::block_on(tensor.read()).unwrap()),
            Self::F32(tensor) => Data::F32(pollster::block_on(tensor.read()).unwrap()),
            Self::F16(tensor) => Data::F16(pollster::block_on(tensor.read()).unwrap()),
        }
    }
}
