//! Requests byte by byte, as no client library writes them.
#![allow(dead_code, reason = "each program uses a part")]

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

/// A connection of which nothing is read before it is asked for.
pub fn connect(address: &str, bytes: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    connection.write_all(bytes).unwrap();
    connection
}

/// A request of HTTP/1.1 after whose answer the connection ends. Headers end with line breaks.
pub fn request(head: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    format!(
        "{head} HTTP/1.1\r\nConnection: close\r\n{headers}{}\r\n{body}",
        if body.is_empty() { "" } else { &length }
    )
    .into_bytes()
}

/// All that comes until the connection ends.
pub fn rest(connection: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    connection.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// What is answered to a request: the status, and all of the answer.
pub fn exchange(address: &str, request: &[u8]) -> (u16, String) {
    let answer = rest(&mut connect(address, request));
    (status(&answer), answer)
}

/// The status of an answer; 0 without one.
pub fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Sends a request, says that nothing more comes, and returns the answer.
pub fn half_closed(address: &str, request: &[u8]) -> String {
    let mut connection = connect(address, request);
    connection.shutdown(Shutdown::Write).unwrap();
    rest(&mut connection)
}

/// Whether anything comes, or the connection ends, within a while.
pub fn is_answered(connection: &TcpStream, within: Duration) -> bool {
    connection.set_read_timeout(Some(within)).unwrap();
    connection.peek(&mut [0]).is_ok()
}
