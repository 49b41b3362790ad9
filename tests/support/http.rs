//! HTTP as far as tests need it: one GET for each connection.

use std::{
    io::{self, Read, Write},
    net::{SocketAddrV4, TcpStream},
};

use crate::process::wait_until;

/// Status code and body of a GET request over that connection.
///
/// # Panics
/// When the answer is no HTTP, or the connection breaks.
pub fn get(stream: impl Read + Write, path: &str) -> (u16, String) {
    try_get(stream, path).expect("the server answers")
}

/// As [`get`], with a connection of its own.
///
/// # Panics
/// When nothing listens there, or the answer is no HTTP.
#[must_use]
pub fn get_at(address: SocketAddrV4, path: &str) -> (u16, String) {
    get(TcpStream::connect(address).expect("a server listens"), path)
}

/// As [`get_at`], of a server that may not answer yet, or no longer.
///
/// # Errors
/// When nothing listens there, or the connection breaks.
pub fn try_get_at(address: SocketAddrV4, path: &str) -> io::Result<(u16, String)> {
    try_get(TcpStream::connect(address)?, path)
}

fn try_get(stream: impl Read + Write, path: &str) -> io::Result<(u16, String)> {
    let answer = exchange(stream, path)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or_else(|| io::Error::other(format!("no status: {answer}")))?, body.to_owned()))
}

/// Head and body of the answer to a GET request.
///
/// # Errors
/// When the connection breaks.
pub fn exchange(mut stream: impl Read + Write, path: &str) -> io::Result<String> {
    // Version 1.0: the server closes the connection, and the body has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The value of a sample of a program's metrics, named with its labels.
///
/// # Panics
/// When nothing listens there, or there is no such sample.
#[must_use]
pub fn metric_at(address: SocketAddrV4, sample: &str) -> f64 {
    let (code, text) = get_at(address, "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{code}: no {sample} in\n{text}"))
}

/// Waits until `/ready` answers with that code and that text.
///
/// # Panics
/// When it does not.
pub fn wait_for_readiness(address: SocketAddrV4, code: u16, reason: &str) {
    wait_until(&format!("/ready is {code}, {reason}"), || {
        let (found, text) = get_at(address, "/ready");
        found == code && text.trim() == reason
    });
}

/// Text as a part of a query.
#[must_use]
pub fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
