//! Kernels that are compiled before they are needed, and kept in a folder for the next time; and
//! what was measured, which is kept there too.

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, ContextOptions, ErrorKind, Tensor,
    bitnet::{self, Layout},
    internals,
    model::{GenerateOptions, Model, Sampling, SessionOptions},
    tensor,
    tuning::{Tuning, TuningKey},
    wgpu,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use support::{block_on, files::Directory, own_process, real_model, warnings};

fn open(cache: impl Into<Option<PathBuf>>) -> Context {
    block_on(Context::open(ContextOptions::default().kernel_cache(cache.into()))).unwrap()
}

#[test]
fn a_model_that_is_warm_compiles_nothing_more() {
    let model = Model::builder(real_model()).device(&open(None)).build().unwrap();
    let (context, compiled) =
        (model.context().unwrap(), || model.context().unwrap().compiled_kernels());
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
    for sampling in [
        Sampling::GREEDY,
        sampled,
        sampled.top_k(9).top_p(0.9),
        sampled.repetition_penalty(1.1).presence_penalty(0.1),
    ] {
        let options = GenerateOptions::default().max_tokens(5).ignore_eos(true).sampling(sampling);
        let prompts =
            ["Once", "Once upon a time there", "A"].map(|text| model.encode_prompt(text).unwrap());
        model
            .generate_ids(&prompts[1], &options)
            .unwrap()
            .into_iter()
            .for_each(|token| drop(token.unwrap()));
        block_on(model.generate_batch_ids(&prompts, &options)).unwrap();
        assert_eq!(compiled(), warm, "{options:?}");
    }
    block_on(model.warm_up(options)).unwrap();
    assert_eq!(compiled(), warm, "each is compiled once");
    assert!(block_on(model.warm_up(SessionOptions::new(0, 1))).is_err());
    block_on(Model::builder(real_model()).cpu().build().unwrap().warm_up(options)).unwrap();
}

/// Some kernels, and what they give.
fn work(context: &Context) {
    let x = context.upload(&[1.0f32, -2.0, 3.0], [3]).unwrap();
    let mut encoder = context.encoder("work");
    let squares: Tensor<f32> = tensor::mul(&x, &x).forward(&mut encoder).unwrap();
    let sums = tensor::add(&squares, &x).forward(&mut encoder).unwrap();
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
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
        .to_le_bytes()
}

#[test]
fn compiled_kernels_are_cached_and_damage_is_ignored() {
    let directory = Directory::temporary();
    let folder = directory.0.join("kernels");
    let told = |what: &str| {
        let told = warnings(|| work(&open(folder.clone())));
        assert!(
            told.iter().all(|line| line.contains("the kernel is compiled again")),
            "{what}: {told:?}"
        );
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
    let changed = |at: usize| {
        sound.iter().enumerate().map(|(i, &byte)| if i == at { !byte } else { byte }).collect()
    };
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
        assert!(
            told.len() == 1 && told[0].contains(&path.display().to_string()),
            "{what}: {told:?}"
        );
        // A driver may make other bytes of the same kernel: so does NVIDIA's.
        assert!(files(&folder).keys().eq(kept.keys()), "{what}");
        assert!(again().is_empty(), "{what}: it is written anew");
    }
}

#[test]
fn a_read_only_folder_is_one_warning() {
    let directory = Directory::temporary();
    let folder = directory.write("file", "no folder").join("kernels");
    let mut caches = false;
    let told = warnings(|| {
        let context = open(folder);
        caches = context.device().features().contains(wgpu::Features::PIPELINE_CACHE);
        work(&context);
    });
    assert_eq!(
        told.iter().filter(|line| line.contains("compiled kernels are not cached")).count(),
        usize::from(caches),
        "{told:?}"
    );
}

#[test]
#[cfg(unix)]
fn folders_writable_by_others_are_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = Directory::temporary();
    let folder = directory.0.join("kernels");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let mut context = None;
    let told = warnings(|| work(context.insert(open(folder.clone()))));
    let context = context.unwrap();
    let caches = context.device().features().contains(wgpu::Features::PIPELINE_CACHE);
    let kernels = told.iter().filter(|line| line.contains("compiled kernels are not cached"));
    assert_eq!(kernels.count(), usize::from(caches), "{told:?}");
    assert!(told.iter().all(|line| line.contains("chmod go-w")), "{told:?}");
    assert!(
        context.save_tuning(&another(&context)).unwrap_err().to_string().contains("chmod go-w")
    );
    assert!(files(&folder).is_empty());
}

/// No file may have a byte more, and what is written is an error then, as where a disk is full.
#[test]
#[cfg(unix)]
fn a_full_disk_keeps_old_cache_files() {
    const FOLDER: &str = "BITNET_TEST_FULL_DISK";
    const NAME: &str = "a_full_disk_keeps_old_cache_files";
    if let Some(folder) = std::env::var_os(FOLDER) {
        let context = open(PathBuf::from(folder));
        let told = warnings(|| work(&context));
        let caches = context.device().features().contains(wgpu::Features::PIPELINE_CACHE);
        assert_eq!(
            told.iter().filter(|line| line.contains("compiled kernels are not cached")).count(),
            usize::from(caches),
            "{told:?}"
        );
        assert_eq!(context.save_tuning(&another(&context)).unwrap_err().kind(), ErrorKind::Io);
        return;
    }
    let directory = Directory::temporary();
    let folder = directory.0.join("cache");
    let context = open(folder.clone());
    let kept = context.save_tuning(&another(&context)).unwrap();
    let before = files(&folder);
    assert!(before.contains_key(&kept));
    let mut limited = own_process("trap '' XFSZ; ulimit -f 0;", module_path!(), NAME);
    let output = limited.env(FOLDER, &folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(files(&folder) == before, "{:?}", files(&folder).keys());
}

#[test]
fn without_a_folder_there_is_no_pipeline_cache() {
    let context = open(None);
    assert!(!context.device().features().contains(wgpu::Features::PIPELINE_CACHE));
}

/// The folder's file of what was measured.
fn tuning_file(folder: &Path) -> (PathBuf, Vec<u8>) {
    let mut kept = files(folder)
        .into_iter()
        .filter(|(path, _)| path.extension().is_none_or(|extension| extension != "kernel"));
    let found = kept.next().expect("there is one");
    assert!(
        found.0.extension().is_some_and(|extension| extension == "tuning") && kept.next().is_none(),
        "and nothing else"
    );
    found
}

/// Every choice is another than the table's.
fn another(context: &Context) -> Tuning {
    let mut tuning = Tuning::default();
    for &choice in TuningKey::ALL {
        let now = context.capabilities().tuned(choice) as u32;
        tuning.set(choice, if now == *choice.range().start() { now + 1 } else { now - 1 }).unwrap();
    }
    tuning
}

#[test]
fn what_was_measured_is_kept_and_chosen_by() {
    let directory = Directory::temporary();
    let folder = directory.0.join("kernels");
    let context = open(folder.clone());
    assert!(context.capabilities().tuning.is_empty());
    let tuning = another(&context);
    let path = context.save_tuning(&tuning).unwrap();
    assert_eq!(tuning_file(&folder).0, path);
    assert!(context.capabilities().tuning.is_empty(), "a context stays as it is");

    let told = warnings(|| {
        let tuned = open(folder.clone());
        assert_eq!(tuned.capabilities().tuning, tuning);
        for &choice in TuningKey::ALL {
            assert_eq!(
                Some(tuned.capabilities().tuned(choice) as u32),
                tuning.get(choice),
                "{choice:?}"
            );
        }
        assert_eq!(block_on(tuned.recover()).unwrap().capabilities().tuning, tuning);
        // What is chosen, and what is dispatched.
        let (most, layout) = (context.capabilities().tuned(TuningKey::GemvTokens), Layout::F16);
        let plan =
            |context: &Context| internals::plan(most, 64, 64, layout, context.capabilities()).name;
        assert_ne!(plan(&tuned), plan(&context));
        let x = tuned.upload(&vec![1.0f32; most * 64], [most, 64]).unwrap();
        let w = tuned.upload(&vec![1.0f32; 64 * 64], [64, 64]).unwrap();
        let mut encoder = tuned.encoder("tuned");
        let w = bitnet::WeightQuantizer::absmean().quantize(&mut encoder, &w).unwrap();
        let xq = support::quantize_as(&mut encoder, &x, layout).unwrap();
        let y: Tensor<f32> = BitLinear::new(&w).forward(&mut encoder, &xq).unwrap();
        let recording = encoder.finish();
        assert_eq!(recording.kernels().last().unwrap().name, plan(&tuned));
        drop(y);
    });
    assert!(told.is_empty(), "{told:?}");
    assert!(
        open(None).capabilities().tuning.is_empty()
            && open(directory.0.join("other")).capabilities().tuning.is_empty()
    );

    // A new one takes its place, and one of nothing is that of the table.
    context.save_tuning(&Tuning::default()).unwrap();
    assert!(
        tuning_file(&folder).1.len() < 40 && open(folder.clone()).capabilities().tuning.is_empty()
    );
}

#[test]
fn tuning_of_other_machines_is_ignored() {
    let directory = Directory::temporary();
    let folder = directory.0.join("kernels");
    let context = open(folder.clone());
    let (path, tuning) = (context.save_tuning(&another(&context)).unwrap(), another(&context));
    let sound = fs::read(&path).unwrap();
    let changed = |at: usize| {
        sound
            .iter()
            .enumerate()
            .map(|(i, &byte)| if i == at { byte ^ 1 } else { byte })
            .collect::<Vec<u8>>()
    };
    // As it is written, with another text.
    let lying = |text: &[u8]| [&sound[..29], &hash(text), text].concat();
    let mut wrong: Vec<(String, Vec<u8>)> = vec![
        ("longer".into(), [&sound[..], b"x"].concat()),
        ("oversized".into(), lying(&b"gemv_tall_tile_rows 5\n".repeat(10_000))),
        ("of another device, driver or version".into(), changed(25)),
        ("a compiled kernel".into(), [b"bitnet-wgpu kernel 1\n", &sound[21..]].concat()),
        ("no text".into(), lying(&[0xff, 0xfe, b'\n'])),
        ("twice".into(), lying(b"gemv_tall_tile_rows 5\ngemv_tall_tile_rows 5\n")),
        ("no number".into(), lying(b"tall_rows\n")),
        ("an unknown choice".into(), lying(b"tall_columns 5\n")),
    ];
    wrong.extend(
        (0..sound.len()).step_by(7).map(|at| (format!("cut off at {at}"), sound[..at].to_vec())),
    );
    wrong.extend((0..sound.len()).step_by(11).map(|at| (format!("a bit in {at}"), changed(at))));
    let values = [
        "NaN",
        "-1",
        "1e3",
        "0x10",
        "inf",
        "0.5",
        "4294967296",
        "99999999999999999999",
        "",
        " 5",
        "\u{663}",
    ];
    wrong.extend(
        values.map(|value| {
            (format!("`{value}`"), lying(format!("gemv_tokens {value}\n").as_bytes()))
        }),
    );
    wrong.extend([0, 4097].map(|value| {
        (format!("out of its range: {value}"), lying(format!("gemv_tokens {value}\n").as_bytes()))
    }));
    for (what, bytes) in wrong {
        fs::write(&path, bytes).unwrap();
        let told =
            warnings(|| assert!(open(folder.clone()).capabilities().tuning.is_empty(), "{what}"));
        let one = told.len() == 1
            && told[0].contains(&path.display().to_string())
            && told[0].contains("default kernel tuning is used");
        assert!(one, "{what}: {told:?}");
    }
    // No file at all.
    fs::remove_file(&path).unwrap();
    assert!(warnings(|| assert!(open(folder.clone()).capabilities().tuning.is_empty())).is_empty());
    fs::create_dir(&path).unwrap();
    assert_eq!(
        warnings(|| assert!(open(folder.clone()).capabilities().tuning.is_empty())).len(),
        1
    );
    assert_eq!(context.save_tuning(&tuning).unwrap_err().kind(), ErrorKind::Io);

    assert_eq!(open(None).save_tuning(&tuning).unwrap_err().kind(), ErrorKind::Invalid);
    let beyond = open(directory.write("file", "no folder").join("kernels"));
    assert_eq!(beyond.save_tuning(&tuning).unwrap_err().kind(), ErrorKind::Io);
}
