//! A small HTTP client, and a server in this process.
#![allow(dead_code, reason = "each program uses a part")]

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// An answer whose head has come.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    body: BufReader<TcpStream>,
}

/// Sends a request. In HTTP/1.0, so that the body comes as it is, and ends with the connection.
pub fn open(
    address: &str,
    head: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<TcpStream> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut text = format!("{head} HTTP/1.0\r\nHost: {address}\r\n");
    let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !body.is_empty() && !given("Content-Length") {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    if !body.is_empty() && !given("Content-Type") {
        text += "Content-Type: application/json\r\n";
    }
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    connection.write_all(&[(text + "\r\n").as_bytes(), body].concat())?;
    Ok(connection)
}

/// Sends a request, and waits for the head of its answer.
pub fn send(
    address: &str,
    head: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    answer(open(address, head, headers, body)?)
}

pub fn answer(connection: TcpStream) -> std::io::Result<Answer> {
    let mut body = BufReader::new(connection);
    let mut line = String::new();
    body.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or(std::io::ErrorKind::InvalidData)?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        body.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    Ok(Answer { status, headers, body })
}

pub fn get(address: &str, path: &str) -> Answer {
    send(address, &format!("GET {path}"), &[], b"").unwrap()
}

pub fn post(address: &str, path: &str, body: &Value) -> Answer {
    send(address, &format!("POST {path}"), &[], body.to_string().as_bytes()).unwrap()
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| &*header.1)
    }

    /// The rest of the answer, as far as it comes.
    pub fn text(mut self) -> String {
        let mut text = String::new();
        let _ = self.body.read_to_string(&mut text);
        text
    }

    pub fn json(mut self) -> Value {
        let mut text = String::new();
        self.body.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The data of the next event; none after the last.
    pub fn event(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.body.read_line(&mut line).unwrap_or(0) > 0 {
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
            line.clear();
        }
        None
    }

    /// The data of all events that are left, with their names.
    pub fn named_events(mut self) -> Vec<(String, Value)> {
        let mut text = String::new();
        self.body.read_to_string(&mut text).unwrap();
        let event = |block: &str| {
            let (name, data) = block.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name.to_owned(), serde_json::from_str(data).unwrap()))
        };
        text.split("\n\n").filter_map(event).collect()
    }

    /// The data of the last event.
    pub fn last_event(mut self) -> String {
        std::iter::from_fn(|| self.event()).last().unwrap_or_default()
    }

    /// All chunks that are left; the last event is `[DONE]`.
    pub fn chunks(mut self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let mut events: Vec<String> = std::iter::from_fn(|| self.event()).collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}
