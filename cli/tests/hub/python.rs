//! Caches as Python's programs leave them.

use super::{COMMIT, Cache, said};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Puts a commit of `people/tales` into a cache, without a reference to it.
fn snapshot(cache: &Path) {
    let root = cache.join("models--people--tales");
    let (blobs, snapshot) = (root.join("blobs"), root.join("snapshots").join(COMMIT));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (name, path) in super::tales() {
        fs::copy(path, blobs.join(name)).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(Path::new("../../blobs").join(name), snapshot.join(name))
            .unwrap();
        #[cfg(not(unix))]
        fs::hard_link(blobs.join(name), snapshot.join(name)).unwrap();
    }
}

#[test]
fn commit_without_reference_is_found_offline() {
    let cache = Cache::new("commit");
    snapshot(&cache.0.join("hub"));
    let run = |revision: &str| cache.run("", &["info", &format!("people/tales@{revision}")], true);
    let found = run(COMMIT);
    assert!(found.status.success(), "{}", said(&found));
    for unknown in ["main", &COMMIT[..39], &COMMIT.replace('0', "1")] {
        let missing = run(unknown);
        assert!(
            !missing.status.success() && said(&missing).contains("no copy in the cache"),
            "{}",
            said(&missing)
        );
    }
}

#[test]
fn url_of_a_model_is_its_name() {
    let cache = Cache::new("url");
    snapshot(&cache.0.join("hub"));
    let url = format!("https://huggingface.co/people/tales/tree/{COMMIT}");
    let found = cache.run("", &["info", &url], true);
    assert!(found.status.success(), "{}", said(&found));
    let other = cache.run("", &["info", "https://example.org/people/tales"], true);
    assert!(
        !other.status.success() && said(&other).contains("is no URL of a model"),
        "{}",
        said(&other)
    );
}

/// Each variable counts before those that follow.
#[test]
fn cache_variables_have_the_order_of_python() {
    const ORDER: [(&str, &str); 4] = [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ];
    for (first, (variable, folder)) in ORDER.iter().enumerate() {
        let cache = Cache::new(&format!("order-{variable}"));
        let of = |name: &str| -> PathBuf { cache.0.join(name) };
        snapshot(&of(variable).join(folder));
        let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
        command
            .args(["info", &format!("people/tales@{COMMIT}")])
            .stdin(Stdio::null())
            .env("HF_HUB_OFFLINE", "1");
        for (n, (name, _)) in ORDER.iter().enumerate() {
            match n < first {
                true => command.env_remove(name),
                false => command.env(name, of(name)),
            };
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{variable}: {}", said(&output));
    }
}
