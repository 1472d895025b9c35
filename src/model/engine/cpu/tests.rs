//! Whole models do not depend on the processor.

use super::*;
use crate::model::load::files::{self, ModelFiles};

/// Of each kind of layer, norm, gate, table and activation. (The working directory of tests is
/// the package.)
const MODELS: [&str; 10] = [
    "assets/tales-22m",
    "tests/data/models/odd",
    "tests/data/models/newer",
    "tests/data/models/llama",
    "tests/data/models/trilm",
    "tests/data/models/normed",
    "tests/data/models/gemma3",
    "tests/data/models/qwen3_moe",
    "tests/data/models/maple",
    "tests/data/models/qwen35",
];

fn open(path: &str, threads: Option<usize>) -> CpuModel {
    let files = ModelFiles::open(path).unwrap();
    let (config, file) = (files::config(&*files.file).unwrap(), &*files.file);
    let layers = (0..config.layers).map(|layer| HostLayer::read(file, layer));
    CpuModel::new(
        config.clone(),
        HostEnds::read(file, false).unwrap(),
        layers,
        threads.map_or_else(Threads::default, |count| Threads::new(count).unwrap()),
    )
    .unwrap()
}

/// The bits of logits: of a prompt that kernels for many tokens take, and of one token of each
/// of two sequences after it.
fn computed(model: &Arc<CpuModel>) -> Vec<u32> {
    let ids: Vec<u32> = (0..41).map(|i| i * i * 7 % model.config.vocab as u32).collect();
    let mut session = model.clone().session(SessionOptions::new(2, 64)).unwrap();
    let mut logits = pollster::block_on(session.extend(&[0], &ids, ids.len()).unwrap()).unwrap();
    logits.extend(pollster::block_on(session.extend(&[1], &ids[..9], 9).unwrap()).unwrap());
    logits.extend(pollster::block_on(session.extend(&[0, 1], &ids[..2], 1).unwrap()).unwrap());
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Prints those that this processor lacks: whoever reads the log sees what was not run.
#[test]
fn a_model_does_not_depend_on_instruction_sets() {
    for path in MODELS {
        let mut model = Arc::new(open(path, None));
        let expected = computed(&model);
        for kind in Isa::missing() {
            println!("NOT RUN: {path} with {kind:?}, which this processor lacks");
        }
        for isa in Isa::all() {
            Arc::get_mut(&mut model).unwrap().isa = isa;
            assert!(computed(&model) == expected, "{path} with {isa:?}");
            println!("whole model: {path} with {:?}", isa.kind());
        }
    }
}

#[test]
fn a_model_does_not_depend_on_threads() {
    for path in MODELS {
        let [one, two, three] = [1, 2, 3].map(|count| {
            let model = open(path, Some(count));
            assert_eq!(model.threads.run(rayon::current_num_threads), count);
            computed(&Arc::new(model))
        });
        assert!(one == two && two == three, "{path}");
    }
}
