//! Writes the Metal kernels as CUDA sources, with all dispatches of the op cases and what the CPU
//! makes of them; tests/msl-host/cuda/run asks for it.

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Element,
    bitnet::Layout,
    device::Capabilities,
    internals::{Dispatch, KernelInternals as _, Variant},
    kernel::{ShaderLanguage, Type},
};
use msl_host::Order;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    fs,
    path::PathBuf,
};
use support::{
    By, Case, Leeway, Op, context, emulated, floats,
    machine::{Memory, Text},
    ops, rng, ternary,
};

/// The layers of a 2B model, rows × columns: q + k + v, o, gate + up, down.
const TIMED: [(usize, usize); 4] = [(3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912)];

/// Bytes, each buffer's once.
#[derive(Default)]
struct Blob {
    bytes: Vec<u8>,
    known: HashMap<Vec<u8>, usize>,
}

impl Blob {
    fn add(&mut self, bytes: &[u8]) -> usize {
        *self.known.entry(bytes.to_vec()).or_insert_with(|| {
            let at = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
            at
        })
    }
}

/// What the folder is made of.
#[derive(Default)]
struct Folder {
    cases: String,
    known: BTreeSet<String>,
    blob: Blob,
    /// CUDA sources by their symbols.
    sources: BTreeMap<String, String>,
}

impl Folder {
    /// Adds a dispatch that makes `after` of `before`, unless it is there already.
    fn add(
        &mut self,
        dispatch: &Dispatch<'_>,
        limit: u32,
        before: &Memory,
        after: &Memory,
        timed: bool,
        name: &str,
    ) {
        let kernel = dispatch.kernel();
        let variant = Variant {
            language: ShaderLanguage::Msl,
            subgroups: true,
            fused: true,
            floats: dispatch.floats().to_vec(),
        };
        let float =
            |(alias, element): &(&str, Element)| format!("_{alias}_{element:?}").to_lowercase();
        let symbol =
            format!("msl_{}{}", kernel.name, variant.floats.iter().map(float).collect::<String>());
        let size = kernel.source_for(ShaderLanguage::Msl).workgroup_size.map(u64::from);
        let numbers: String = kernel
            .workgroups(ShaderLanguage::Msl, dispatch.extent(), limit)
            .iter()
            .chain(&size)
            .map(|n| format!("{n} "))
            .collect();
        let mut text = String::new();
        let mut buffer = |ty: &str, given: &[u8], expected: &[u8]| {
            writeln!(
                text,
                "buffer {ty} {} {} {}",
                given.len(),
                self.blob.add(given),
                self.blob.add(expected)
            )
            .unwrap();
        };
        if !dispatch.params().is_empty() {
            buffer("U32", dispatch.params(), dispatch.params());
        }
        for (binding, id) in kernel.bindings.iter().zip(dispatch.buffers()) {
            let ty = match binding.ty {
                Type::U32 => Element::U32,
                Type::I32 => Element::I32,
                Type::F32 => Element::F32,
                Type::Float(alias) | Type::Bits(alias) => {
                    dispatch
                        .floats()
                        .iter()
                        .find(|(known, _)| *known == alias)
                        .expect("it is bound")
                        .1
                }
                other => panic!("{other:?} has no counterpart in CUDA"),
            };
            buffer(&format!("{ty:?}"), &before[&id], &after[&id]);
        }
        let head = format!("case {symbol} {} {numbers}", u8::from(timed));
        if self.known.insert(format!("{head}{text}")) {
            write!(self.cases, "{head}{}: {name}\n{text}", kernel.name).unwrap();
        }
        self.sources.entry(symbol.clone()).or_insert_with(|| {
            msl_host::cuda(&kernel.joined_source(&variant), kernel.entry, &symbol).unwrap()
        });
    }

    /// Adds the dispatches of a case that have Metal sources, as the CPU runs them, in the order in
    /// which a warp adds up.
    fn add_case(&mut self, case: &Case, timed: bool) {
        let recorded = case.record(&context().restricted(case.restrict)).unwrap();
        let (before, limit) =
            (recorded.before().unwrap(), recorded.folding(ShaderLanguage::Msl).unwrap_or(65_535));
        let mut memory = before.clone();
        for dispatch in recorded.recording.dispatches() {
            let given = memory.clone();
            emulated::run(&dispatch, &mut memory, Text::Metal, Order::Forward, limit).unwrap();
            if dispatch.kernel().source(ShaderLanguage::Msl).is_some() {
                let timed = timed && dispatch.kernel().entry == "bitlinear_gemv";
                self.add(&dispatch, limit, &given, &memory, timed, &case.name);
            }
        }
        case.check(&recorded.watched(&before, &memory).unwrap(), Leeway::None).unwrap();
    }
}

/// One token through a layer, for timing.
fn layer(rows: usize, columns: usize, restrict: fn(&mut Capabilities)) -> Case {
    let (x, w) = (floats(&mut rng(1), columns, 3.0), ternary(&mut rng(2), rows, columns));
    Case::new(
        format!("1 × {rows} × {columns}"),
        move |r| {
            let (x, w) = (r.upload(&x, [1, columns])?, w.upload(r.encoder.context())?);
            let xq = support::quantize_as(&mut r.encoder, &x, Layout::F16)?;
            BitLinear::new(&w).forward(&mut r.encoder, &xq).map(drop)
        },
        |_, _| Ok(()),
    )
    .on(restrict)
}

#[test]
#[ignore = "writes a folder for tests/msl-host/cuda/run"]
fn write_folder() {
    let folder = PathBuf::from(
        std::env::var("MSL_CUDA_FOLDER")
            .expect("MSL_CUDA_FOLDER is set by tests/msl-host/cuda/run"),
    );
    let mut made = Folder::default();
    ops()
        .iter()
        .filter(|op| !matches!(op.by, By::Device | By::TensorCores))
        .flat_map(Op::cases)
        .filter(|case| !case.device_only)
        .for_each(|case| made.add_case(case, false));
    for (rows, columns) in TIMED {
        made.add_case(&layer(rows, columns, |c| (c.software, c.apple) = (false, true)), true);
        made.add_case(&layer(rows, columns, |c| c.f16_subnormals = false), true);
    }
    let symbols = || made.sources.keys();
    let include = |s: &String| {
        format!(
            "namespace text_of_{s} {{\n#include \"kernels/{s}.cu\"\n}}\nusing text_of_{s}::{s};\n"
        )
    };
    made.sources.iter().for_each(|(symbol, text)| {
        fs::write(folder.join(format!("kernels/{symbol}.cu")), text).unwrap()
    });
    fs::write(folder.join("kernels.inc"), symbols().map(include).collect::<String>()).unwrap();
    fs::write(
        folder.join("symbols.inc"),
        symbols().map(|symbol| format!("KERNEL({symbol})\n")).collect::<String>(),
    )
    .unwrap();
    fs::write(folder.join("cases.txt"), made.cases).unwrap();
    fs::write(folder.join("data.bin"), made.blob.bytes).unwrap();
}
