//! Kernels that are compiled before they are needed, and kept in a folder for the next time.

use bitnet_wgpu::{
    Context, ContextOptions, Tensor,
    model::{GenerateOptions, Model, Sampling, SessionOptions},
    tensor, wgpu,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use support::{block_on, files::Directory, real_model, warnings};

fn open(cache: impl Into<Option<PathBuf>>) -> Context {
    block_on(Context::open(ContextOptions::default().cache(cache.into()))).unwrap()
}

#[test]
fn a_model_that_is_warm_compiles_nothing_more() {
    let model = Model::load(&open(None), real_model()).unwrap();
    let (context, compiled) = (model.context().unwrap(), || model.context().unwrap().compiled_kernels());
    let (cold, options) = (compiled(), SessionOptions::new(3, 200));
    block_on(model.warm_up(options)).unwrap();
    let warm = compiled();
    assert!(warm > cold + 10, "{warm} kernels after {cold}");
    assert_eq!(context.live_memory().iter().filter(|live| &*live.label == "warm-up").count(), 0);

    for tokens in [1, 2, 3, 5, 25, 33, 70] {
        let ids: Vec<u32> = (0..tokens).collect();
        block_on(model.session(options).unwrap().prefill(0, &ids)).unwrap();
        assert_eq!(compiled(), warm, "a prompt of {tokens} tokens");
    }
    let sampled = Sampling::GREEDY.temperature(0.8);
    for sampling in [Sampling::GREEDY, sampled, sampled.top_k(9).top_p(0.9), sampled.repetition_penalty(1.1).presence_penalty(0.1)] {
        let options = GenerateOptions::default().max_tokens(5).ignore_eos(true).sampling(sampling);
        let prompts = ["Once", "Once upon a time there", "A"].map(|text| model.encode_prompt(text).unwrap());
        model.generate_ids(&prompts[1], &options).unwrap().into_iter().for_each(|token| drop(token.unwrap()));
        model.generate_batch_ids(&prompts, &options).unwrap().into_iter().for_each(|token| drop(token.unwrap()));
        assert_eq!(compiled(), warm, "{options:?}");
    }
    block_on(model.warm_up(options)).unwrap();
    assert_eq!(compiled(), warm, "each is compiled once");
    assert!(block_on(model.warm_up(SessionOptions::new(0, 1))).is_err());
    block_on(Model::load_cpu(real_model()).unwrap().warm_up(options)).unwrap();
}

/// Some kernels, and what they give.
fn work(context: &Context) {
    let x = context.upload(&[1.0f32, -2.0, 3.0], [3]).unwrap();
    let mut encoder = context.encoder("work");
    let squares: Tensor<f32> = tensor::mul(&mut encoder, &x, &x).unwrap();
    let sums = tensor::add(&mut encoder, &squares, &x).unwrap();
    encoder.submit().unwrap();
    assert_eq!(block_on(sums.read()).unwrap(), [2.0, 2.0, 12.0]);
}

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> [u8; 8] {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)).to_le_bytes()
}

#[test]
fn compiled_kernels_are_kept_and_what_is_damaged_is_not_used() {
    let directory = Directory::temporary();
    let folder = directory.0.join("kernels");
    let told = |what: &str| {
        let told = warnings(|| work(&open(folder.clone())));
        assert!(told.iter().all(|line| line.contains("the kernel is compiled anew")), "{what}: {told:?}");
        told
    };
    assert!(told("a folder that is not there").is_empty());
    let kept = files(&folder);
    if !open(folder.clone()).device().features().contains(wgpu::Features::PIPELINE_CACHE) {
        assert!(kept.is_empty());
        return eprintln!("this driver gives no compiled kernels");
    }
    assert!(kept.len() >= 2, "{:?}", kept.keys());
    assert!(told("the same again").is_empty());
    assert!(files(&folder) == kept, "written though nothing had changed");

    let paths: Vec<_> = kept.keys().collect();
    let (path, sound, other) = (paths[0], &kept[paths[0]], &kept[paths[1]]);
    let changed = |at: usize| sound.iter().enumerate().map(|(i, &byte)| if i == at { !byte } else { byte }).collect();
    // As it is written, but of what wgpu did not make: so wgpu is given what is there.
    let strange = [&sound[..29], &hash(b"strange"), b"strange"].concat();
    let wrong: [(&str, Vec<u8>); 7] = [
        ("empty", Vec::new()),
        ("cut off", sound[..sound.len() - 1].to_vec()),
        ("longer", [sound, &b"x"[..]].concat()),
        ("of another version", changed(20)),
        ("a bit in its data", changed(sound.len() - 1)),
        ("of another kernel", other.clone()),
        ("not wgpu's", strange),
    ];
    for (what, bytes) in wrong {
        fs::write(path, bytes).unwrap();
        let (told, again) = (told(what), || told("what was written anew"));
        assert!(told.len() == 1 && told[0].contains(&path.display().to_string()), "{what}: {told:?}");
        // A driver may make other bytes of the same kernel: so does NVIDIA's.
        assert!(files(&folder).keys().eq(kept.keys()), "{what}");
        assert!(again().is_empty(), "{what}: it is written anew");
    }
}

#[test]
fn a_folder_that_cannot_be_written_to_is_one_warning() {
    let directory = Directory::temporary();
    let folder = directory.write("file", "no folder").join("kernels");
    let mut caches = false;
    let told = warnings(|| {
        let context = open(folder);
        caches = context.device().features().contains(wgpu::Features::PIPELINE_CACHE);
        work(&context);
    });
    assert_eq!(told.iter().filter(|line| line.contains("compiled kernels are not kept")).count(), usize::from(caches), "{told:?}");
}

#[test]
fn without_a_folder_the_device_is_as_it_was() {
    let context = open(None);
    assert!(!context.device().features().contains(wgpu::Features::PIPELINE_CACHE));
}
