//! Where a hub redirects to, and who sees the token.

use crate::{
    COMMIT, TALES, said,
    server::{
        CONTENT, DIGEST, FLOOD, Ground, NO_MODEL, Request, UNDER_WAY, etag, listing, respond, send,
        serve, small,
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

/// Another host of this machine; only Linux has one without being told.
const OTHER: &str = if cfg!(target_os = "linux") { "127.0.0.2:0" } else { "127.0.0.1:0" };

fn redirect(stream: &mut TcpStream, location: &str, etag: &str) -> std::io::Result<()> {
    respond(
        stream,
        "302 Found",
        &[("location", location), ("etag", etag), ("x-repo-commit", COMMIT)],
        b"",
    )
}

fn send_model(request: &Request, stream: &mut TcpStream, etag: &str) -> std::io::Result<()> {
    send(request, stream, etag, &fs::read(Path::new(TALES).join(request.file()))?)
}

#[test]
fn token_stays_with_the_endpoint() {
    // Another host, and another port of the same.
    for address in [OTHER, "127.0.0.1:0"] {
        let ground = Ground::new("token");
        // A storage has versions of its own, and the hub's are taken.
        let (storage, seen) = serve(address, |request, stream| match request.is_listing() {
            true => respond(
                stream,
                "200 OK",
                &[],
                &listing(COMMIT, &["config.json", "tokenizer.json", "model.safetensors"]),
            ),
            false => send_model(request, stream, "../../storage"),
        });
        let (hub, own) = serve("127.0.0.1:0", move |request, stream| {
            // A repository that was renamed, and then the storage.
            let location = if request.path.contains("renamed") {
                format!("{storage}{}", request.path)
            } else {
                format!("/renamed{}", request.path)
            };
            redirect(stream, &location, &etag(request.file()))
        });
        let output = ground.info(&hub);
        assert!(output.status.success(), "{}", said(&output));
        let authorizations = |requests: &[Request]| {
            requests
                .iter()
                .map(|request| request.header("authorization").map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let (seen, own) =
            (authorizations(&seen.lock().unwrap()), authorizations(&own.lock().unwrap()));
        assert!(seen.len() == 7 && seen.iter().all(Option::is_none), "{seen:?}");
        assert!(
            own.len() == 14 && own.iter().all(|token| token.as_deref() == Some("Bearer sesame")),
            "{own:?}"
        );
    }
}

#[test]
fn storages_cannot_change_large_files() {
    for (content, expected) in [(CONTENT, NO_MODEL), ([b'x'; 100], "its SHA-256 is")] {
        let ground = Ground::new("storage");
        let (storage, _) =
            serve(OTHER, move |request, stream| send(request, stream, "storage", &content));
        let (url, _) = small(move |request, stream| {
            let (is_stored, is_moved) =
                (request.file() == "model.safetensors", request.path.contains("moved"));
            let next = if is_moved {
                format!("{storage}{}", request.path)
            } else {
                format!("/moved{}", request.path)
            };
            if is_stored {
                let version = if is_moved { ("etag", "moved") } else { ("x-linked-etag", DIGEST) };
                respond(stream, "302 Found", &[("location", &next), version], b"")?;
            }
            Ok(is_stored)
        });
        ground.refuses(&url, expected);
        assert_eq!(ground.repository().join("blobs").join(DIGEST).exists(), expected == NO_MODEL);
    }
}

#[test]
fn proxies_cannot_flood() {
    let (ground, sent) = (Ground::new("proxy"), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    let (proxy, requests) = serve("127.0.0.1:0", move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nx: ")?;
        for _ in 0..FLOOD / 100_000 {
            stream.write_all(&[b'x'; 100_000])?;
            count.fetch_add(100_000, Ordering::SeqCst);
        }
        Ok(())
    });
    let mut command = ground.command("http://127.0.0.1:9", &["info", "people/tales"]);
    let output = command.env("ALL_PROXY", proxy).env("NO_PROXY", "").output().unwrap();
    assert!(
        !output.status.success() && said(&output).contains("the hub does not list its files"),
        "{}",
        said(&output)
    );
    assert!(sent.load(Ordering::SeqCst) < UNDER_WAY, "{sent:?}");
    let requests = requests.lock().unwrap();
    assert!(requests.len() == 1 && requests[0].header("authorization").is_none(), "{requests:?}");
}

#[test]
fn token_of_the_file_is_sent() {
    let ground = Ground::new("token-file");
    fs::write(ground.cache().with_file_name("token"), "from-file\n").unwrap();
    let (url, requests) = small(|_, _| Ok(false));
    let output =
        ground.command(&url, &["info", "people/tales"]).env("HF_TOKEN", "").output().unwrap();
    assert!(!said(&output).contains("from-file"), "{}", said(&output));
    assert_eq!(requests.lock().unwrap()[0].header("authorization"), Some("Bearer from-file"));
}

#[test]
fn redirects_are_bounded_and_of_http() {
    let ground = Ground::new("loop");
    // A listing, or a file, that leads to itself.
    for (of_files, total) in [(false, 6), (true, 7)] {
        let (url, requests) = small(move |request, stream| {
            let redirected = request.is_listing() != of_files;
            if redirected {
                redirect(stream, &request.path, "x")?;
            }
            Ok(redirected)
        });
        ground.refuses(&url, "further than the 5 times");
        assert_eq!(requests.lock().unwrap().len(), total);
    }
    let sentinel = format!("file://{}", ground.outside().join("sentinel").display());
    for location in [
        sentinel.as_str(),
        "ftp://127.0.0.1/x",
        "data:,x",
        "http://",
        "http://me:secret@127.0.0.1:9/x",
        "http://\u{e9}/",
    ] {
        let target = location.to_owned();
        let (url, requests) = small(move |request, stream| {
            if !request.is_listing() {
                redirect(stream, &target, "x")?;
            }
            Ok(!request.is_listing())
        });
        let text = ground.refuses(&url, "redirects to");
        assert!(!text.contains("secret") && requests.lock().unwrap().len() == 2, "{text}");
    }
    assert!(ground.files().is_empty());
}
