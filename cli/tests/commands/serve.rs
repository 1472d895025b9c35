//! `bitnet serve`

use crate::{TALES, bitnet, errors, fails, json};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

/// A server with what `bitnet run` writes, until a signal ends it.
#[test]
#[cfg(unix)]
fn serve_answers_what_run_writes() {
    // Requests that say nothing have what the server was told.
    let options = ["--cpu", "--temperature", "0.9", "--seed", "3", "--max-tokens", "12"];
    let mut child = bitnet(&[&["serve", TALES, "--port", "0", "--json", "--grace", "1"][..], &options].concat());
    let mut child = child.env("BITNET_API_KEY", "sesame").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&ready["model"], &ready["slots"], &ready["context"]), (&"tales-22m".into(), &8.into(), &512.into()));
    let address = ready["address"].as_str().unwrap().strip_prefix("http://").unwrap();
    assert!(address.starts_with("127.0.0.1:"));
    let body = r#"{"prompt": "Once upon a time"}"#;
    let post = |key: &str| {
        let head = format!("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(format!("{head}Authorization: Bearer {key}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str::<Value>(body).unwrap())
    };
    let (status, answer) = post("sesame");
    let run = json(&[&["run", TALES, "Once upon a time"][..], &options].concat());
    assert_eq!((&*status, &answer["choices"][0]["text"], &answer["usage"]["completion_tokens"]), ("200", &run["text"], &12.into()));
    assert_eq!(post("open").0, "401");
    // The address is taken.
    let port = address.rsplit(':').next().unwrap();
    fails(&["serve", TALES, "--cpu", "--port", port], port);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && errors(&output).contains("ended"), "{output:?}");
}

#[test]
fn serve_refuses_what_cannot_be_served() {
    fails(&["serve", TALES, "--cpu", "--port", "0", "--slots", "0"], "--slots 0");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--context", "100000"], "--context 100000");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--api-key", ""], "API key");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--api-key", "a\nb"], "API key");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--temperature=-1"], "temperature");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--speculate", "ngram"], "--speculate");
    fails(&["serve", TALES, "--cpu", "--host", "no such host"], "no such host");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    fails(&["serve", "no/such/model", "--port", &port], "no/such/model");
}
