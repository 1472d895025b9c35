//! A hub that sends names, sizes and contents that harm whoever believes them.

use crate::{
    COMMIT, TALES, said,
    server::{
        CONTENT, DIGEST, FLOOD, Ground, NAMES, NO_MODEL, UNDER_WAY, etag, head, listing, respond,
        send, serve, small,
    },
};
use std::{
    fs,
    io::Write,
    net::TcpStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Names that must not become files. The paths lead from `blobs` and `snapshots` to the sentinel
/// and beside the cache.
fn hostile_names(ground: &Ground) -> Vec<String> {
    let absolute = ground.outside().join("sentinel").to_string_lossy().into_owned();
    let names = [
        "../../x",
        "../../../../outside/sentinel",
        "..",
        ".",
        ".x",
        "",
        "a/b",
        "a\\b",
        "C:x",
        "%00",
        "a%0ab",
        "a b",
        "CON",
        "nul.x",
        "x.",
    ];
    names.into_iter().map(Into::into).chain([absolute, "a".repeat(300), "é".into()]).collect()
}

#[test]
fn hostile_etags_never_become_paths() {
    let ground = Ground::new("etags");
    for name in hostile_names(&ground) {
        for header in ["etag", "x-linked-etag"] {
            let value = format!("\"{name}\"");
            let (url, requests) = small(move |request, stream| {
                if request.is_listing() {
                    return Ok(false);
                }
                let headers = [
                    ("content-range", "bytes 0-99/100"),
                    ("x-repo-commit", COMMIT),
                    (header, &value),
                ];
                respond(stream, "206 Partial Content", &headers, &CONTENT).map(|()| true)
            });
            ground.refuses(&url, "as the ETag");
            assert_eq!(requests.lock().unwrap().len(), 2, "one listing and one file, {name}");
        }
    }
    assert!(ground.files().is_empty(), "{:?}", ground.files());
}

#[test]
fn etags_are_checked_at_each_answer() {
    let ground = Ground::new("second-etag");
    let (url, _) = small(|request, stream| {
        let is_body = !request.is_listing() && !request.is_metadata();
        if is_body {
            send(request, stream, "../../../../outside/sentinel", &CONTENT)?;
        }
        Ok(is_body)
    });
    ground.refuses(&url, "as the ETag");
}

#[test]
fn hostile_commits_never_become_paths() {
    let ground = Ground::new("commits");
    for name in hostile_names(&ground) {
        let commit = name.clone();
        let (url, requests) = small(move |request, stream| {
            if request.is_listing() {
                respond(stream, "200 OK", &[], &listing(&commit, &NAMES))?;
            }
            Ok(request.is_listing())
        });
        ground.refuses(&url, "as the commit");
        assert_eq!(requests.lock().unwrap().len(), 1, "{name}");
    }
    // The header that hf-hub makes a path of is not used.
    let (url, _) = small(|request, stream| {
        if !request.is_listing() {
            let headers = [
                ("content-range", "bytes 0-99/100"),
                ("x-repo-commit", "../../../../outside"),
                ("etag", "same"),
            ];
            respond(
                stream,
                "206 Partial Content",
                &headers,
                if request.is_metadata() { &CONTENT[..1] } else { &CONTENT },
            )?;
        }
        Ok(!request.is_listing())
    });
    ground.refuses(&url, NO_MODEL);
}

#[test]
fn listed_names_never_leave_the_snapshot() {
    let ground = Ground::new("names");
    let names = [
        "../x.gguf",
        "../../../../outside/sentinel",
        "/etc/x.gguf",
        "a\\b.gguf",
        "CON.gguf",
        "nul.gguf",
        ".x.gguf",
        "x\n.gguf",
        "x.gguf/",
    ];
    for name in names {
        let (url, requests) = small(move |request, stream| {
            if request.is_listing() {
                respond(stream, "200 OK", &[], &listing(COMMIT, &[name]))?;
            }
            Ok(request.is_listing())
        });
        ground.refuses(&url, "neither a .gguf file");
        assert_eq!(requests.lock().unwrap().len(), 1, "{name}");
    }
    let (url, _) = serve("127.0.0.1:0", |_, stream| {
        respond(stream, "200 OK", &[], &listing(COMMIT, &["my\u{1b}[2J model.gguf"]))
    });
    let text = ground.refuses(&url, r"`my\u{1b}[2J model.gguf`: a name of up to 255");
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// Answers with a body in chunks, without end. Counts what was taken.
fn flood(
    stream: &mut TcpStream,
    headers: &[(&str, &str)],
    start: &[u8],
    filling: &[u8],
    sent: &AtomicUsize,
) -> std::io::Result<()> {
    head(stream, "206 Partial Content", &[headers, &[("transfer-encoding", "chunked")]].concat())?;
    let filling = filling.repeat(10_000);
    let mut chunk = start;
    while sent.load(Ordering::SeqCst) < FLOOD {
        stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
        stream.write_all(chunk)?;
        stream.write_all(b"\r\n")?;
        sent.fetch_add(chunk.len(), Ordering::SeqCst);
        chunk = &filling;
    }
    stream.write_all(b"0\r\n\r\n")
}

#[test]
fn bodies_end_at_the_announced_size() {
    // Chunks without end; a Content-Length beyond the range; another size than a moment ago.
    for case in ["chunks", "length", "size"] {
        let (ground, sent) = (Ground::new("long"), Arc::new(AtomicUsize::new(0)));
        let count = sent.clone();
        let (url, _) = small(move |request, stream| {
            if request.is_listing() || request.is_metadata() {
                return Ok(false);
            }
            let headers = [
                ("etag", "config-json"),
                ("x-repo-commit", COMMIT),
                ("content-range", "bytes 0-99/100"),
            ];
            if case == "chunks" {
                return flood(stream, &headers, b" ", b" filling  ", &count).map(|()| true);
            }
            let range = if case == "size" { "bytes 0-104857599/104857600" } else { headers[2].1 };
            head(
                stream,
                "206 Partial Content",
                &[&headers[..2], &[("content-range", range), ("content-length", "104857600")]]
                    .concat(),
            )?;
            for _ in 0..FLOOD / 100_000 {
                stream.write_all(&[b' '; 100_000])?;
                count.fetch_add(100_000, Ordering::SeqCst);
            }
            Ok(true)
        });
        ground.refuses(&url, "goes on after the 100 bytes");
        assert!(sent.load(Ordering::SeqCst) < UNDER_WAY, "{case}: {sent:?}");
        assert!(ground.files().is_empty(), "{case}: {:?}", ground.files().keys());
    }
}

#[test]
fn listings_are_bounded() {
    let (ground, sent) = (Ground::new("listing"), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    let (url, _) = serve("127.0.0.1:0", move |_, stream| {
        flood(
            stream,
            &[],
            br#"{"sha":"x","siblings":[{"rfilename":"x"}"#,
            br#",{"rfilename":"x"}"#,
            &count,
        )
    });
    ground.refuses(&url, "longer than the 8 MiB");
    assert!(sent.load(Ordering::SeqCst) < (8 << 20) + UNDER_WAY, "{sent:?}");
    let deep = "[".repeat(1 << 20);
    for text in ["", "<html>", "[]", r#"{"sha":"x"}"#, "{\"sha\":\"\u{1b}\",\"siblings\":7}", &deep]
    {
        let body = text.as_bytes().to_vec();
        let (url, _) = serve("127.0.0.1:0", move |_, stream| respond(stream, "200 OK", &[], &body));
        assert!(
            !ground.refuses(&url, "listing of the repository cannot be read").contains('\u{1b}')
        );
    }
}

#[test]
fn announced_digests_are_verified() {
    let wrong = "0".repeat(64);
    // As the listing has it, and as the version of the file.
    for (listed, etag, is_right) in [
        (wrong.as_str(), "x", false),
        (DIGEST, &wrong, false),
        (&wrong, DIGEST, false),
        (DIGEST, "x", true),
        (DIGEST, DIGEST, true),
    ] {
        let ground = Ground::new("digest");
        let (listed, version) = (listed.to_owned(), etag.to_owned());
        let (url, _) = serve("127.0.0.1:0", move |request, stream| match request.is_listing() {
            true => {
                let text = format!(
                    r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"config.json","lfs":{{"sha256":"{listed}"}}}},{{"rfilename":"model.safetensors"}}]}}"#
                );
                respond(stream, "200 OK", &[], text.as_bytes())
            }
            false => send(request, stream, &version, &CONTENT),
        });
        // What is right goes as far as the model's files, which are none.
        let text = ground.refuses(&url, if is_right { NO_MODEL } else { "its SHA-256 is" });
        assert_eq!(text.contains("SHA-256"), !is_right, "{text}");
        assert_eq!(ground.files().is_empty(), !is_right, "{:?}", ground.files().keys());
    }
    let ground = Ground::new("no-digest");
    let text = br#"{"sha":"x","siblings":[{"rfilename":"config.json","lfs":{"sha256":"../x"}}]}"#;
    let (url, _) = serve("127.0.0.1:0", move |_, stream| respond(stream, "200 OK", &[], text));
    ground.refuses(&url, "64 hexadecimal digits would be accepted");
}

#[test]
fn control_characters_of_answers_are_escaped() {
    let ground = Ground::new("control");
    let (url, _) = serve("127.0.0.1:0", |_, stream| {
        respond(stream, "200 OK", &[], &listing("\u{1b}]0;owned\u{7}", &NAMES))
    });
    let text = ground.refuses(&url, r"\u{1b}]0;owned\u{7}");
    assert!(!text.contains(['\u{1b}', '\u{7}']), "{text}");
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let ground = Ground::new("settings");
    let refuses = |variable: &str, value: &str, expected: &str| {
        let mut command = ground.command("http://127.0.0.1:9", &["info", "people/tales"]);
        let output = command.env(variable, value).output().unwrap();
        let text = said(&output);
        assert!(
            !output.status.success() && text.contains(expected) && !text.contains("secret"),
            "{text}"
        );
    };
    refuses("HF_TOKEN", "secret\nX-Evil: 1", "one line of text would be accepted");
    refuses("HF_ENDPOINT", "ftp://127.0.0.1", "http or https would be accepted");
    refuses("HF_HUB_DOWNLOAD_TIMEOUT", "soon", "HF_HUB_DOWNLOAD_TIMEOUT is `soon`");
}

#[test]
fn hub_models_are_files_in_the_cache() {
    let ground = Ground::new("honest");
    let model = Path::new(TALES);
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let (url, _) = serve("127.0.0.1:0", move |request, stream| match request.is_listing() {
        true => respond(stream, "200 OK", &[], &listing(COMMIT, &names)),
        false => {
            send(request, stream, &etag(request.file()), &fs::read(model.join(request.file()))?)
        }
    });
    let before = ground.around();
    let output = ground.info(&url);
    assert!(output.status.success() && ground.around() == before, "{}", said(&output));
    // The layout of huggingface_hub: links from a commit's names to versions, which can be moved
    // together.
    let repository = ground.repository();
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    for name in names {
        let path = repository.join("snapshots").join(COMMIT).join(name);
        assert!(fs::read(&path).unwrap() == fs::read(model.join(name)).unwrap(), "{name}");
        #[cfg(unix)]
        assert_eq!(fs::read_link(path).unwrap(), Path::new("../../blobs").join(etag(name)));
    }
    assert_eq!(ground.files().len(), 7, "{:?}", ground.files().keys());
}
