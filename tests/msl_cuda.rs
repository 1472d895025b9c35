//! Writes the Metal kernels as CUDA sources, with all problems and what the CPU makes of them; tests/msl-host/cuda/run asks for it.
#![cfg(target_os = "linux")]

mod metal;

use bitnet_wgpu::{Element, ShaderLanguage, catalog, kernel::Variant};
use metal::{Data, Leeway, Problem, gemv_problem, problems, run::Host};
use msl_host::Order;
use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    fs,
    path::PathBuf,
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

fn symbol(problem: &Problem, variant: &Variant) -> String {
    let floats = variant.floats.iter().map(|(alias, element)| format!("_{alias}_{}", if *element == Element::F16 { "f16" } else { "f32" }));
    format!("msl_{}{}", problem.kernel.name, floats.collect::<String>())
}

#[test]
#[ignore = "writes a folder for tests/msl-host/cuda/run"]
fn write_folder() {
    let folder = PathBuf::from(std::env::var("MSL_CUDA_FOLDER").expect("MSL_CUDA_FOLDER is set by tests/msl-host/cuda/run"));
    let (mut cases, mut blob, mut symbols) = (String::new(), Blob::default(), BTreeSet::new());
    for kernel in catalog().filter(|kernel| kernel.source(ShaderLanguage::Msl).is_some()) {
        let mut host = Host::default();
        let timed =
            TIMED.iter().filter(|_| kernel.entry == "bitlinear_gemv").map(|&(rows, columns)| (true, gemv_problem(kernel, rows, columns)));
        for (timed, problem) in problems(kernel).into_iter().map(|problem| (false, problem)).chain(timed) {
            let variant = problem.variant(ShaderLanguage::Msl, true);
            let symbol = symbol(&problem, &variant);
            // The order in which a warp adds up.
            let made = host.run(&problem, &variant, Order::Forward);
            problem.assert(&made, Leeway::None, "on the CPU");
            let size = kernel.source_for(ShaderLanguage::Msl).workgroup_size;
            let grid = kernel.workgroups(ShaderLanguage::Msl, problem.extent, problem.max_workgroups);
            let numbers = grid.into_iter().chain(size.map(u64::from)).map(|n| format!("{n} ")).collect::<String>();
            writeln!(cases, "case {symbol} {} {numbers}{}", u8::from(timed), problem.case).unwrap();
            let mut buffer = |ty: &str, given: &[u8], expected: &[u8]| {
                writeln!(cases, "buffer {ty} {} {} {}", given.len(), blob.add(given), blob.add(expected)).unwrap();
            };
            if !problem.params.is_empty() {
                buffer("U32", &problem.params, &problem.params);
            }
            for (given, expected) in problem.buffers.iter().zip(&made) {
                buffer(&format!("{:?}", Data::element(given)), given.bytes(), expected.bytes());
            }
            if symbols.insert(symbol.clone()) {
                let text = msl_host::cuda(&kernel.text(&variant), kernel.entry, &symbol).unwrap();
                fs::write(folder.join(format!("kernels/{symbol}.cu")), text).unwrap();
            }
        }
    }
    let includes = symbols.iter().map(|s| format!("namespace text_of_{s} {{\n#include \"kernels/{s}.cu\"\n}}\nusing text_of_{s}::{s};\n"));
    fs::write(folder.join("kernels.inc"), includes.collect::<String>()).unwrap();
    fs::write(folder.join("symbols.inc"), symbols.iter().map(|symbol| format!("KERNEL({symbol})\n")).collect::<String>()).unwrap();
    fs::write(folder.join("cases.txt"), cases).unwrap();
    fs::write(folder.join("data.bin"), blob.bytes).unwrap();
}
