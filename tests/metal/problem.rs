//! A kernel, data for it, and what it must make of them.

use super::{Data, Leeway};
use bitnet_wgpu::{
    Bind, Element, Encoder, Kernel, Result, ShaderLanguage, bytemuck,
    kernel::{Access, Params, Type, Variant},
};

/// Records a dispatch with parameters of the type that the bytes were made of.
pub type Dispatch = fn(&mut Encoder, &'static Kernel, &[u8], &[&dyn Bind], [usize; 3]) -> Result<()>;

/// Judges the contents of all bindings after a run.
pub type Judge = Box<dyn Fn(&[Data], Leeway) -> Result<(), String>>;

pub struct Problem {
    pub kernel: &'static Kernel,
    /// For messages.
    pub case: String,
    pub params: Vec<u8>,
    pub dispatch: Dispatch,
    /// In binding order; outputs hold what must not stay, or what is updated.
    pub buffers: Vec<Data>,
    pub extent: [usize; 3],
    /// The longest grid.
    pub max_workgroups: u32,
    pub judge: Judge,
}

impl Problem {
    /// A problem whose outputs are known to the bit. `outputs` are the bindings that the kernel writes, in order.
    pub fn exact<P: Params>(
        kernel: &'static Kernel,
        case: String,
        params: P,
        inputs: Vec<Data>,
        outputs: Vec<Data>,
        extent: [usize; 3],
    ) -> Self {
        let wanted = outputs.clone();
        let judge = move |got: &[Data], leeway| {
            let mut written = got[got.len() - wanted.len()..].iter().zip(&wanted).enumerate();
            written.try_for_each(|(i, (got, want))| got.check(want, leeway).map_err(|e| format!("output {i}: {e}")))
        };
        Self::new(kernel, case, params, inputs, outputs, extent, Box::new(judge))
    }

    /// A problem with a judge of its own; of `outputs`, only types and lengths count.
    pub fn new<P: Params>(
        kernel: &'static Kernel,
        case: String,
        params: P,
        inputs: Vec<Data>,
        outputs: Vec<Data>,
        extent: [usize; 3],
        judge: Judge,
    ) -> Self {
        let is_output = |i: usize| kernel.bindings[i].access == Access::ReadWrite;
        assert!((0..kernel.bindings.len()).all(|i| is_output(i) == (i >= inputs.len())), "{}: outputs come last", kernel.name);
        let garbage = outputs.iter().map(|output| output.with_bytes(&vec![0xee; output.bytes().len()]));
        Self::updating(kernel, case, params, inputs.into_iter().chain(garbage).collect(), extent, judge)
    }

    /// A problem whose outputs begin as something that counts: `buffers` are all bindings, in order, as they are before.
    pub fn updating<P: Params>(
        kernel: &'static Kernel,
        case: String,
        params: P,
        buffers: Vec<Data>,
        extent: [usize; 3],
        judge: Judge,
    ) -> Self {
        assert_eq!(kernel.bindings.len(), buffers.len(), "{}: a buffer a binding", kernel.name);
        Self {
            kernel,
            case: format!("{}: {case}", kernel.name),
            params: bytemuck::bytes_of(&params).to_vec(),
            dispatch: |encoder, kernel, params, bindings, extent| {
                encoder.dispatch(kernel, &bytemuck::pod_read_unaligned::<P>(params), bindings, extent)
            },
            buffers,
            extent,
            max_workgroups: 65_535,
            judge,
        }
    }

    /// The same on a device that allows so short a grid only that this one must be folded, and hangs over.
    pub fn folded(self) -> Self {
        let groups = self.extent[0].div_ceil(self.kernel.source_for(ShaderLanguage::Wgsl).tile[0] as usize);
        let max_workgroups = groups.isqrt() as u32 + 1;
        Self { max_workgroups, case: format!("{}, grid folded at {max_workgroups}", self.case), ..self }
    }

    /// How many threadgroups its Metal is run by.
    pub fn threadgroups(&self) -> usize {
        self.kernel.workgroups(ShaderLanguage::Msl, self.extent, self.max_workgroups).iter().product::<u64>() as usize
    }

    /// The variant of the kernel that takes these data.
    pub fn variant(&self, language: ShaderLanguage, subgroups: bool) -> Variant {
        let mut floats: Vec<(&'static str, Element)> = Vec::new();
        for (binding, data) in self.kernel.bindings.iter().zip(&self.buffers) {
            if let Type::Float(alias) = binding.ty
                && !floats.iter().any(|(known, _)| *known == alias)
            {
                floats.push((alias, data.element()));
            }
        }
        Variant { language, subgroups, floats }
    }

    /// Panics unless `got` is what the kernel must write.
    pub fn assert(&self, got: &[Data], leeway: Leeway, how: &str) {
        for (i, (before, after)) in self.buffers.iter().zip(got).enumerate() {
            let untouched = self.kernel.bindings[i].access == Access::ReadWrite || before.bytes() == after.bytes();
            assert!(untouched, "{}, {how}: input {i} is written", self.case);
        }
        if let Err(error) = (self.judge)(got, leeway) {
            panic!("{}, {how}: {error}", self.case);
        }
    }
}
