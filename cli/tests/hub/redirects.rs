//! Where a hub redirects to, and who sees the token.

use crate::{
    COMMIT, TALES, said,
    server::{Ground, Request, etag, listing, respond, send, serve, small},
};
use std::{fs, net::TcpStream, path::Path};

/// Another host of this machine; only Linux has one without being told.
const OTHER: &str = if cfg!(target_os = "linux") { "127.0.0.2:0" } else { "127.0.0.1:0" };

fn redirect(stream: &mut TcpStream, location: &str, etag: &str) -> std::io::Result<()> {
    respond(stream, "302 Found", &[("location", location), ("etag", etag), ("x-repo-commit", COMMIT)], b"")
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
            true => respond(stream, "200 OK", &[], &listing(COMMIT, &["config.json", "tokenizer.json", "model.safetensors"])),
            false => send_model(request, stream, "../../storage"),
        });
        let (hub, own) = serve("127.0.0.1:0", move |request, stream| {
            // A repository that was renamed, and then the storage.
            let location =
                if request.path.contains("renamed") { format!("{storage}{}", request.path) } else { format!("/renamed{}", request.path) };
            redirect(stream, &location, &etag(request.file()))
        });
        let output = ground.info(&hub);
        assert!(output.status.success(), "{}", said(&output));
        let authorizations =
            |requests: &[Request]| requests.iter().map(|request| request.header("authorization").map(str::to_owned)).collect::<Vec<_>>();
        let (seen, own) = (authorizations(&seen.lock().unwrap()), authorizations(&own.lock().unwrap()));
        assert!(seen.len() == 7 && seen.iter().all(Option::is_none), "{seen:?}");
        assert!(own.len() == 14 && own.iter().all(|token| token.as_deref() == Some("Bearer sesame")), "{own:?}");
    }
}

#[test]
fn token_of_the_file_is_sent() {
    let ground = Ground::new("token-file");
    fs::write(ground.cache().with_file_name("token"), "from-file\n").unwrap();
    let (url, requests) = small(|_, _| Ok(false));
    let output = ground.command(&url, &["info", "people/tales"]).env("HF_TOKEN", "").output().unwrap();
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
    for location in [sentinel.as_str(), "ftp://127.0.0.1/x", "data:,x", "http://", "http://me:secret@127.0.0.1:9/x", "http://\u{e9}/"] {
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
