//! Symbolic links that an earlier attack has left in the cache.
#![cfg(unix)]

use crate::{
    COMMIT, said,
    server::{CONTENT, Ground, NAMES, NO_MODEL, etag, small},
};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Plants a link in the cache.
fn plant(target: &Path, path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

#[test]
fn planted_links_are_not_followed() {
    let version = etag("config.json");
    let files = [
        "blobs/VERSION",
        "blobs/VERSION.part",
        "snapshots/COMMIT/config.json",
        "../.locks/models--people--tales/VERSION.lock",
    ];
    let folders = [
        "",
        "blobs",
        "snapshots",
        "snapshots/COMMIT",
        "../.locks",
        "../.locks/models--people--tales",
    ];
    let places =
        files.map(|path| (path, "sentinel")).into_iter().chain(folders.map(|path| (path, "")));
    for (path, target) in places {
        let ground = Ground::new("links");
        let path: PathBuf = path
            .replace("VERSION", &version)
            .replace("COMMIT", COMMIT)
            .split('/')
            .fold(ground.repository(), |path, part| match part {
                ".." => path.parent().unwrap().into(),
                "" => path,
                part => path.join(part),
            });
        plant(&ground.outside().join(target), &path);
        let (url, _) = small(|_, _| Ok(false));
        let text = ground.refuses(&url, "is a symbolic link");
        assert!(text.contains(&path.file_name().unwrap().to_string_lossy().into_owned()), "{text}");
        assert!(path.is_symlink(), "{}", path.display());
    }
}

#[test]
fn planted_references_are_not_followed() {
    for (path, target) in [("refs", ""), ("refs/main", "sentinel")] {
        let ground = Ground::new("references");
        plant(&ground.outside().join(target), &ground.repository().join(path));
        let before = ground.around();
        let (url, _) = small(|_, _| Ok(false));
        // Only the copy's reference fails; the model is downloaded, and is none.
        let text = said(&ground.info(&url));
        assert!(text.contains("is a symbolic link") && ground.around() == before, "{text}");
    }
    // A reference is a name from the network, too.
    let ground = Ground::new("reference-path");
    ground.plant(&ground.repository().join("refs/main"), b"../../../../outside");
    fs::create_dir(ground.repository().join("snapshots")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::write(ground.outside().join(name), "x").unwrap();
    }
    ground.refuses("http://127.0.0.1:9", "no copy in the cache");
}

/// A user may have moved it to another disk.
#[test]
fn linked_model_folders_are_read_but_not_written() {
    let ground = Ground::new("moved");
    let (moved, unreachable) = (ground.outside().join("moved"), "http://127.0.0.1:9");
    ground.plant(&moved.join("refs/main"), COMMIT.as_bytes());
    let files = NAMES.map(|name| moved.join("snapshots").join(COMMIT).join(name));
    files.iter().for_each(|file| ground.plant(file, &CONTENT));
    plant(&moved, &ground.repository());
    let (url, _) = small(|_, _| Ok(false));
    for endpoint in [unreachable, &url] {
        let text = ground.refuses(endpoint, NO_MODEL);
        assert!(!text.contains("is a symbolic link"), "{text}");
    }
    fs::remove_file(&files[1]).unwrap();
    ground.refuses(&url, "is a symbolic link");
    assert!(!files[1].exists());
}

#[test]
fn dangling_links_are_replaced() {
    let ground = Ground::new("dangling");
    let path = ground.repository().join("snapshots").join(COMMIT).join("config.json");
    plant(&ground.outside().join("new"), &path);
    let (url, _) = small(|_, _| Ok(false));
    ground.refuses(&url, NO_MODEL);
    assert_eq!(fs::read_link(path).unwrap(), Path::new("../../blobs").join(etag("config.json")));
}
