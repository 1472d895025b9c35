//! `bitnet serve`

use crate::{Directory, TALES, bitnet, errors, fails, json};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

/// A server with what `bitnet run` writes, until a signal ends it.
#[test]
#[cfg(unix)]
fn serve_answers_what_run_writes() {
    // Requests that say nothing have what the server was told.
    let options = ["--cpu", "--temperature", "0.9", "--seed", "3", "--max-tokens", "12"];
    let mut child = bitnet(
        &[&["serve", TALES, "--port", "0", "--json", "--shutdown-timeout", "1"][..], &options]
            .concat(),
    );
    let mut child = child
        .env("BITNET_API_KEY", "sesame")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&ready["model"], &ready["slots"], &ready["context_length"]),
        (&"tales-22m".into(), &8.into(), &512.into())
    );
    let address = ready["address"].as_str().unwrap().strip_prefix("http://").unwrap();
    assert!(address.starts_with("127.0.0.1:"));
    let body = r#"{"prompt": "Once upon a time"}"#;
    let post = |key: &str| {
        let head = format!(
            "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
        let mut connection = TcpStream::connect(address).unwrap();
        connection
            .write_all(format!("{head}Authorization: Bearer {key}\r\n\r\n{body}").as_bytes())
            .unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str::<Value>(body).unwrap())
    };
    let (status, answer) = post("sesame");
    let run = json(&[&["run", TALES, "Once upon a time"][..], &options].concat());
    assert_eq!(
        (&*status, &answer["choices"][0]["text"], &answer["usage"]["completion_tokens"]),
        ("200", &run["text"], &12.into())
    );
    assert_eq!(post("open").0, "401");
    // The address is taken.
    let port = address.rsplit(':').next().unwrap();
    fails(&["serve", TALES, "--cpu", "--port", port], port);
    assert!(
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success()
    );
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && errors(&output).contains("server stopped"), "{output:?}");
}

/// A server whose first line of output has come, with its address.
fn started(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    (child, ready["address"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned())
}

/// What a server has said beside its output, which is ended.
fn ended(mut child: Child) -> String {
    child.kill().unwrap();
    errors(&child.wait_with_output().unwrap())
}

fn status(address: &str, headers: &str) -> String {
    let port = address.rsplit(':').next().unwrap();
    let mut connection = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    connection
        .write_all(
            format!("GET /v1/models HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").as_bytes(),
        )
        .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn serve_takes_keys_of_files_and_hosts() {
    let file = std::env::temp_dir().join(format!("bitnet-serve-keys-{}", std::process::id()));
    std::fs::write(&file, "sesame\n\n lentil \n").unwrap();
    let keys = [
        "--api-key",
        "pea",
        "--api-key",
        "bean",
        "--api-key-file",
        file.to_str().unwrap(),
        "--allowed-host",
        "tales.example",
    ];
    let (child, address) = started(&mut bitnet(
        &[&["serve", TALES, "--cpu", "--port", "0", "--json"][..], &keys].concat(),
    ));
    std::fs::remove_file(file).unwrap();
    for (key, expected) in
        [("pea", "200"), ("bean", "200"), ("sesame", "200"), ("lentil", "200"), ("rice", "401")]
    {
        assert_eq!(
            status(&address, &format!("Host: tales.example\r\nAuthorization: bearer {key}\r\n")),
            expected,
            "{key}"
        );
    }
    assert_eq!(status(&address, "Host: evil.example\r\nAuthorization: Bearer pea\r\n"), "403");
    ended(child);
    let mut command = bitnet(&["serve", TALES, "--cpu", "--port", "0", "--json"]);
    let (child, address) = started(command.env("BITNET_API_KEY", "sesame,lentil\npea\n"));
    for (key, expected) in [("sesame", "200"), ("lentil", "200"), ("pea", "200"), ("", "401")] {
        assert_eq!(
            status(&address, &format!("Host: localhost\r\nAuthorization: Bearer {key}\r\n")),
            expected,
            "{key}"
        );
    }
    ended(child);
}

#[test]
fn serve_warns_of_open_servers() {
    for (host, keys, is_warned) in [
        ("0.0.0.0", &[][..], true),
        ("0.0.0.0", &["--api-key", "pea"], false),
        ("127.0.0.1", &[], false),
    ] {
        let (child, address) = started(&mut bitnet(
            &[&["serve", TALES, "--cpu", "--port", "0", "--json", "--host", host], keys].concat(),
        ));
        status(&address, "Host: localhost\r\n");
        assert_eq!(ended(child).contains("without an API key"), is_warned, "{host} {keys:?}");
    }
}

#[cfg(unix)]
fn kill(signal: &str, child: &Child) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// Waits until something is so.
#[cfg(unix)]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed().as_secs() < 60, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The answers would take minutes, and the server would wait for them.
#[test]
#[cfg(unix)]
fn second_signals_end_serve_at_once() {
    let timeout = ["--ignore-eos", "--shutdown-timeout", "600"];
    for signal in ["-INT", "-TERM"] {
        let mut command =
            bitnet(&[&["serve", TALES, "--cpu", "--port", "0", "--json"][..], &timeout].concat());
        let (mut child, address) = started(&mut command);
        let body = r#"{"prompt": "Once", "n": 64, "max_tokens": 500}"#;
        let mut asked = TcpStream::connect(&address).unwrap();
        let head = "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json";
        write!(asked, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let health = || answer(&address, "GET /health", "");
        until("it does not run", || health().contains("\"running\":8"));
        kill(signal, &child);
        until("it does not end", || health().contains("\"ending\""));
        assert!(child.try_wait().unwrap().is_none(), "{signal}: it waits for answers");
        kill(signal, &child);
        until("it goes on", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
    }
}

#[test]
fn serve_takes_a_model_name() {
    let mut command = bitnet(&["serve", TALES, "--cpu", "--port", "0", "--json"]);
    let (child, address) = started(command.args(["--model-name", "my/tales"]));
    let models = answer(&address, "GET /v1/models", "");
    assert!(models.contains("\"id\":\"my/tales\""), "{models}");
    for (name, expected) in [("my/tales", " 200 "), ("tales-22m", " 404 ")] {
        let body = format!(r#"{{"prompt": "Once", "max_tokens": 1, "model": "{name}"}}"#);
        let text = answer(&address, "POST /v1/completions", &body);
        assert!(text.contains(expected), "{name}: {text}");
    }
    ended(child);
}

/// What a server answers to a request, with its head.
fn answer(address: &str, head: &str, body: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("{head} HTTP/1.0\r\nContent-Type: application/json");
    write!(connection, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// A GPU that is kept busy answers between, and the server ends as others do.
#[test]
#[cfg(unix)]
#[ignore = "needs a GPU"]
fn serve_keeps_a_gpu_warm() {
    let options = ["--gpu", "--port", "0", "--json", "--keep-warm"];
    let mut command = bitnet(&[&["serve", TALES][..], &options].concat());
    let (child, address) = started(&mut command);
    let busy = || processor_ticks(&child);
    let before = busy();
    std::thread::sleep(std::time::Duration::from_secs(1));
    // A software adapter computes on the processor.
    let spent = busy() - before;
    let body = r#"{"prompt": "Once upon", "max_tokens": 4, "temperature": 0}"#;
    let answers = [0; 2].map(|_| answer(&address, "POST /v1/completions", body));
    assert!(answers[0].contains(" 200 ") && answers[1].contains(" 200 "), "{answers:?}");
    kill("-TERM", &child);
    let output = child.wait_with_output().unwrap();
    let errors = errors(&output);
    assert!(output.status.success() && errors.contains("server stopped"), "{output:?}");
    assert!(!errors.contains("--keep-warm ended"), "{errors}");
    assert!(spent > 20 || !errors.contains("llvmpipe"), "{spent} ticks of a second: {errors}");
}

/// Processor time of a process, in ticks of 10 ms.
#[cfg(unix)]
fn processor_ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn keep_warm_needs_a_gpu() {
    fails(&["serve", TALES, "--cpu", "--keep-warm"], "--keep-warm");
}

/// Options of the server's manners: strictness, origins, the page, and the log of requests.
#[test]
fn serve_takes_options_of_requests() {
    let options = ["--strict", "--no-page", "--cors-origin", "https://app.example"];
    let mut command =
        bitnet(&[&["serve", TALES, "--cpu", "--port", "0", "--json"][..], &options].concat());
    let (child, address) = started(command.env("RUST_LOG", "bitnet_serve=info"));
    let ask = |head: &str, headers: &str, body: &str| {
        let mut connection = TcpStream::connect(&address).unwrap();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    let body = r#"{"prompt": "Once", "max_tokens": 1, "user": "me"}"#;
    assert!(ask("POST /v1/completions", "", body).contains("--strict"));
    assert!(ask("GET /", "", "").contains(" 404 "));
    let answer = ask("GET /health", "Origin: https://app.example\r\n", "");
    assert!(answer.contains("access-control-allow-origin: https://app.example"), "{answer}");
    let log = ended(child);
    assert!(log.contains("127.0.0.1 POST /v1/completions 400 "), "{log}");
}

#[test]
#[cfg(unix)]
fn serve_names_the_limit_of_open_files() {
    let serve = bitnet(&["serve", TALES, "--cpu", "--port", "0"]);
    let limited = |files: usize| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")])
            .arg(serve.get_program())
            .args(serve.get_args());
        shell
    };
    for files in [8, 64] {
        let output = limited(files).output().unwrap();
        let text = errors(&output);
        assert!(
            output.status.code() == Some(1)
                && text.contains(&format!("may open {files} files; at least 65 are needed")),
            "{text}"
        );
    }
    let (child, address) = started(limited(70).arg("--json"));
    assert_eq!(status(&address, "Host: localhost\r\n"), "200");
    ended(child);
}

/// Sizes of a process's memory in KiB: now, and at most until now.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn resident(child: &Child) -> [u64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    })
}

/// 64 bodies of 4 MiB at once, of three kinds; they took 1.3 GB and more, of which most stayed.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn serve_returns_the_memory_of_a_burst() {
    let (child, address) =
        started(&mut bitnet(&["serve", TALES, "--cpu", "--port", "0", "--json"]));
    let text = |count: usize| "a ".repeat(count);
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, text(500));
    let bodies = [
        format!(r#"{{"prompt":"{}"}}"#, text(2_097_000)),
        format!(r#"{{"messages":[{}]}}"#, vec![message; 4000].join(",")),
        format!(r#"{{"prompt":[{}1]}}"#, "1,".repeat(2_097_000)),
    ];
    let ask = |path: &str, body: &str| {
        let mut connection = TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // It may be refused before all of it is sent.
        let _ = connection
            .write_all(head.as_bytes())
            .and_then(|()| connection.write_all(body.as_bytes()));
        let mut answer = String::new();
        let _ = connection.read_to_string(&mut answer);
    };
    ask("/v1/completions", r#"{"prompt":"Once","max_tokens":8}"#);
    let [before, _] = resident(&child);
    for body in &bodies {
        let path =
            if body.contains("messages") { "/v1/chat/completions" } else { "/v1/completions" };
        std::thread::scope(|scope| (0..64).for_each(|_| drop(scope.spawn(|| ask(path, body)))));
    }
    let [_, most] = resident(&child);
    assert!(most < 10 * before && most < 320 << 10, "{most} KiB at most, {before} before");
    let after = (0..60).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        resident(&child)[0]
    });
    let after = after.into_iter().find(|after| 5 * after <= 6 * before);
    assert!(after.is_some(), "{} KiB stay, {before} were there before", resident(&child)[0]);
    ended(child);
}

#[test]
fn serve_refuses_what_cannot_be_served() {
    let file = std::env::temp_dir().join(format!("bitnet-keys-{}", std::process::id()));
    std::fs::write(&file, "\n \n").unwrap();
    fails(
        &["serve", TALES, "--cpu", "--port", "0", "--api-key-file", file.to_str().unwrap()],
        "no keys",
    );
    std::fs::remove_file(&file).unwrap();
    fails(
        &["serve", TALES, "--cpu", "--port", "0", "--api-key-file", file.to_str().unwrap()],
        "--api-key-file",
    );
    fails(
        &["serve", TALES, "--cpu", "--port", "0", "--allowed-host", "http://tales.example"],
        "without a port",
    );
    fails(&["serve", TALES, "--cpu", "--port", "0", "--slots", "0"], "--slots 0");
    fails(
        &["serve", TALES, "--cpu", "--port", "0", "--context-length", "100000"],
        "--context-length 100000",
    );
    fails(&["serve", TALES, "--cpu", "--port", "0", "--api-key", ""], "API key");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--api-key", "a\nb"], "API key");
    fails(
        &["serve", TALES, "--cpu", "--port", "0", "--cors-origin", "app.example"],
        "not an origin",
    );
    #[cfg(unix)]
    let damaged = std::os::unix::ffi::OsStrExt::from_bytes(b"a\xff");
    #[cfg(not(unix))]
    let damaged = std::ffi::OsStr::new("");
    for keys in [std::ffi::OsStr::new(""), std::ffi::OsStr::new("a,,b"), damaged] {
        let mut command = bitnet(&["serve", TALES, "--cpu", "--port", "0"]);
        let output = command.env("BITNET_API_KEY", keys).output().unwrap();
        let text = errors(&output);
        assert!(!output.status.success() && text.contains("BITNET_API_KEY"), "{text}");
    }
    fails(&["serve", TALES, "--cpu", "--port", "0", "--temperature=-1"], "temperature");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--speculate", "ngram"], "--speculate");
    fails(&["serve", TALES, "--cpu", "--host", "no such host"], "no such host");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    fails(&["serve", "no/such/model", "--port", &port], "no/such/model");
}

#[test]
fn served_chats_have_a_given_date() {
    let directory = Directory::new("served-date");
    let template = directory.path("template");
    fs::write(&template, "{{ strftime_now('%d %b %Y') }}|{{ messages[0].content }}").unwrap();
    let how = ["--chat-template", &template, "--date", "2026-07-04"];
    let mut command =
        bitnet(&[&["serve", TALES, "--port", "0", "--json", "--cpu"][..], &how].concat());
    let (child, address) = started(&mut command);
    let body = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
    let mut connection = TcpStream::connect(address).unwrap();
    let head = "POST /tokenize HTTP/1.0\r\nContent-Type: application/json";
    write!(connection, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let alone = json(&[&["tokenize", TALES, "Hi", "--chat"][..], &how].concat());
    assert_eq!(
        (&answer["tokens"], &alone["text"]),
        (&alone["token_ids"], &"04 Jul 2026|Hi".into())
    );
    ended(child);
}
