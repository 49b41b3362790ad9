//! What `mdgw doctor` asks the nodes of the election's store. Without the stores' clients, since a build may lack them: each question
//! is one packet of bytes, and is asked without credentials.
//!
//! - etcd: `GET /health`, which etcd answers after a read that a majority has confirmed.
//! - etcd with TLS: the first message of a handshake. The answer shows that a TLS server is alive, and no more.
//! - ZooKeeper: a session, which a majority has to confirm. The doctor closes it at once.

use std::{
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    path::Path,
    time::{Duration, Instant},
};

use mdgw_doctor::{Endpoint, NoAnswer, Role};
use mdgw_status::control::{ControlError, Request, send_request_within};
use serde_json::Value;

use super::TIMEOUT;

/// How a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Over HTTP.
    EtcdHealth,
    /// For etcd with TLS.
    TlsHello,
    /// For ZooKeeper.
    Session,
}

/// Asks one node. Connection and answer may each take [`TIMEOUT`].
pub(super) fn ask(address: &str, question: Question) -> Result<String, NoAnswer> {
    let mut node = Node::connect(address).map_err(NoAnswer::Failed)?;
    let answer = match question {
        Question::EtcdHealth => node.etcd_health(address),
        Question::TlsHello => node.tls_hello(),
        Question::Session => node.session(),
    };
    answer.map_err(|read| NoAnswer::Wrong { read, command: command(address, question) })
}

/// Shows the answer to an operator.
fn command(address: &str, question: Question) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match question {
        Question::EtcdHealth => {
            format!("curl -sm 5 http://{address}/health    # and on that host: systemctl status etcd")
        }
        Question::TlsHello => {
            format!(
                "openssl s_client -brief -connect {address} < /dev/null    # and on that host: systemctl status etcd"
            )
        }
        Question::Session => {
            format!("echo srvr | nc -w 5 {host} {port}    # and on that host: systemctl status zookeeper")
        }
    }
}

struct Node {
    stream: TcpStream,
    /// When the answer has to be there.
    until: Instant,
}

impl Node {
    fn connect(address: &str) -> Result<Self, String> {
        let mut last = "the name has no address".to_owned();
        for address in address.to_socket_addrs().map_err(|error| error.to_string())? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => return Ok(Self { stream, until: Instant::now() + TIMEOUT }),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    fn etcd_health(&mut self, address: &str) -> Result<String, String> {
        let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let has_object = |answer: &[u8]| is_http2(answer) || answer.contains(&b'}');
        etcd_health(&self.exchange(request.as_bytes(), has_object)?)
    }

    fn tls_hello(&mut self) -> Result<String, String> {
        let answer = self.exchange(&CLIENT_HELLO, |answer| answer.len() >= 2)?;
        match answer.as_slice() {
            [TLS_ALERT | TLS_HANDSHAKE, TLS_MAJOR, ..] => {
                Ok("answers in TLS; the doctor does not log in, so its health is unknown".to_owned())
            }
            _ => Err("answers, but not in TLS".to_owned()),
        }
    }

    fn session(&mut self) -> Result<String, String> {
        let answer = self.exchange(&SESSION_REQUEST, |answer| answer.len() >= SESSION_ANSWER_BYTES);
        let answer = answer.map_err(|error| {
            if error == CLOSED { format!("{CLOSED}: it serves nobody, as without a majority") } else { error }
        })?;
        let opened = opened_session(&answer)?;
        // The node closes the connection when it has closed the session. Otherwise the session ends by its time-out.
        let _closed = self.exchange(&SESSION_CLOSE, |_| false);
        Ok(opened)
    }

    /// What the node answers, until `is_complete`, the connection's end, or the deadline. Never empty.
    fn exchange(&mut self, request: &[u8], is_complete: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, String> {
        let mut answer = Vec::new();
        let ended = self.try_exchange(request, is_complete, &mut answer);
        if !answer.is_empty() {
            return Ok(answer);
        }
        Err(match ended {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                format!("accepts a connection, and does not answer within {} s", TIMEOUT.as_secs())
            }
            // A reset too.
            _ => CLOSED.to_owned(),
        })
    }

    fn try_exchange(
        &mut self,
        request: &[u8],
        is_complete: impl Fn(&[u8]) -> bool,
        answer: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.stream.set_write_timeout(Some(TIMEOUT))?;
        self.stream.write_all(request)?;
        let mut buffer = [0; 1_024];
        while answer.len() < ANSWER_BYTES_MAX && !is_complete(answer) {
            let left = self.until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer)? {
                0 => break,
                count => answer.extend(buffer.iter().take(count)),
            }
        }
        Ok(())
    }
}

const CLOSED: &str = "accepts a connection, and closes it without an answer";
/// Far more than any of these answers has.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Characters of an answer that are shown.
const SHOWN_MAX: usize = 80;

fn etcd_health(answer: &[u8]) -> Result<String, String> {
    // Where etcd has an address of its own for HTTP/1 (`--listen-client-http-urls`).
    if is_http2(answer) {
        return Ok("answers in HTTP/2 alone, and /health at another address: its health is unknown".to_owned());
    }
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let object = body.find('{').zip(body.rfind('}')).and_then(|(from, to)| body.get(from..=to));
    let object: Value = object.and_then(|object| serde_json::from_str(object).ok()).unwrap_or_default();
    match object["health"].as_str() {
        Some("true") => Ok("answers that it is healthy".to_owned()),
        Some(_) => {
            let reason = object["reason"].as_str().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(": {}", shown(reason))).unwrap_or_default();
            Err(format!("answers that it is not healthy{reason}"))
        }
        None => Err(format!("answers, but not as etcd does: {}", shown(head.lines().next().unwrap_or_default()))),
    }
}

/// Whether it begins with the SETTINGS frame that each HTTP/2 server sends first (RFC 9113, 6.5).
fn is_http2(answer: &[u8]) -> bool {
    matches!(answer, [0, 0, _, 4, 0, 0, 0, 0, 0, ..])
}

/// Quoted, without control characters.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(SHOWN_MAX).collect::<String>())
}

const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
const TLS_MAJOR: u8 = 3;

/// The ClientHello of TLS 1.2 (RFC 5246, 7.4.1.2) with suites and curves that every server knows. A server of TLS 1.3 alone answers with an
/// alert. The random bytes are zero, since no connection follows.
const CLIENT_HELLO: [u8; 92] = {
    let mut hello = [0; 92];
    // Record: handshake, version, 87 bytes; message: ClientHello, 83 bytes, TLS 1.2. The random bytes follow.
    let head = [TLS_HANDSHAKE, TLS_MAJOR, 1, 0, 87, 1, 0, 0, 83, TLS_MAJOR, 3];
    let tail = [
        0, // no session
        0, 12, 0xc0, 0x2f, 0xc0, 0x30, 0xc0, 0x2b, 0xc0, 0x2c, 0xcc, 0xa8, 0xcc,
        0xa9, // ECDHE with AES-GCM, ChaCha20
        1, 0, // no compression
        0, 30, // extensions
        0, 10, 0, 6, 0, 4, 0, 29, 0, 23, // groups: x25519, secp256r1
        0, 13, 0, 10, 0, 8, 4, 3, 8, 4, 4, 1, 8, 5, // signatures: ECDSA, RSA-PSS, RSA
        0, 11, 0, 2, 1, 0, // points: uncompressed
    ];
    let mut at = 0;
    while at < head.len() {
        hello[at] = head[at];
        at += 1;
    }
    let from = head.len() + 32;
    assert!(from + tail.len() == hello.len());
    at = 0;
    while at < tail.len() {
        hello[from + at] = tail[at];
        at += 1;
    }
    hello
};

/// ZooKeeper's `ConnectRequest`: 45 bytes; protocol 0, no zxid, a time-out of 4,000 ms, a new session with a password of 16 bytes, no
/// read-only node. All numbers are big-endian.
const SESSION_REQUEST: [u8; 49] = {
    let mut request = [0; 49];
    request[3] = 45;
    [request[18], request[19]] = 4_000_u16.to_be_bytes();
    request[31] = 16;
    request
};
/// A `RequestHeader` of 8 bytes: xid 1, type -11, which closes the session.
const SESSION_CLOSE: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5];
/// Length, protocol, time-out, session, and a password of 16 bytes with its length. Newer servers send one byte more.
const SESSION_ANSWER_BYTES: usize = 40;

fn opened_session(answer: &[u8]) -> Result<String, String> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let is_answer = matches!(number(0), Some(36 | 37))
        && (number(4), number(20)) == (Some(0), Some(16))
        && answer.len() >= SESSION_ANSWER_BYTES;
    match number(8) {
        _ if !is_answer => Err("answers, but not as ZooKeeper does".to_owned()),
        Some(0) | None => Err("answers that it opens no session".to_owned()),
        Some(_) => Ok("opens a session".to_owned()),
    }
}

/// How the gateway that runs here, if one does, sees its store. A connection that it suspended or lost makes `mdgw ha status` say so too.
pub(super) fn of_gateway(socket: &Path) -> Option<Endpoint> {
    let answer = match send_request_within(socket, &Request::Status {}, TIMEOUT) {
        Ok(status) => of_status(&status, socket),
        Err(ControlError::Connect { source, .. }) if source.kind() != io::ErrorKind::PermissionDenied => return None,
        Err(error) => Err(NoAnswer::NotAsked(format!("the gateway that runs here: {error}"))),
    };
    Some(Endpoint { role: Role::StoreUser, address: socket.display().to_string(), answer })
}

fn of_status(status: &Value, socket: &Path) -> Result<String, NoAnswer> {
    // The view of a stuck election thread is old.
    let groups = status["groups"].as_array().into_iter().flatten().filter(|group| group["election_stalled"] != true);
    let known = groups.filter_map(|group| Some((group["group"].as_u64()?, group["connection"].as_str()?)));
    let known: Vec<_> = known.collect();
    let apart = known.iter().filter(|(_, connection)| !["connected", "reconnected"].contains(connection));
    let apart: Vec<_> = apart.map(|(group, connection)| format!("group {group}: {}", shown(connection))).collect();
    if known.is_empty() {
        Err(NoAnswer::NotAsked("the gateway that runs here does not know its connection to the store".to_owned()))
    } else if apart.is_empty() {
        Ok("the gateway that runs here is connected to the store".to_owned())
    } else {
        let read = format!("the gateway that runs here is not connected to the store: {}", apart.join(", "));
        Err(NoAnswer::Wrong { read, command: format!("mdgw ha status --socket {}", socket.display()) })
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use serde_json::json;

    use super::*;

    /// What the doctor reads at a listener that answers one connection with these bytes; `None`: it answers nothing.
    fn asked(question: Question, answer: Option<&[u8]>) -> Result<String, NoAnswer> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let Some(answer) = answer.map(<[u8]>::to_vec) else {
            // As of a process that is stopped: the kernel accepts.
            return ask(&address, question);
        };
        let answers = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = [0; 1_024];
            let count = connection.read(&mut request).unwrap();
            let _closed = connection.write_all(&answer);
            request.into_iter().take(count).collect::<Vec<_>>()
        });
        let asked = ask(&address, question);
        assert!(!answers.join().unwrap().is_empty());
        asked
    }

    fn wrong(question: Question, answer: Option<&[u8]>) -> String {
        match asked(question, answer) {
            Err(NoAnswer::Wrong { read, command }) => {
                assert!(command.contains("127.0.0.1"), "{command}");
                read
            }
            other => panic!("{question:?}: {other:?}"),
        }
    }

    const QUESTIONS: [Question; 3] = [Question::EtcdHealth, Question::TlsHello, Question::Session];

    #[test]
    fn a_listener_that_never_answers_or_answers_as_another_service_is_no_store() {
        for question in QUESTIONS {
            assert_eq!(wrong(question, None), "accepts a connection, and does not answer within 1 s");
            let closed = wrong(question, Some(b""));
            assert!(closed.starts_with("accepts a connection, and closes it without an answer"), "{closed}");
        }
        let prometheus = b"HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n";
        let not_etcd = "answers, but not as etcd does: \"HTTP/1.1 404 Not Found\"";
        assert_eq!(wrong(Question::EtcdHealth, Some(prometheus)), not_etcd);
        assert_eq!(wrong(Question::TlsHello, Some(prometheus)), "answers, but not in TLS");
        assert_eq!(wrong(Question::Session, Some(prometheus)), "answers, but not as ZooKeeper does");
        let odd = wrong(Question::EtcdHealth, Some(b"HTTP/1.1 \x1b[2J\xff\r\n\r\n{\"health\":1}"));
        assert!(!odd.contains('\x1b'), "{odd}");
    }

    #[test]
    fn a_node_of_etcd_is_as_healthy_as_it_says() {
        let answer =
            |status: &str, body: &str| format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let healthy = answer("200 OK", "{\"health\":\"true\",\"reason\":\"\"}");
        let asked = |answer: &[u8]| asked(Question::EtcdHealth, Some(answer));
        assert_eq!(asked(healthy.as_bytes()).as_deref(), Ok("answers that it is healthy"));
        let wrong = |text: &str| wrong(Question::EtcdHealth, Some(text.as_bytes()));
        let unavailable = answer("503 Service Unavailable", "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}");
        assert_eq!(wrong(&unavailable), "answers that it is not healthy: \"RAFT NO LEADER\"");
        let older = answer("503 Service Unavailable", "{\"health\":\"false\"}");
        assert_eq!(wrong(&older), "answers that it is not healthy");
        let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
        let http2 = asked(settings).unwrap();
        assert!(http2.starts_with("answers in HTTP/2 alone"), "{http2}");
    }

    #[test]
    fn a_tls_server_answers_with_its_part_of_the_handshake_or_an_alert() {
        for answer in [[22, 3, 3, 0, 1, 2], [21, 3, 1, 0, 2, 2]] {
            let read = asked(Question::TlsHello, Some(&answer)).unwrap();
            assert!(read.starts_with("answers in TLS; "), "{read}");
        }
    }

    #[test]
    fn a_node_of_zookeeper_opens_a_session_or_is_none() {
        let mut answer = [0; 41];
        [answer[3], answer[10], answer[11], answer[19], answer[23]] = [37, 0x0f, 0xa0, 7, 16];
        assert_eq!(asked(Question::Session, Some(&answer)).as_deref(), Ok("opens a session"));
        assert_eq!(asked(Question::Session, Some(&answer[..40])).as_deref(), Ok("opens a session"), "an older one");
        assert_eq!(wrong(Question::Session, Some(&answer[..39])), "answers, but not as ZooKeeper does");
        [answer[10], answer[11]] = [0, 0];
        assert_eq!(wrong(Question::Session, Some(&answer)), "answers that it opens no session");
        let closed = wrong(Question::Session, Some(b""));
        assert!(closed.ends_with("as without a majority"), "{closed}");
    }

    #[test]
    fn a_running_gateway_says_whether_its_store_answers() {
        let socket = Path::new("/run/mdgw/control");
        let group = |group: u16, connection: &str| json!({ "group": group, "connection": connection, "election_stalled": false });
        let of = |groups: &[Value]| of_status(&json!({ "groups": groups }), socket);
        assert!(of(&[group(1, "connected"), group(2, "reconnected")]).is_ok());
        let apart = of(&[group(1, "connected"), group(2, "suspended")]);
        let read = "the gateway that runs here is not connected to the store: group 2: \"suspended\"".to_owned();
        let command = "mdgw ha status --socket /run/mdgw/control".to_owned();
        assert_eq!(apart, Err(NoAnswer::Wrong { read, command }));
        let mut stalled = group(1, "connected");
        stalled["election_stalled"] = json!(true);
        for unknown in [&[][..], &[stalled], &[json!({ "group": 1 })], &[json!(7)]] {
            assert!(matches!(of(unknown), Err(NoAnswer::NotAsked(_))), "{unknown:?}");
        }
        assert_eq!(of_gateway(Path::new("/nonexistent/control")), None, "no gateway runs");
    }
}
