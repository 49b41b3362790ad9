//! A real nats-server with JetStream, on loopback, and a reader of its streams that shares no code with the sink.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    bound_child,
    gateway_fixture::free_address,
    process::{TEST_TIMEOUT, comes_true, wait_until},
    skip::skip,
};

/// A server. It ends when it is dropped.
#[derive(Debug)]
pub struct NatsServer {
    /// Where it listens.
    pub address: SocketAddrV4,
    directory: TempDir,
    more: String,
    child: Option<Child>,
}

/// A message of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Subject.
    pub subject: String,
    /// Header lines.
    pub headers: String,
    /// Payload.
    pub payload: Vec<u8>,
}

impl StoredMessage {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Its `Nats-Msg-Id`; empty without one.
    #[must_use]
    pub fn id(&self) -> &str {
        self.header("Nats-Msg-Id").unwrap_or_default()
    }
}

impl NatsServer {
    /// A server that is not started yet, with further lines of configuration; `None` if none is installed: the test is then skipped.
    #[must_use]
    pub fn new(test: &str, more: &str) -> Option<Self> {
        let version = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            skip(test, "nats-server (package of Debian, in /usr/sbin) is not installed");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("nats").tempdir().expect("a directory for the server");
        Some(Self { address: free_address(), directory, more: more.to_owned(), child: None })
    }

    /// A server that takes requests.
    #[must_use]
    pub fn started(test: &str) -> Option<Self> {
        let mut server = Self::new(test, "")?;
        server.start();
        Some(server)
    }

    /// Starts it and waits until it takes requests. Its streams are what an earlier run left.
    ///
    /// # Panics
    /// When it doesn't start.
    pub fn start(&mut self) {
        let file = |name: &str| self.directory.path().join(name);
        let (address, more, store) = (self.address, &self.more, file("store"));
        let config = format!("listen: \"{address}\"\njetstream {{ store_dir: {:?} }}\n{more}\n", store.display());
        fs::write(file("server.conf"), config).expect("its configuration is written");
        let mut command = Command::new(PROGRAM);
        command.arg("-c").arg(file("server.conf")).arg("-l").arg(file("log"));
        // Where the server says why it ended, if it does.
        let errors = fs::File::options().create(true).append(true).open(file("log")).expect("its log is made");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        self.child = Some(bound_child::spawn(command).expect("the server starts"));
        wait_until("the server listens", || TcpStream::connect(self.address).is_ok());
        if self.more.is_empty() {
            wait_until("JetStream answers", || {
                Client::connect(self.address).is_some_and(|mut client| client.is_ready())
            });
        }
    }

    /// Kills it (SIGKILL).
    ///
    /// # Panics
    /// When it can't be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the server can be killed");
            let _status = child.wait().expect("and has ended");
        }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// What it has written to its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(Path::new(self.directory.path()).join("log")).unwrap_or_default()
    }

    /// Messages of a stream, `None` if there is no such stream.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn message_count(&self, stream: &str) -> Option<u64> {
        let info = self.request(&format!("STREAM.INFO.{stream}"), &json!({}));
        info["state"]["messages"].as_u64()
    }

    /// Whether the last message of a stream has that subject. It is read by its sequence: nats-server 2.9.10 can end when it is asked for
    /// the last one of a subject while others append.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn ends_with(&self, stream: &str, subject: &str) -> bool {
        let info = self.request(&format!("STREAM.INFO.{stream}"), &json!({}));
        let last = self.request(&format!("STREAM.MSG.GET.{stream}"), &json!({ "seq": info["state"]["last_seq"] }));
        last["message"]["subject"] == subject
    }

    /// A request of JetStream's API. A server that has just started may close a connection without an answer: then it is asked again.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn request(&self, what: &str, body: &Value) -> Value {
        let mut answer = None;
        let is_answered = comes_true(|| {
            answer = Client::connect(self.address).and_then(|mut client| client.request(what, body));
            answer.is_some()
        });
        assert!(is_answered, "{what}: no answer; the server's log:\n{}", self.log());
        answer.unwrap_or_default()
    }

    /// All messages of a stream, in its order.
    ///
    /// # Panics
    /// When the server does not answer, or the stream does not exist.
    #[must_use]
    pub fn messages(&self, stream: &str) -> Vec<StoredMessage> {
        let count = self.message_count(stream).expect("the stream exists");
        let mut client = self.client();
        // A consumer of an earlier call may still be there, and would deliver to the same subject.
        let subject = format!("messages.{}", SUBJECT_COUNT.fetch_add(1, Relaxed));
        client.send(format!("SUB {subject} 2\r\n").as_bytes());
        let config = json!({ "deliver_subject": subject, "ack_policy": "none", "deliver_policy": "all" });
        let consumer = json!({ "stream_name": stream, "config": config });
        client.publish(&format!("$JS.API.CONSUMER.CREATE.{stream}"), consumer.to_string().as_bytes());
        let mut messages = Vec::new();
        while (messages.len() as u64) < count {
            let message = client.read().expect("the server sends the stream");
            if message.subject.starts_with("answers.") {
                let answer: Value = serde_json::from_slice(&message.payload).expect("an answer in JSON");
                assert!(answer["error"].is_null(), "{answer}");
            } else {
                messages.push(message);
            }
        }
        messages
    }

    fn client(&self) -> Client {
        Client::connect(self.address).expect("the server takes a client")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client with one subscription, for answers.
struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: SocketAddrV4) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(TEST_TIMEOUT)).ok()?;
        let mut client = Self { reader: BufReader::new(stream) };
        client.line()?;
        client.send(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB answers.> 1\r\n");
        Some(client)
    }

    fn is_ready(&mut self) -> bool {
        self.publish("$JS.API.INFO", b"");
        self.read().is_some_and(|answer| !answer.payload.is_empty())
    }

    fn send(&mut self, bytes: &[u8]) {
        // A broken connection shows when it is read from.
        let _seen_by_read = self.reader.get_mut().write_all(bytes);
    }

    fn publish(&mut self, subject: &str, payload: &[u8]) {
        let mut bytes = format!("PUB {subject} answers.1 {}\r\n", payload.len()).into_bytes();
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(b"\r\n");
        self.send(&bytes);
    }

    fn request(&mut self, what: &str, body: &Value) -> Option<Value> {
        self.publish(&format!("$JS.API.{what}"), body.to_string().as_bytes());
        let answer = self.read()?;
        Some(serde_json::from_slice(&answer.payload).unwrap_or(Value::Null))
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.reader.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
    }

    fn read(&mut self) -> Option<StoredMessage> {
        loop {
            let line = self.line()?;
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |back: usize| fields.get(fields.len() - back).and_then(|text| text.parse::<usize>().ok());
            let (header_bytes, bytes) = match *fields.first()? {
                "MSG" => (0, number(1)?),
                "HMSG" => (number(2)?, number(1)?),
                "PING" => {
                    self.send(b"PONG\r\n");
                    continue;
                }
                _ => continue,
            };
            let mut content = vec![0; bytes + 2];
            self.reader.read_exact(&mut content).ok()?;
            content.truncate(bytes);
            let payload = content.split_off(header_bytes);
            let headers = String::from_utf8(content).ok()?;
            return Some(StoredMessage { subject: (*fields.get(1)?).to_owned(), headers, payload });
        }
    }
}

static SUBJECT_COUNT: AtomicU64 = AtomicU64::new(0);

/// Debian installs it in /usr/sbin, which not every user's PATH has; the tests' PATH does.
const PROGRAM: &str = "nats-server";
