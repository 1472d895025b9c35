//! Models by name, from a server on this machine that answers as the hub does.
#![cfg(feature = "hub")]

mod hostile;
mod interrupted;
mod links;
mod python;
mod redirects;
mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
};
use tiny_http::{Header, Response, Server, StatusCode};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What was asked for: the path, and the range of bytes.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// What goes wrong at the hub.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Large files end after half of their bytes.
    Broken,
    /// Large files are refused.
    Refused,
    /// Only those who have the token are answered.
    Private,
    /// It answers nobody.
    Silent,
}

/// Serves `files` of the model `people/tales` at a commit until the process ends.
fn hub(files: Vec<(&'static str, PathBuf)>, fault: Fault) -> (String, Asked) {
    hub_at(COMMIT, files, fault)
}

fn hub_at(
    commit: &'static str,
    files: Vec<(&'static str, PathBuf)>,
    fault: Fault,
) -> (String, Asked) {
    let server = Server::http("127.0.0.1:0").unwrap();
    let address = format!("http://{}", server.server_addr());
    let asked = Asked::default();
    let log = asked.clone();
    std::thread::spawn(move || {
        for request in server.incoming_requests() {
            if fault == Fault::Silent {
                std::mem::forget(request);
                continue;
            }
            let known = request.headers().iter().any(|header| {
                header.field.equiv("Authorization") && header.value == "Bearer sesame"
            });
            if fault == Fault::Private && !known {
                let _ = request.respond(Response::empty(401));
                continue;
            }
            let range = request
                .headers()
                .iter()
                .find(|header| header.field.equiv("Range"))
                .map(|header| header.value.to_string());
            let (url, range) = (request.url().to_owned(), range.unwrap_or_default());
            log.lock().unwrap().push((url.clone(), range.clone()));
            let header = |name: &str, value: &str| Header::from_bytes(name, value).unwrap();
            if url.starts_with("/api/models/people/tales/revision/") {
                let siblings: Vec<_> = files
                    .iter()
                    .map(|(name, _)| serde_json::json!({ "rfilename": name }))
                    .collect();
                let siblings =
                    [siblings, vec![serde_json::json!({ "rfilename": "../../evil.gguf" })]]
                        .concat();
                let text = serde_json::json!({ "sha": commit, "siblings": siblings }).to_string();
                let _ = request.respond(
                    Response::from_string(text)
                        .with_header(header("content-type", "application/json")),
                );
                continue;
            }
            let file = files
                .iter()
                .find(|(name, _)| url == format!("/people/tales/resolve/{commit}/{name}"));
            let Some((name, path)) = file else {
                let _ = request.respond(Response::empty(404));
                continue;
            };
            let bytes = fs::read(path).unwrap();
            let (start, end) = range
                .strip_prefix("bytes=")
                .and_then(|range| range.split_once('-'))
                .unwrap_or(("0", ""));
            let start: usize = start.parse().unwrap();
            let end = end.parse().map_or(bytes.len(), |end: usize| end + 1);
            let headers = vec![
                header("x-repo-commit", commit),
                header("etag", &format!("\"{}\"", name.replace('.', "-"))),
                header("content-range", &format!("bytes {start}-{}/{}", end - 1, bytes.len())),
            ];
            let mut sent = bytes[start..end].to_vec();
            let length = sent.len();
            if fault == Fault::Refused && length > 1_000_000 {
                let _ = request.respond(Response::empty(503));
                continue;
            }
            if fault == Fault::Broken && length > 1_000_000 {
                sent.truncate(length / 2);
            }
            let _ = request.respond(Response::new(
                StatusCode(206),
                headers,
                &sent[..],
                Some(length),
                None,
            ));
        }
    });
    (address, asked)
}

struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bitnet-hub-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn run(&self, endpoint: &str, arguments: &[&str], offline: bool) -> Output {
        self.run_with(endpoint, arguments, offline, "")
    }

    fn run_with(&self, endpoint: &str, arguments: &[&str], offline: bool, token: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .env("HF_ENDPOINT", endpoint)
            .env("HF_HOME", &self.0);
        command
            .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" })
            .env("HF_TOKEN", token)
            .env_remove("HF_HUB_CACHE")
            .output()
            .unwrap()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tales() -> Vec<(&'static str, PathBuf)> {
    let names = [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    names
        .into_iter()
        .map(|name| (name, Path::new(TALES).join(name)))
        .filter(|(_, path)| path.exists())
        .collect()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

const RUN: [&str; 8] =
    ["run", "people/tales", "Once upon a time", "--cpu", "--greedy", "--max-tokens", "5", "--json"];

#[test]
fn a_model_comes_by_its_name_and_stays() {
    let (cache, (address, asked)) = (Cache::new("name"), hub(tales(), Fault::None));
    let first = cache.run(&address, &RUN, false);
    assert!(first.status.success(), "{}", said(&first));
    let local = cache.run(
        "",
        &["run", TALES, "Once upon a time", "--cpu", "--greedy", "--max-tokens", "5", "--json"],
        true,
    );
    let ids = |output: &Output| {
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["token_ids"].clone()
    };
    assert_eq!(ids(&first), ids(&local));
    let files = |asked: &Asked| {
        asked.lock().unwrap().iter().filter(|(url, _)| url.contains("/resolve/")).count()
    };
    let downloaded = files(&asked);
    assert!(
        !asked
            .lock()
            .unwrap()
            .iter()
            .any(|(url, _)| url.contains("README") || url.contains("evil")),
        "only what is needed"
    );
    // The second time, nothing is downloaded; without the hub, the copy does.
    assert_eq!(ids(&cache.run(&address, &RUN, false)), ids(&first));
    assert_eq!(files(&asked), downloaded);
    let offline = cache.run(&address, &RUN, true);
    assert!(
        ids(&offline) == ids(&first) && said(&offline).contains("HF_HUB_OFFLINE"),
        "{}",
        said(&offline)
    );
    let asked_first = asked.clone();
    // A new commit with the same files costs no download, nor does a cache of another program,
    // which knows the commit only by its revision.
    let (newer, asked) = hub_at("fedcba9876543210fedcba9876543210fedcba98", tales(), Fault::None);
    assert_eq!(ids(&cache.run(&newer, &RUN, false)), ids(&first));
    let all = |asked: &Asked| {
        asked
            .lock()
            .unwrap()
            .iter()
            .filter(|(url, range)| url.contains("/resolve/") && range != "bytes=0-0")
            .count()
    };
    assert_eq!(all(&asked), 0, "{asked:?}");
    let _ = fs::remove_file(cache.0.join("hub/models--people--tales/refs").join(COMMIT));
    assert_eq!(ids(&cache.run(&address, &RUN, false)), ids(&first));
    assert_eq!(files(&asked_first), downloaded);
    let unreachable = cache.run("http://127.0.0.1:9", &RUN, false);
    assert!(
        ids(&unreachable) == ids(&first) && said(&unreachable).contains("using the copy"),
        "{}",
        said(&unreachable)
    );
}

#[test]
fn what_was_broken_off_goes_on() {
    let cache = Cache::new("resume");
    let output = cache.run(&hub(tales(), Fault::Refused).0, &RUN, false);
    assert!(
        !output.status.success() && said(&output).contains("run it again"),
        "{}",
        said(&output)
    );
    // Each try gets half of what is left, and goes on by itself.
    let (broken, asked) = hub(tales(), Fault::Broken);
    let output = cache.run(&broken, &RUN, false);
    assert!(
        !output.status.success() && said(&output).contains("run it again"),
        "{}",
        said(&output)
    );
    let output = cache.run(&broken, &RUN, false);
    assert!(output.status.success(), "{}", said(&output));
    // What is longer than the file is not kept.
    let long = Cache::new("long");
    let blobs = long.0.join("hub/models--people--tales/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("model-safetensors.part"), vec![0; 9_000_000]).unwrap();
    let output = long.run(&hub(tales(), Fault::None).0, &RUN, false);
    assert!(output.status.success(), "{}", said(&output));
    let resumed = |(url, range): &(String, String)| {
        url.ends_with("model.safetensors") && range.ends_with('-') && range != "bytes=0-"
    };
    assert!(asked.lock().unwrap().iter().any(resumed), "{asked:?}");
}

#[test]
fn what_cannot_be_had_says_why() {
    let cache = Cache::new("errors");
    let gguf = Path::new(TALES).join("../../tests/data/gguf/llama.gguf");
    let (several, _) = hub(vec![("a.gguf", gguf.clone()), ("b.gguf", gguf)], Fault::None);
    let fails = |endpoint: &str, name: &str, offline, expected: &str| {
        let output = cache.run(endpoint, &["run", name, "x", "--cpu"], offline);
        assert!(
            !output.status.success() && said(&output).contains(expected),
            "{expected}: {}",
            said(&output)
        );
    };
    fails(&several, "people/nobody", false, "HF_TOKEN");
    fails(&several, "people/nobody", false, "https://huggingface.co/people/nobody");
    fails(&several, "people/tales", false, "people/tales:a.gguf");
    fails(&several, "people/tales:c.gguf", false, "no file c.gguf");
    fails(&several, "people/tales", true, "HF_HUB_OFFLINE");
    fails("http://127.0.0.1:9", "people/tales", false, "to do it by hand");
    let info = cache.run(&several, &["info", "people/tales:b.gguf"], false);
    assert!(
        info.status.success() && said(&info).contains("all weights can be loaded"),
        "{}",
        said(&info)
    );
    let info = cache.run(&several, &["info", "people/tales:b.gguf"], true);
    assert!(info.status.success(), "{}", said(&info));
    let (private, _) = hub(tales(), Fault::Private);
    let cache = Cache::new("private");
    let refused = cache.run(&private, &["info", "people/tales"], false);
    assert!(!refused.status.success() && said(&refused).contains("HF_TOKEN"), "{}", said(&refused));
    assert!(cache.run_with(&private, &["info", "people/tales"], false, "sesame").status.success());
    // A copy that lacks its weights is none.
    let other = Cache::new("lacking");
    let (address, _) = hub(tales(), Fault::Refused);
    let output = other.run(&address, &RUN, false);
    assert!(
        !output.status.success() && said(&output).contains("no copy in the cache"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_silent_hub_times_out() {
    let (cache, (silent, _)) = (Cache::new("silent"), hub(tales(), Fault::Silent));
    assert!(cache.run(&hub(tales(), Fault::None).0, &RUN, false).status.success());
    let output = cache.run(&silent, &RUN, false);
    assert!(
        output.status.success() && said(&output).contains("has not answered"),
        "{}",
        said(&output)
    );
}
