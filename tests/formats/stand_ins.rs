//! Files as people have them: pointers and web pages in place of weights, marks before JSON,
//! folders of one GGUF file, weights of other programs.

use super::{
    file::{ModelDirectory, OFFLINE, file},
    gguf::Maker,
};
use bitnet_wgpu::{
    Error,
    formats::{Checkpoint, open},
    internals::{ModelFormat, identify},
    model::ModelFiles,
};
use std::path::Path;
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

#[test]
fn split_gguf_is_refused() {
    let directory = Directory::temporary();
    for part in 0..3 {
        // Counts are of 16 bits.
        let number = |maker: Maker, key: &str, value: u16| maker.set(key, 2, &value.to_le_bytes());
        let maker = number(number(Maker::model(), "split.count", 3), "split.no", part);
        directory.write(&format!("m-0000{}-of-00003.gguf", part + 1), maker.bytes());
    }
    let expected = ["part 1 of 3 of a split model", "llama-gguf-split --merge"];
    refused(&directory.0, "m-00001-of-00003.gguf", &expected);
    let second = directory.0.join("m-00002-of-00003.gguf");
    refused(&second, "m-00002-of-00003.gguf", &["part 2 of 3"]);
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
