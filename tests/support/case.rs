//! A case: an op called through its public function on seeded data, and what must come of it.

use crate::{Data, Leeway, Near, block_on, machine::Memory};
use bitnet_wgpu::{
    Context, Element, Encoder, Recording, Result, Shape, Tensor,
    device::Capabilities,
    gpu::Bind,
    internals::{Access, Dispatch, Grid, KernelInternals as _},
    kernel::{Binding, ShaderLanguage},
    tensor::ElementType,
    tuning::TuningKey,
};
use std::collections::HashMap;

type Record = Box<dyn Fn(&mut Recorder) -> Result<()> + Send + Sync>;
type Check = Box<dyn Fn(&[Data], Leeway) -> Result<(), String> + Send + Sync>;
type Reference = Box<dyn Fn() -> Vec<Data> + Send + Sync>;

/// An op on data. Every executor ([`crate::EXECUTORS`]) runs every case.
pub struct Case {
    /// Shapes and options, for messages.
    pub name: String,
    /// Whether there are tensors of `f16`, which not every device has.
    pub f16: bool,
    /// Whether its outputs are compared as bits.
    pub exact: bool,
    /// Whether it is too much work for an emulated GPU.
    pub device_only: bool,
    /// What the device is to be taken for, where that decides between kernels.
    pub restrict: fn(&mut Capabilities),
    record: Record,
    check: Check,
    reference: Option<Reference>,
}

impl Case {
    /// A case that uploads, calls ops and names what to watch in `record`; `check` judges the
    /// contents of what is watched, in that order.
    pub fn new(
        name: String,
        record: impl Fn(&mut Recorder) -> Result<()> + Send + Sync + 'static,
        check: impl Fn(&[Data], Leeway) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let (record, check) = (Box::new(record), Box::new(check));
        Self {
            name,
            f16: false,
            exact: false,
            device_only: false,
            restrict: |_| (),
            record,
            check,
            reference: None,
        }
    }

    /// A case whose outputs are known exactly.
    pub fn exact(
        name: String,
        expected: Vec<Data>,
        record: impl Fn(&mut Recorder) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let check = move |got: &[Data], leeway| {
            let mut pairs = got.iter().zip(&expected).enumerate();
            pairs.try_for_each(|(i, (got, want))| {
                got.check(want, leeway).map_err(|e| format!("output {i}: {e}"))
            })
        };
        Self { exact: true, ..Self::new(name, record, check) }
    }

    /// A case whose only output lies within derived bounds.
    pub fn near(
        name: String,
        expected: Vec<Near>,
        record: impl Fn(&mut Recorder) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, record, move |got, _| got[0].check_near(expected.iter().copied()))
    }

    /// It has tensors of this type.
    pub fn of(self, element: Element) -> Self {
        Self { f16: self.f16 || element == Element::F16, ..self }
    }

    /// Its check is of bits.
    pub fn to_the_bit(self) -> Self {
        Self { exact: true, ..self }
    }

    /// It is too much work for an emulated GPU.
    pub fn device_only(self) -> Self {
        Self { device_only: true, ..self }
    }

    /// It takes the device for less than it is, or for another.
    pub fn on(self, restrict: fn(&mut Capabilities)) -> Self {
        Self { restrict, ..self }
    }

    /// With the kernels of software adapters, on any device: a thread has a row alone and holds
    /// none of it, and products take no workgroup memory.
    pub fn as_on_software(self) -> Self {
        self.on(|c| {
            choose(
                c,
                [
                    (TuningKey::SmallWorkgroupFeatures, 0),
                    (TuningKey::UnrolledColumns, u32::MAX),
                    (TuningKey::RowPerThread, 0),
                    (TuningKey::UntiledOutputs, u32::MAX),
                ],
            )
        })
    }

    /// With those of Apple's GPUs, of which many are in Metal: lanes share a row and hold none of
    /// it.
    pub fn as_on_apple(self) -> Self {
        self.on(|c| {
            choose(
                c,
                [
                    (TuningKey::SmallWorkgroupFeatures, 0),
                    (TuningKey::UnrolledColumns, u32::MAX),
                    (TuningKey::RowPerThread, u32::MAX),
                    (TuningKey::UntiledOutputs, 0),
                ],
            )
        })
    }

    /// With those of GPUs.
    pub fn as_on_gpus(self) -> Self {
        self.on(|c| {
            choose(
                c,
                [
                    (TuningKey::SmallWorkgroupFeatures, 2560),
                    (TuningKey::UnrolledColumns, 0),
                    (TuningKey::RowPerThread, u32::MAX),
                    (TuningKey::UntiledOutputs, 0),
                ],
            )
        })
    }

    /// The case in one of these ways, in turns of `n`; now and then in both.
    pub fn as_on_either(n: usize, make: impl Fn() -> Self) -> Vec<Self> {
        let ways = [Self::as_on_software, Self::as_on_gpus];
        let expected = |way: usize| n.is_multiple_of(3) || way == n % 2;
        (0..2).filter(|&way| expected(way)).map(|way| ways[way](make())).collect()
    }

    /// What the CPU reference makes of the same data, where bounds are for both.
    pub fn reference(self, reference: impl Fn() -> Vec<Data> + Send + Sync + 'static) -> Self {
        Self { reference: Some(Box::new(reference)), ..self }
    }

    /// Records it on a device.
    pub fn record(&self, context: &Context) -> Result<Recorded> {
        let mut recorder = Recorder {
            encoder: context.encoder("case"),
            given: HashMap::new(),
            watched: Vec::new(),
        };
        (self.record)(&mut recorder)?;
        let Recorder { encoder, given, watched } = recorder;
        Ok(Recorded { recording: encoder.finish(), given, watched })
    }

    /// Judges what is watched.
    pub fn check(&self, got: &[Data], leeway: Leeway) -> Result<(), String> {
        (self.check)(got, leeway)
    }

    /// Judges the CPU reference; `None` where it is the oracle itself.
    pub fn check_reference(&self) -> Option<Result<(), String>> {
        self.reference.as_ref().map(|reference| (self.check)(&reference(), Leeway::None))
    }
}

fn choose(capabilities: &mut Capabilities, choices: [(TuningKey, u32); 4]) {
    for (choice, number) in choices {
        capabilities.tuning.set(choice, number).expect("it is in range");
    }
}

/// Where a case is recorded.
pub struct Recorder {
    /// Takes the ops.
    pub encoder: Encoder,
    given: HashMap<usize, Option<Vec<u8>>>,
    watched: Vec<Watched>,
}

impl Recorder {
    /// A tensor with contents that count.
    pub fn upload<T: ElementType>(
        &mut self,
        data: &[T],
        shape: impl Into<Shape>,
    ) -> Result<Tensor<T>> {
        let tensor = self.encoder.context().upload(data, shape)?;
        self.given.insert(tensor.bound().id(), None);
        Ok(tensor)
    }

    /// A tensor that an op must write in full.
    pub fn output<T: ElementType>(&mut self, shape: impl Into<Shape>) -> Result<Tensor<T>> {
        Tensor::uninit(self.encoder.context(), shape)
    }

    /// What a buffer is to hold before the first dispatch, for those that tests cannot upload.
    pub fn fill(&mut self, buffer: &dyn Bind, data: &Data) {
        self.given.insert(buffer.bound().id(), Some(data.bytes().to_vec()));
    }

    /// Has the first `len` elements of a buffer checked.
    pub fn watch(&mut self, buffer: &dyn Bind, len: usize) {
        let bound = buffer.bound();
        self.watched.push(Watched { id: bound.id(), element: bound.element(), len });
    }

    /// Has a whole tensor checked.
    pub fn watch_all<T: ElementType>(&mut self, tensor: &Tensor<T>) {
        self.watch(tensor, tensor.len());
    }
}

/// A buffer whose contents are checked: its number, and how many elements of which type count.
#[derive(Clone, Copy)]
struct Watched {
    id: usize,
    element: Element,
    len: usize,
}

/// A recorded case.
pub struct Recorded {
    /// Its dispatches.
    pub recording: Recording,
    given: HashMap<usize, Option<Vec<u8>>>,
    watched: Vec<Watched>,
}

/// What outputs hold before they are written.
const POISON: u8 = 0xee;

/// Bindings of counters, which are 0 before a dispatch and after it, end so.
const COUNTER: &str = "_count";

impl Recorded {
    /// Replaces the recording by another one on the same buffers.
    pub fn as_recorded(self, recording: Recording) -> Self {
        Self { recording, ..self }
    }

    /// The buffers of all dispatches as they are before the first, by number. What is an output
    /// only holds `POISON`.
    pub fn before(&self) -> Result<Memory> {
        let mut memory = Memory::new();
        for dispatch in self.recording.dispatches() {
            for (binding, id) in dispatch
                .buffers()
                .into_iter()
                .enumerate()
                .filter(|(_, id)| !memory.contains_key(id))
                .collect::<Vec<_>>()
            {
                let mut bytes = block_on(dispatch.read(binding))?;
                let Binding { name, access, .. } = dispatch.kernel().bindings[binding];
                match (self.given.get(&id), access) {
                    (Some(Some(given)), _) => bytes[..given.len()].copy_from_slice(given),
                    (None, Access::ReadWrite) if name.ends_with(COUNTER) => bytes.fill(0),
                    (None, Access::ReadWrite) => bytes.fill(POISON),
                    _ => {}
                }
                memory.insert(id, bytes);
            }
        }
        Ok(memory)
    }

    /// So few workgroups a dimension that the longest grid is folded and hangs over; `None` unless
    /// all kernels can fold theirs.
    pub fn folding(&self, language: ShaderLanguage) -> Option<u32> {
        let groups = self
            .recording
            .dispatches()
            .map(|d| d.kernel().workgroups(language, d.extent(), u32::MAX)[0])
            .max()?;
        (groups > 2 && self.recording.kernels().all(|kernel| kernel.grid == Grid::Flat))
            .then(|| groups.isqrt() as u32 + 1)
    }

    /// Writes `before` to the device.
    pub fn write(&self, before: &Memory) -> Result<()> {
        self.places()
            .into_iter()
            .try_for_each(|(id, (dispatch, binding))| dispatch.write(binding, &before[&id]))
    }

    /// The buffers as they are on the device.
    pub fn read(&self) -> Result<Memory> {
        // All are on their way before the first is waited for.
        let reads: Vec<_> = self
            .places()
            .into_iter()
            .map(|(id, (dispatch, binding))| (id, dispatch.read(binding)))
            .collect();
        reads.into_iter().map(|(id, read)| Ok((id, block_on(read)?))).collect()
    }

    /// The first dispatch that binds a buffer, and as which binding, for every buffer.
    fn places(&self) -> HashMap<usize, (Dispatch<'_>, usize)> {
        let mut places = HashMap::new();
        for dispatch in self.recording.dispatches() {
            for (binding, id) in dispatch.buffers().into_iter().enumerate() {
                places.entry(id).or_insert((dispatch, binding));
            }
        }
        places
    }

    /// What is watched. Inputs that have changed, and bytes beyond an output's end, are errors.
    pub fn watched(&self, before: &Memory, after: &Memory) -> Result<Vec<Data>, String> {
        for dispatch in self.recording.dispatches() {
            for (id, binding) in dispatch.buffers().iter().zip(dispatch.kernel().bindings) {
                let written = |d: Dispatch<'_>| {
                    d.buffers()
                        .iter()
                        .zip(d.kernel().bindings)
                        .any(|(other, b)| other == id && b.access == Access::ReadWrite)
                };
                if before[id] != after[id] && !self.recording.dispatches().any(written) {
                    return Err(format!(
                        "`{}`, an input of {}, is written",
                        binding.name,
                        dispatch.kernel().name
                    ));
                }
                if binding.name.ends_with(COUNTER) && after[id].iter().any(|&byte| byte != 0) {
                    return Err(format!(
                        "`{}` of {} is not 0 again",
                        binding.name,
                        dispatch.kernel().name
                    ));
                }
            }
        }
        let data = |watched: &Watched| {
            let bytes = watched.len * element_bytes(watched.element);
            let empty = Vec::new();
            let (was, is) = (
                before.get(&watched.id).unwrap_or(&empty),
                after.get(&watched.id).unwrap_or(&empty),
            );
            if is.len() < bytes {
                return Err("what is watched is bound to nothing".to_owned());
            }
            if is[bytes..] != was[bytes..] {
                return Err("written beyond the end of an output".to_owned());
            }
            Ok(Data::from_bytes(watched.element, &is[..bytes]))
        };
        self.watched.iter().map(data).collect()
    }
}

fn element_bytes(element: Element) -> usize {
    match element {
        Element::I8 => 1,
        Element::F16 => 2,
        _ => 4,
    }
}
