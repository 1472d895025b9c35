//! Model files, sound, damaged and hostile: the reader gives the right matrix or an error, and never panics.
#![cfg(feature = "formats")]

use bitnet_wgpu::{
    Error, PackedTernary, Result, Scales, bitnet,
    formats::{Checkpoint, SafeTensors, ScaleRule},
};
use proptest::prelude::*;
use std::{fs, path::PathBuf};

/// A directory that is gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bitnet-wgpu-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn model(config: &str, file: &[u8]) -> Self {
        let directory = Self::new();
        fs::write(directory.0.join("config.json"), config).unwrap();
        fs::write(directory.0.join("model.safetensors"), file).unwrap();
        directory
    }

    fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(&self.0)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file from (name, dtype, shape, bytes), written by hand: the oracle is the format's description, not the crate that reads it.
fn file(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        entries.push(format!("{name:?}:{{\"dtype\":{dtype:?},\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}"));
        data.extend_from_slice(bytes);
    }
    with_header(&format!("{{{}}}", entries.join(",")), &data)
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

const OFFLINE: &str = r#"{"quantization_config":{"linear_class":"autobitlinear","quantization_mode":"offline"}}"#;
const PLAIN: &str = r#"{"quantization_config":{"quant_method":"bitnet"}}"#;

#[test]
fn scales_mean_what_the_linear_class_says() {
    // Eight rows of one column: R = 2. Codes 2 (+1) in rows 0 and 1, else 1 (0).
    let packed = [0b01_01_01_10u8, 0b01_01_01_10];
    let bf16 = half::bf16::from_f32(4.0).to_le_bytes();
    let file = file(&[("l.weight", "U8", &[2, 1], &packed), ("l.weight_scale", "BF16", &[1], &bf16)]);
    for (config, rule, beta) in [(OFFLINE, ScaleRule::Multiply, 4.0), (PLAIN, ScaleRule::Divide, 0.25), ("{}", ScaleRule::Divide, 0.25)] {
        let directory = Directory::model(config, &file);
        let checkpoint = directory.open().unwrap();
        assert_eq!((checkpoint.scale_rule(), checkpoint.linears()), (rule, vec!["l".to_owned()]));
        let w = checkpoint.linear("l").unwrap();
        assert_eq!((w.rows(), w.columns(), w.scales()), (8, 1, &Scales::Tensor(beta)));
        assert_eq!(w.to_values(), [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(checkpoint.linear_with_rows("l", 7).unwrap().to_values(), [1, 1, 0, 0, 0, 0, 0]);
        assert!(checkpoint.linear_with_rows("l", 9).unwrap_err().to_string().contains("`l.weight`"));
    }
}

#[test]
fn float_masters_are_quantised() {
    let dense = [0.5f32, -0.25, 0.0, 1.0, -1.0, 0.125];
    let bytes: Vec<u8> = dense.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    let directory = Directory::model(OFFLINE, &file(&[("l.weight", "BF16", &[2, 3], &bytes)]));
    let w = directory.open().unwrap().linear("l").unwrap();
    assert_eq!(w, bitnet::quantize_weights_cpu(&dense, 2, 3).unwrap());
}

fn error(config: &str, file: &[u8]) -> String {
    let directory = Directory::model(config, file);
    match directory.open().and_then(|checkpoint| checkpoint.linear("l")) {
        Err(error @ Error::Format { .. }) => error.to_string(),
        other => panic!("no format error: {other:?}"),
    }
}

#[test]
fn bad_files_are_named() {
    let scale = 1f32.to_le_bytes();
    let good: [(&str, &str, &[usize], &[u8]); 2] = [("l.weight", "U8", &[1, 2], &[0, 1]), ("l.weight_scale", "F32", &[1], &scale)];
    let whole = file(&good);
    assert!(Directory::model(OFFLINE, &whole).open().unwrap().linear("l").is_ok());
    let expect = |file: &[u8], words: &[&str]| {
        let text = error(OFFLINE, file);
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(text.contains("model.safetensors"), "{text}");
    };
    // Truncated: in the length, in the header, in the data; and too long.
    expect(&whole[..5], &["5 bytes"]);
    expect(&whole[..40], &["claims", "32 more"]);
    expect(&whole[..whole.len() - 1], &["`l.weight_scale` claims bytes 2..6 of the 5"]);
    expect(&[&whole[..], &[0]].concat(), &[]);
    // Lengths over the file, and over memory.
    expect(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat(), &["18446744073709551615"]);
    let header = |weight: &str| {
        let other = r#""l.weight_scale":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}"#;
        with_header(&format!(r#"{{"l.weight":{weight},{other}}}"#), &[0; 6])
    };
    expect(&header(r#"{"dtype":"U8","shape":[1,2],"data_offsets":[0,18446744073709551615]}"#), &["`l.weight` claims bytes"]);
    expect(&header(r#"{"dtype":"U8","shape":[1,2],"data_offsets":[2,0]}"#), &["`l.weight` claims bytes 2..0"]);
    expect(&header(r#"{"dtype":"U8","shape":[1,2],"data_offsets":[-1,2]}"#), &["`l.weight` has no data_offsets"]);
    expect(&header(r#"{"dtype":"U8","shape":[1,2]}"#), &["`l.weight` has no data_offsets"]);
    expect(&header(r#"{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,2]}"#), &[]);
    // Overlap, gap, a type that does not exist, and what is no JSON.
    expect(&header(r#"{"dtype":"U8","shape":[1,4],"data_offsets":[0,4]}"#), &["l.weight"]);
    expect(&header(r#"{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]}"#), &["l.weight"]);
    expect(&header(r#"{"dtype":"U2","shape":[1,2],"data_offsets":[0,2]}"#), &[]);
    expect(&with_header("[1]", &[]), &["JSON"]);
    expect(&with_header("{", &[]), &["JSON"]);
    // The wrong contents.
    expect(&file(&[good[1]]), &["no tensor `l.weight`"]);
    expect(&file(&[good[0]]), &["no tensor `l.weight_scale`"]);
    expect(&file(&[("l.weight", "U8", &[2], &[0, 1]), good[1]]), &["`l.weight` has shape [2]"]);
    expect(&file(&[("l.weight", "U8", &[1, 2], &[0, 0b1100]), good[1]]), &["`l.weight`", "code 3 in byte 1"]);
    expect(&file(&[("l.weight", "U8", &[1 << 62, 0], &[]), good[1]]), &["`l.weight` has no columns"]);
    expect(&file(&[("l.weight", "U8", &[0, 1 << 40], &[]), good[1]]), &["`l.weight`", "32 bits"]);
    expect(&file(&[("l.weight", "I8", &[1, 2], &[0, 1]), good[1]]), &["`l.weight` is I8"]);
    expect(&file(&[good[0], ("l.weight_scale", "F32", &[2], &[0; 8])]), &["`l.weight_scale` has shape [2]"]);
    expect(&file(&[good[0], ("l.weight_scale", "U8", &[1], &[1])]), &["`l.weight_scale` is U8"]);
    for bad in [0f32, -1.0, f32::NAN, f32::INFINITY] {
        expect(&file(&[good[0], ("l.weight_scale", "F32", &[1], &bad.to_le_bytes())]), &["`l.weight_scale` is"]);
    }
    // The configuration.
    assert!(error("{", &whole).contains("config.json"));
    assert!(error(r#"{"quantization_config":{"linear_class":"bitnonlinear"}}"#, &whole).contains("bitnonlinear"));
    assert!(matches!(Checkpoint::open("does/not/exist").unwrap_err(), Error::Io { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes changed, cut out or put in anywhere: whatever comes of it, it is no panic.
    #[test]
    fn damaged_files_do_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
        cut in any::<prop::sample::Index>(),
        keep in any::<bool>(),
    ) {
        let scale = 1f32.to_le_bytes();
        let mut bytes = file(&[("l.weight", "U8", &[2, 3], &[0, 1, 2, 4, 8, 16]), ("l.weight_scale", "F32", &[1], &scale)]);
        for (at, value, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => bytes.insert(at, value),
                _ => { bytes.remove(at); }
            }
        }
        if !keep {
            bytes.truncate(cut.index(bytes.len()));
        }
        let directory = Directory::model(OFFLINE, &bytes);
        if let Ok(checkpoint) = directory.open() {
            let _ = checkpoint.linear("l").map(|w| w.dequantize());
            for name in checkpoint.tensors().names() {
                let _ = checkpoint.tensors().tensor(&name).map(|tensor| tensor.to_f32());
            }
        }
    }

    /// Headers that are JSON and lie.
    #[test]
    fn lying_headers_do_not_panic(start in any::<u64>(), end in any::<u64>(), rows in any::<u64>(), columns in any::<u64>(), dtype in 0..4usize) {
        let dtype = ["U8", "BF16", "F32", "I64"][dtype];
        let header = format!(r#"{{"l.weight":{{"dtype":"{dtype}","shape":[{rows},{columns}],"data_offsets":[{start},{end}]}}}}"#);
        let path = Directory::model(OFFLINE, &with_header(&header, &[0; 64]));
        let _ = path.open().map(|checkpoint| checkpoint.linear("l").map(|w| w.dequantize()));
    }
}

#[test]
fn the_shipped_model_opens() {
    let checkpoint = Checkpoint::open("assets/tales-22m").unwrap();
    assert_eq!(checkpoint.linears().len(), 8 * 7);
    let w: PackedTernary = checkpoint.linear("model.layers.0.mlp.down_proj").unwrap();
    assert_eq!((w.rows(), w.columns()), (512, 1280));
    let norm = SafeTensors::open("assets/tales-22m/model.safetensors").unwrap();
    assert_eq!(norm.tensor("model.norm.weight").unwrap().to_f32().unwrap().len(), 512);
}
