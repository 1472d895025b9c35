//! `bitnet list` and `bitnet rm`

use crate::{Directory, TALES, bitnet, errors};
use serde_json::Value;
use std::{fs, path::Path, process::Output};

fn with_cache(directory: &Directory, arguments: &[&str]) -> Output {
    bitnet(arguments).env("HF_HUB_CACHE", &directory.0).output().unwrap()
}

#[test]
fn models_of_the_cache_are_listed_and_removed() {
    let directory = Directory::new("cache");
    let text = |arguments: &[&str]| {
        let output = with_cache(&directory, arguments);
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(text(&["list"]).starts_with("no models in "));
    for name in ["models--a--small", "models--b--large--model", "datasets--a--b"] {
        let folder = directory.0.join(name);
        fs::create_dir_all(folder.join("blobs")).unwrap();
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::write(folder.join("blobs/0123"), [0; 1000]).unwrap();
        fs::write(folder.join("refs/main"), "0123").unwrap();
    }
    fs::create_dir_all(directory.0.join(".locks/models--a--small")).unwrap();
    let listed: Value = serde_json::from_str(&text(&["list", "--json"])).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["bytes"]), (&"a/small".into(), &1000.into()));
    assert_eq!(listed[1]["name"], "b/large--model");
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(text(&["list"]).contains("0.0 MB  main"));
    let wrong = with_cache(&directory, &["rm", "a/small", "../b"]);
    assert!(errors(&wrong).contains("../b: not in the cache"), "{}", errors(&wrong));
    assert!(directory.0.join("models--a--small").exists());
    assert_eq!(text(&["rm", "a/small"]), "removed a/small: 0.0 MB\n");
    assert!(!directory.0.join("models--a--small").exists());
    assert!(!directory.0.join(".locks/models--a--small").exists());
    assert!(directory.0.join("datasets--a--b").exists());
}

#[test]
fn pull_prints_the_path_of_a_copy() {
    let directory = Directory::new("pull");
    let folder = directory.0.join("models--a--tales");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = folder.join("snapshots").join(commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), commit).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(TALES).join(file), snapshot.join(file)).unwrap();
    }
    let pull = |name: &str| {
        let mut command = bitnet(&["pull", name]);
        command.env("HF_HUB_CACHE", &directory.0).env("HF_HUB_OFFLINE", "1").output().unwrap()
    };
    let found = pull("a/tales");
    let path = String::from_utf8(found.stdout.clone()).unwrap();
    assert_eq!(path.trim_end(), snapshot.display().to_string(), "{}", errors(&found));
    let missing = pull("a/other");
    assert!(!missing.status.success() && errors(&missing).contains("a/other: no such file"));
}
