//! Downloads that stop and go on, alone and beside others.

use crate::{
    COMMIT, TALES, said,
    server::{
        CONTENT, Ground, NO_MODEL, Request, etag, head, listing, respond, send, serve, small,
    },
};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

const WEIGHTS: &str = "model.safetensors";
const NAMES: [&str; 3] = ["config.json", "tokenizer.json", WEIGHTS];

fn model(file: &str) -> Vec<u8> {
    fs::read(Path::new(TALES).join(file)).unwrap()
}

/// Serves the shipped model; `weights` answers requests for the weights themselves.
fn hub(
    weights: impl Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> (String, crate::server::Requests) {
    serve("127.0.0.1:0", move |request, stream| match request.file() {
        _ if request.is_listing() => respond(stream, "200 OK", &[], &listing(COMMIT, &NAMES)),
        WEIGHTS if !request.is_metadata() => weights(request, stream),
        file => send(request, stream, &etag(file), &model(file)),
    })
}

/// Sends the first half of what is asked for, and then nothing until the connection is closed.
fn send_half(request: &Request, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let (start, size) = (request.start(), bytes.len());
    let (range, length) =
        (format!("bytes {start}-{}/{size}", size - 1), (size - start).to_string());
    let etag = etag(request.file());
    head(
        stream,
        "206 Partial Content",
        &[
            ("etag", &etag),
            ("x-repo-commit", COMMIT),
            ("content-range", &range),
            ("content-length", &length),
        ],
    )?;
    stream.write_all(&bytes[start..start + (size - start) / 2])?;
    stream.read(&mut [0]).map(|_| ())
}

/// The first bytes that were asked for in downloads of a file.
fn starts(requests: &[Request], file: &str) -> Vec<usize> {
    requests
        .iter()
        .filter(|request| request.file() == file && !request.is_metadata())
        .map(Request::start)
        .collect()
}

#[test]
fn killed_downloads_go_on() {
    let (ground, bytes) = (Ground::new("killed"), model(WEIGHTS));
    let half = bytes.len() / 2;
    let (url, _) = hub(move |request, stream| send_half(request, stream, &bytes));
    let mut child = ground.command(&url, &["info", "people/tales"]).spawn().unwrap();
    while ground.partial(WEIGHTS).metadata().map_or(0, |partial| partial.len()) < half as u64 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (url, requests) =
        hub(|request, stream| send(request, stream, &etag(WEIGHTS), &model(WEIGHTS)));
    let output = ground.info(&url);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(starts(&requests.lock().unwrap(), WEIGHTS), [half]);
    assert!(
        ground.files().values().any(|file| *file == model(WEIGHTS))
            && !ground.partial(WEIGHTS).exists()
    );
}

#[test]
fn stalled_downloads_end() {
    let ground = Ground::new("stalled");
    let (url, requests) = small(|request, stream| {
        let is_body = !request.is_listing() && !request.is_metadata();
        if is_body {
            send_half(request, stream, &CONTENT)?;
        }
        Ok(is_body)
    });
    let output = ground
        .command(&url, &["info", "people/tales"])
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "1")
        .output()
        .unwrap();
    assert!(said(&output).contains("the download stalled"), "{}", said(&output));
    assert_eq!(
        starts(&requests.lock().unwrap(), "config.json"),
        [0, 50, 75],
        "each attempt goes on"
    );
}

#[test]
fn concurrent_downloads_fetch_a_file_once() {
    let (ground, metadata) = (Ground::new("concurrent"), Arc::new(Mutex::new(0)));
    let seen = metadata.clone();
    let (url, requests) = serve("127.0.0.1:0", move |request, stream| {
        let file = request.file();
        if request.is_listing() {
            return respond(stream, "200 OK", &[], &listing(COMMIT, &NAMES));
        }
        if file == WEIGHTS && request.is_metadata() {
            *seen.lock().unwrap() += 1;
        }
        // Until both want the file.
        while file == WEIGHTS && !request.is_metadata() && *seen.lock().unwrap() < 2 {
            thread::sleep(Duration::from_millis(10));
        }
        send(request, stream, &etag(file), &model(file))
    });
    let children: Vec<_> =
        (0..2).map(|_| ground.command(&url, &["info", "people/tales"]).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    assert_eq!(starts(&requests.lock().unwrap(), WEIGHTS), [0]);
    assert!(ground.files().values().any(|file| *file == model(WEIGHTS)));
}

#[test]
fn resumed_files_are_of_one_version() {
    // The version changes between two requests: what is there is kept for the old one.
    let ground = Ground::new("versions");
    ground.plant(&ground.partial("config.json"), &CONTENT[..40]);
    let (url, _) = small(|request, stream| {
        let is_body = !request.is_listing() && !request.is_metadata();
        if is_body {
            send(request, stream, "new", &CONTENT)?;
        }
        Ok(is_body)
    });
    ground.refuses(&url, "the ETag new, and another one a moment ago");
    assert_eq!(fs::read(ground.partial("config.json")).unwrap(), CONTENT[..40]);
    // A range that was not asked for.
    let (url, _) = small(|request, stream| {
        let is_body = !request.is_listing() && !request.is_metadata();
        if is_body {
            let headers = [("etag", "config-json"), ("content-range", "bytes 50-99/100")];
            respond(stream, "206 Partial Content", &headers, &CONTENT[50..])?;
        }
        Ok(is_body)
    });
    ground.refuses(&url, "begins at byte 50; 40 was asked for");
}

#[test]
fn hubs_without_ranges_begin_anew() {
    let ground = Ground::new("no-ranges");
    ground.plant(&ground.partial("config.json"), b"of another kind");
    let (url, _) = small(|request, stream| {
        if !request.is_listing() {
            respond(stream, "200 OK", &[("etag", &etag(request.file()))], &CONTENT)?;
        }
        Ok(!request.is_listing())
    });
    ground.refuses(&url, NO_MODEL);
    assert_eq!(fs::read(ground.repository().join("blobs/config-json")).unwrap(), CONTENT);
}

#[test]
fn empty_files_are_downloaded() {
    let ground = Ground::new("empty");
    let (url, requests) = small(|request, stream| {
        if !request.is_listing() {
            respond(
                stream,
                "416 Range Not Satisfiable",
                &[("etag", &etag(request.file())), ("content-range", "bytes */0")],
                b"",
            )?;
        }
        Ok(!request.is_listing())
    });
    ground.refuses(&url, "model.safetensors");
    assert_eq!(requests.lock().unwrap().len(), 3, "a listing, and one request for each file");
    assert!(fs::read(ground.repository().join("blobs/config-json")).unwrap().is_empty());
}
