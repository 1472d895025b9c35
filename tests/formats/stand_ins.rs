//! Files as people have them: pointers and web pages in place of weights, marks before JSON,
//! folders of one GGUF file, weights of other programs.

use super::{
    file::{ModelDirectory, OFFLINE, file},
    gguf::{Maker, open_bytes},
};
use bitnet_wgpu::{
    Error,
    formats::{Checkpoint, GgufFile, ModelFile, open},
    internals::{ModelFormat, identify},
    model::ModelFiles,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use support::{files::Directory, repository};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n";
const PAGE: &[u8] = b"\n<!DOCTYPE html>\n<html class=\"\">\n<head>\n<title>Hugging Face</title>";

/// The error of opening a path names the file, what is wrong and what helps.
fn refused(path: &Path, file: &str, expected: &[&str]) {
    for result in [open(path).map(drop), ModelFiles::open(path).map(drop)] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Format { .. } | Error::Unsupported { .. }), "{error:?}");
        let text = error.to_string();
        assert!(expected.iter().chain([&file]).all(|part| text.contains(part)), "{text}");
    }
}

fn utf16(text: &str) -> Vec<u8> {
    "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

#[test]
fn stand_ins_are_named() {
    let directory = Directory::temporary();
    let pickle = &b"PK\x03\x04\0\0\x08\x08pytorch_model/data.pkl"[..];
    for (bytes, expected) in [
        (POINTER, &["Git LFS pointer", "git lfs pull"][..]),
        (PAGE, &["web page", "/resolve/"]),
        (pickle, &["PyTorch", "save_pretrained"]),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", &["PyTorch", "save_pretrained"]),
        (b"hello", &["is not a model"]),
        (b"", &["is not a model"]),
    ] {
        for name in ["model.gguf", "model.safetensors"] {
            refused(&directory.write(name, bytes), name, expected);
        }
        if bytes.len() > 5 {
            let directory = Directory::model(&OFFLINE, bytes);
            refused(&directory.0, "model.safetensors", expected);
        }
    }
    let weights = file(&[]);
    for (bytes, expected) in [
        (POINTER.to_vec(), "Git LFS pointer"),
        (PAGE.to_vec(), "web page"),
        (utf16(&OFFLINE), "UTF-16: save it as UTF-8"),
    ] {
        let directory = Directory::model("", &weights);
        directory.write("config.json", bytes);
        refused(&directory.0, "config.json", &[expected]);
    }
}

#[test]
fn json_is_read_as_python_writes_it() {
    let config =
        format!("\u{feff}{}", OFFLINE.replacen('{', "{\"time_step_limit\": [0.0, Infinity], ", 1));
    let directory = Directory::model(&config, &file(&[]));
    assert_eq!(
        Checkpoint::open(&directory.0).map(|checkpoint| checkpoint.names().len()).unwrap(),
        0
    );
    directory.write("config.json", OFFLINE.replacen('{', "{\"rms_norm_eps\": NaN, ", 1));
    refused(&directory.0, "config.json", &["rms_norm_eps", "NaN", "a finite number is needed"]);
    // With a mark before each, these files give the tokens of those without.
    let tales = repository("assets/tales-22m");
    for entry in tales.read_dir().unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_file() {
            let mark =
                if name.ends_with(".json") || name.ends_with(".jinja") { "\u{feff}" } else { "" };
            let bytes = std::fs::read(entry.path()).unwrap();
            directory.write(&name, [mark.as_bytes(), &bytes].concat());
        }
    }
    let [plain, marked] = [&tales, &directory.0].map(|path| ModelFiles::open(path).unwrap());
    let messages = [bitnet_wgpu::model::Message::new("user", "Hello")];
    let [plain, marked] =
        [plain, marked].map(|files| files.tokenizer().unwrap().chat(&messages).unwrap());
    assert_eq!(plain, marked);
}

#[test]
fn folder_of_one_gguf_opens() {
    let directory = Directory::temporary();
    let bytes = Maker::model().bytes();
    let path = directory.write("a.gguf", &bytes);
    assert_eq!(identify(&directory.0).unwrap(), ModelFormat::Gguf(path.clone()));
    assert_eq!(open(&directory.0).unwrap().config(), open(&path).unwrap().config());
    // As repositories of GGUF files have it.
    directory.write("config.json", &*OFFLINE);
    assert_eq!(identify(&directory.0).unwrap(), ModelFormat::Gguf(path));
    directory.write("b.gguf", &bytes);
    refused(&directory.0, "", &["2 GGUF files, as a.gguf and b.gguf: open one of them"]);
    directory.write("model.safetensors", file(&[]));
    assert_eq!(identify(&directory.0).unwrap(), ModelFormat::Directory(directory.0.clone()));
}

/// Part `index` of 3 of a model: the first has no tensors, the last has `later`.
fn part(index: u16, later: &[&str]) -> Maker {
    // Counts are of 16 bits.
    let number = |maker: Maker, key: &str, value: u16| maker.set(key, 2, &value.to_le_bytes());
    let mut maker = if index == 0 { Maker::model() } else { Maker::default() };
    maker.tensors = match index {
        0 => Vec::new(),
        1 => Maker::model().tensors,
        _ => {
            later
                .iter()
                .fold(Maker::default(), |maker, name| maker.tensor(name, &[8], 0, &[7; 32]))
                .tensors
        }
    };
    number(number(maker, "split.count", 3), "split.no", index).number("split.tensors.count", 2)
}

/// Writes the parts of a split model, and returns the path of the first.
fn split(directory: &Directory, parts: [Maker; 3]) -> PathBuf {
    for (index, part) in (1..).zip(parts) {
        directory.write(&format!("m-0000{index}-of-00003.gguf"), part.bytes());
    }
    directory.0.join("m-00001-of-00003.gguf")
}

#[test]
fn parts_of_split_gguf_are_read_as_one() {
    let directory = Directory::temporary();
    let path = split(&directory, [0, 1, 2].map(|index| part(index, &["output_norm.weight"])));
    let file = GgufFile::open(&path).unwrap();
    let names: Vec<_> = file.names().collect();
    assert_eq!(names, ["output_norm.weight", "token_embd.weight"]);
    assert_eq!(file.tensor(names[0]).unwrap().bytes, [7; 32]);
    assert_eq!(file.shape(names[1]), Some(&[4, 8][..]));
    for path in [&path, &directory.0] {
        let model = open(path).unwrap();
        assert_eq!(model.config(), open_bytes(&Maker::model().bytes()).unwrap().config());
        assert_eq!(model.vector("model.norm", 8).unwrap(), [f32::from_le_bytes([7; 4]); 8]);
    }
}

#[test]
fn wrong_parts_of_split_gguf_are_named() {
    let (third, norm) = ("m-00003-of-00003.gguf", ["output_norm.weight"]);
    let parts = || [0, 1, 2].map(|index| part(index, &norm));
    let directory = Directory::temporary();
    let first = split(&directory, parts());
    let second = directory.0.join("m-00002-of-00003.gguf");
    refused(
        &second,
        "m-00002-of-00003.gguf",
        &["part 2 of 3", "open the first part, m-00001-of-00003.gguf"],
    );
    let [one, two, _] = parts();
    split(&directory, [one.clone(), two.clone(), two.clone()]);
    refused(
        &first,
        third,
        &["is part 2 of 3 of a split model by its metadata, and part 3 of 3 by its name"],
    );
    split(&directory, [one.clone(), two.clone(), part(2, &["token_embd.weight"])]);
    refused(
        &first,
        third,
        &["has a tensor `token_embd.weight`, as ", "m-00002-of-00003.gguf does"],
    );
    split(&directory, [one.clone(), two, part(2, &["output_norm.weight", "a.weight"])]);
    refused(&first, "m-00001", &["says 2 tensors, and its 3 parts have 3"]);
    fs::remove_file(directory.0.join(third)).unwrap();
    let error = open(&first).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with(third)), "{error:?}");
    let renamed = directory.write("m.gguf", one.bytes());
    refused(&renamed, "m.gguf", &["does not end with -00001-of-00003.gguf"]);
    let many = one.clone().set("split.count", 2, &u16::MAX.to_le_bytes());
    refused(&directory.write("many.gguf", many.bytes()), "many.gguf", &["65535", "up to 256"]);
    let beyond = one.set("split.no", 2, &3u16.to_le_bytes());
    refused(&directory.write("beyond.gguf", beyond.bytes()), "beyond.gguf", &["part 4 of 3"]);
}

#[test]
fn weights_of_pytorch_alone_are_named() {
    let directory = Directory::temporary();
    directory.write("config.json", &*OFFLINE);
    directory.write("pytorch_model.bin", "PK");
    refused(&directory.0, "pytorch_model.bin", &["PyTorch checkpoint", "save_pretrained"]);
}

#[test]
fn sentencepiece_alone_is_named() {
    let directory = Directory::model(&OFFLINE, &file(&[]));
    directory.write("tokenizer.model", "\n\x0e");
    let files = ModelFiles::open(&directory.0).unwrap();
    let error = files.tokenizer().map(drop).unwrap_err();
    assert!(matches!(error, Error::Tokenizer { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("tokenizer.model") && text.contains("save_pretrained"), "{text}");
}

#[test]
fn url_is_no_path() {
    for url in ["https://huggingface.co/a/b/resolve/main/m.gguf", "hf://a/b"] {
        refused(Path::new(url), "", &["is a URL", "download the model"]);
    }
}

#[test]
fn checkpoint_of_a_file_is_refused() {
    let directory = Directory::temporary();
    let path = directory.write("a.gguf", Maker::model().bytes());
    let error = Checkpoint::open(path).map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("is a file; a directory"), "{error}");
}

#[test]
fn directory_without_configuration_is_named() {
    let directory = Directory::temporary();
    refused(&directory.0, "", &["is not a model: missing config.json"]);
    let missing = directory.0.join("missing");
    let error = Checkpoint::open(&missing).map(drop).unwrap_err().to_string();
    assert!(!error.contains("config.json") && error.contains("missing: "), "{error}");
}
