//! The connection to the servers: requests of JetStream's API, appends and their answers.
//!
//! Only the protocol of nats-server 2.9 is used, as Debian has it: the client's own JetStream interface would also bring requests that it
//! does not know.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Subscriber};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use mdgw_keys::{SECRET_BYTES_MAX, SecretFile, read_owner_only};
use serde::Deserialize;
use serde_json::json;

use crate::{
    SinkError,
    config::{Login, ServerConfig, StreamConfig},
    message::{SinkMessage, header},
    name::{ChannelEnd, Content, Name, Place, SessionText},
    writer::{Answer, Expectation, LastMessage, StreamEnd},
};

/// A connection that comes back by itself when it is lost.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    client: Client,
    health: Arc<Health>,
    request_timeout: Duration,
}

/// What the client reports of its connection.
#[derive(Debug, Default)]
pub(crate) struct Health {
    is_connected: AtomicBool,
    /// How often the connection was lost.
    losses: AtomicU64,
    /// The same for operators, without answers that the client dropped.
    disconnects: Arc<AtomicU64>,
}

impl Connection {
    /// Connects once. `disconnects` counts how often the connection is lost from then on.
    pub(crate) async fn open(config: &ServerConfig, disconnects: &Arc<AtomicU64>) -> Result<Self, SinkError> {
        let health = Arc::new(Health { disconnects: Arc::clone(disconnects), ..Health::default() });
        let events = Arc::clone(&health);
        let mut options = ConnectOptions::new()
            .name("mdgw nats")
            .connection_timeout(config.request_timeout)
            .ping_interval(PING_INTERVAL)
            .subscription_capacity(ANSWERS_MAX)
            .skip_subject_validation(true)
            .reconnect_delay_callback(|attempts| if attempts < 2 { Duration::ZERO } else { RECONNECT_INTERVAL })
            .event_callback(move |event| {
                let health = Arc::clone(&events);
                async move { health.observe(&event) }
            });
        let secret = |path: &PathBuf| read_owner_only(SecretFile::Password, path, SECRET_BYTES_MAX);
        options = match &config.login {
            Login::None => options,
            Login::Token(path) => options.token(secret(path)?.trim().to_owned()),
            Login::User(user, path) => options.user_and_password(user.clone(), secret(path)?.trim().to_owned()),
            Login::Credentials(path) => options
                .credentials(&secret(path)?)
                .map_err(|source| SinkError::Credentials { path: path.clone(), source })?,
        };
        if let Some(tls) = &config.tls {
            options = options.require_tls(true);
            if let Some(ca_file) = &tls.ca_file {
                options = options.add_root_certificates(ca_file.clone());
            }
            if let Some((certificate, key)) = &tls.identity {
                // The client reads it again. Who else may read it is checked here.
                read_owner_only(SecretFile::PrivateKey, key, SECRET_BYTES_MAX)?;
                options = options.add_client_certificate(certificate.clone(), key.clone());
            }
        }
        let client = options.connect(&config.servers).await.map_err(|error| match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                SinkError::LoginRefused { servers: config.servers.join(", "), reason: error.to_string() }
            }
            ConnectErrorKind::ServerParse | ConnectErrorKind::Tls => {
                SinkError::Connect { servers: config.servers.join(", "), reason: error.to_string() }
            }
            _ => SinkError::Unreachable { servers: config.servers.join(", "), reason: error.to_string() },
        })?;
        health.is_connected.store(true, Relaxed);
        Ok(Self { client, health, request_timeout: config.request_timeout })
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.health.is_connected.load(Relaxed)
    }

    /// How often the connection was lost.
    pub(crate) fn losses(&self) -> u64 {
        self.health.losses.load(Relaxed)
    }

    /// Receives the answers to appends whose answers go below that inbox.
    pub(crate) async fn answers(&self, inbox: &str) -> Result<Subscriber, SinkError> {
        let subject = format!("{inbox}.*.*");
        self.client.subscribe(subject).await.map_err(|error| SinkError::Request(format!("subscribe: {error}")))
    }

    /// An inbox of our own.
    pub(crate) fn inbox(&self) -> String {
        self.client.new_inbox()
    }

    /// Sends an append. Its answer comes to the inbox.
    pub(crate) async fn append(
        &self,
        stream: &str,
        inbox: &str,
        node: u8,
        message: SinkMessage,
        expectation: Expectation,
    ) -> Result<(), SinkError> {
        let Expectation { chain, last_sequence, last_id } = expectation;
        let reply = format!("{inbox}.{chain}.{}", last_sequence + 1);
        let mut headers = headers_of(&message, node);
        headers.insert("Nats-Msg-Id", message.id);
        headers.insert("Nats-Expected-Stream", stream);
        headers.insert("Nats-Expected-Last-Sequence", last_sequence.to_string());
        if let Some(id) = last_id {
            headers.insert("Nats-Expected-Last-Msg-Id", id);
        }
        let sent = self.client.publish_with_reply_and_headers(message.subject, reply, headers, message.payload.into());
        sent.await.map_err(|error| SinkError::Request(format!("publish: {error}")))
    }

    /// Reads the end of a stream, which is made if it does not exist.
    pub(crate) async fn stream_end(
        &self,
        stream: &str,
        subjects: &str,
        config: &StreamConfig,
    ) -> Result<StreamEnd, SinkError> {
        let info: StreamInfo = match self.request(&format!("STREAM.INFO.{stream}"), String::new()).await? {
            Ok(info) => info,
            Err(error) if error.err_code == STREAM_NOT_FOUND && config.create => {
                let request = new_stream(stream, subjects, config);
                let made = self.request(&format!("STREAM.CREATE.{stream}"), request).await?;
                let info = made.map_err(|error| error.of(&format!("create stream {stream}")))?;
                tracing::info!(stream, subjects, "nats: stream created");
                info
            }
            Err(error) => return Err(error.of(&format!("stream {stream}"))),
        };
        info.config.check(stream, subjects)?;
        let last_sequence = info.state.last_seq;
        if info.state.messages == 0 {
            return Ok(StreamEnd { last_sequence, last: None });
        }
        let request = json!({ "seq": last_sequence }).to_string();
        match self.request::<StoredMessage>(&format!("STREAM.MSG.GET.{stream}"), request).await? {
            Ok(stored) => {
                let last = stored
                    .message
                    .read()
                    .ok_or_else(|| SinkError::ForeignMessage { stream: stream.to_owned(), sequence: last_sequence })?;
                Ok(StreamEnd { last_sequence, last: Some(last) })
            }
            Err(error) if error.err_code == MESSAGE_NOT_FOUND => Ok(StreamEnd { last_sequence, last: None }),
            Err(error) => Err(error.of(&format!("last message of stream {stream}"))),
        }
    }

    async fn request<T: for<'de> Deserialize<'de>>(
        &self,
        what: &str,
        body: String,
    ) -> Result<Result<T, ApiError>, SinkError> {
        let request = self.client.request(format!("$JS.API.{what}"), body.into());
        let answer = tokio::time::timeout(self.request_timeout, request)
            .await
            .map_err(|_elapsed| SinkError::Request(format!("{what}: no answer in {:?}", self.request_timeout)))?
            .map_err(|error| SinkError::Request(format!("{what}: {error}")))?;
        let parsed: ApiResponse<T> = serde_json::from_slice(&answer.payload)
            .map_err(|error| SinkError::Request(format!("{what}: the answer cannot be read: {error}")))?;
        match parsed {
            ApiResponse::Error { error } => Ok(Err(error)),
            ApiResponse::Done(value) => Ok(Ok(value)),
        }
    }
}

impl Health {
    fn observe(&self, event: &Event) {
        match event {
            Event::Connected => self.is_connected.store(true, Relaxed),
            Event::Disconnected | Event::Closed => {
                self.losses.fetch_add(1, Relaxed);
                self.disconnects.fetch_add(1, Relaxed);
                self.is_connected.store(false, Relaxed);
            }
            // Answers were dropped: what became of their appends is unknown.
            Event::SlowConsumer(_) => _ = self.losses.fetch_add(1, Relaxed),
            _ => {}
        }
        tracing::debug!(%event, "nats: connection");
    }
}

/// Chain and sequence that an answer is for, and what it says. An answer that is no acknowledgement says why.
pub(crate) fn read_answer(message: &async_nats::Message) -> Option<(u64, u64, Result<Answer, String>)> {
    let (rest, sequence) = message.subject.as_str().rsplit_once('.')?;
    let (_, chain) = rest.rsplit_once('.')?;
    let (chain, sequence) = (chain.parse().ok()?, sequence.parse().ok()?);
    if message.payload.is_empty() {
        let status = message.status.map(|status| status.to_string()).unwrap_or_default();
        return Some((chain, sequence, Err(format!("no stream takes the subject (status {status})"))));
    }
    let answer = match serde_json::from_slice(&message.payload) {
        Ok(Acknowledgement { error: Some(error), .. }) => match error.err_code {
            WRONG_LAST_SEQUENCE | WRONG_LAST_ID => Ok(Answer::Refused),
            _ => Err(error.to_string()),
        },
        Ok(Acknowledgement { seq: Some(stored), duplicate, .. }) => {
            Ok(Answer::Stored { sequence: stored, is_duplicate: duplicate })
        }
        Ok(_) => Err("an answer without a sequence".to_owned()),
        Err(error) => Err(format!("the answer cannot be read: {error}")),
    };
    Some((chain, sequence, answer))
}

fn headers_of(message: &SinkMessage, node: u8) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let first = message.name.first;
    headers.insert(header::CHANNEL, message.name.channel.0.to_string());
    headers.insert(header::SESSION, SessionText(first.session).to_string());
    headers.insert(header::SEQUENCE, first.sequence.to_string());
    headers.insert(header::PART, first.part.to_string());
    headers.insert(header::INDEX, first.index.to_string());
    headers.insert(header::NODE, node.to_string());
    if let Some(ts_recv) = message.ts_recv {
        headers.insert(header::TS_RECV, ts_recv.to_string());
    }
    match message.name.content {
        Content::Records { .. } => {
            if let Some(next) = message.next_sequence() {
                headers.insert(header::NEXT, next.to_string());
            }
        }
        Content::Gap { next } => {
            headers.insert(header::KIND, "gap");
            headers.insert(header::NEXT, next.to_string());
        }
        Content::Hole { next } => {
            headers.insert(header::KIND, "hole");
            headers.insert(header::NEXT, next.to_string());
        }
        Content::End => headers.insert(header::KIND, "end"),
    }
    headers
}

fn new_stream(stream: &str, subjects: &str, config: &StreamConfig) -> String {
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let bytes_max = if config.bytes_max == 0 { json!(-1) } else { json!(config.bytes_max) };
    json!({
        "name": stream,
        "subjects": [subjects],
        "retention": "limits",
        "discard": "old",
        "storage": if config.in_memory { "memory" } else { "file" },
        "num_replicas": config.replicas,
        "max_bytes": bytes_max,
        "max_age": nanoseconds(config.age_max),
        "max_msgs": -1,
        "max_consumers": -1,
        "duplicate_window": nanoseconds(config.duplicate_window),
        "description": "written by mdgw nats",
    })
    .to_string()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ApiResponse<T> {
    Error { error: ApiError },
    Done(T),
}

/// An error of JetStream's API.
#[derive(Debug, Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

impl ApiError {
    fn of(&self, what: &str) -> SinkError {
        SinkError::Request(format!("{what}: {self}"))
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.description, self.err_code)
    }
}

#[derive(Deserialize)]
struct Acknowledgement {
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct StreamInfo {
    config: ExistingStream,
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamState {
    messages: u64,
    last_seq: u64,
}

#[derive(Deserialize)]
struct ExistingStream {
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    no_ack: bool,
    #[serde(default)]
    max_msgs_per_subject: i64,
}

impl ExistingStream {
    /// Whether the sink can do with a stream that somebody else made.
    fn check(&self, stream: &str, subjects: &str) -> Result<(), SinkError> {
        let unsuitable = |why: String| Err(SinkError::Unsuitable { stream: stream.to_owned(), why });
        if !self.subjects.iter().any(|subject| subject == subjects || subject == ">") {
            return unsuitable(format!("its subjects are {:?}, not {subjects:?}", self.subjects));
        }
        if self.no_ack {
            return unsuitable("it does not acknowledge (no_ack)".to_owned());
        }
        if self.max_msgs_per_subject > 0 {
            return unsuitable("it keeps a number of messages per subject, so it may lose the last ones".to_owned());
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct StoredMessage {
    message: RawMessage,
}

#[derive(Deserialize)]
struct RawMessage {
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl RawMessage {
    /// `None`: no sink wrote the message.
    fn read(&self) -> Option<LastMessage> {
        let headers = String::from_utf8(BASE64_STANDARD.decode(&self.hdrs).ok()?).ok()?;
        let payload = BASE64_STANDARD.decode(&self.data).ok()?;
        let value = |name: &str| {
            let mut fields = headers.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let name = Name::parse(value("Nats-Msg-Id")?, &payload)?;
        let next = value(header::NEXT).and_then(|text| text.parse().ok());
        let complete =
            next.filter(|next| matches!(name.content, Content::Records { .. }) && *next > name.first.sequence);
        Some(LastMessage {
            end: ChannelEnd {
                place: complete.map_or_else(|| name.next(), |next| Place::message(name.first.session, next)),
                has_ended: name.content == Content::End,
                ts_recv: value(header::TS_RECV).and_then(|text| text.parse().ok()).unwrap_or(0),
            },
            node: value(header::NODE).and_then(|text| text.parse().ok()),
        })
    }
}

/// JetStream's error codes.
const STREAM_NOT_FOUND: u32 = 10_059;
const MESSAGE_NOT_FOUND: u32 = 10_037;
const WRONG_LAST_SEQUENCE: u32 = 10_071;
const WRONG_LAST_ID: u32 = 10_070;
/// Answers that wait to be read: more than appends in flight.
const ANSWERS_MAX: usize = 1 << 17;
/// A token, password or credentials.
/// After two intervals without an answer the client gives a connection up.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(headers: &str, payload: &[u8]) -> RawMessage {
        RawMessage { hdrs: BASE64_STANDARD.encode(headers), data: BASE64_STANDARD.encode(payload) }
    }

    #[test]
    fn the_last_message_says_where_the_channel_goes_on() {
        let headers =
            "NATS/1.0\r\nnats-msg-id: XNAS.ITCH/1/2026-11-27.0/4711/0/2\r\nMdgw-Node:  2\r\nMdgw-Ts-Recv: 77\r\n\r\n";
        let last = raw(headers, &[4, 0, 0, 0].repeat(8)).read().unwrap();
        assert_eq!((last.node, last.end.ts_recv, last.end.has_ended), (Some(2), 77, false));
        assert_eq!((last.end.place.sequence, last.end.place.index), (4_711, 4));
        let complete =
            raw(&headers.replace("\r\n\r\n", "\r\nMdgw-Next: 4712\r\n\r\n"), &[4, 0, 0, 0].repeat(8)).read().unwrap();
        assert_eq!((complete.end.place.sequence, complete.end.place.index), (4_712, 0));
        let end = raw("NATS/1.0\r\nNats-Msg-Id: XNAS.ITCH/1/2026-11-27.0/9/end\r\n\r\n", &[]).read().unwrap();
        assert!(end.end.has_ended && end.node.is_none());
        for foreign in ["NATS/1.0\r\n\r\n", "NATS/1.0\r\nNats-Msg-Id: order-17\r\n\r\n", ""] {
            assert_eq!(raw(foreign, &[]).read(), None);
        }
        assert_eq!(RawMessage { hdrs: "%".to_owned(), data: String::new() }.read(), None);
    }

    #[test]
    fn a_stream_that_would_lose_or_not_take_messages_is_refused() {
        let stream = |subject: &str, no_ack, max_msgs_per_subject| ExistingStream {
            subjects: vec![subject.to_owned()],
            no_ack,
            max_msgs_per_subject,
        };
        assert!(stream("m.XNAS.ITCH.>", false, -1).check("M", "m.XNAS.ITCH.>").is_ok());
        for unsuitable in [stream("m.>", true, -1), stream("m.XNAS.ITCH.>", true, 0), stream(">", false, 1)] {
            let error = unsuitable.check("M", "m.XNAS.ITCH.>").unwrap_err().to_string();
            assert!(error.starts_with("stream M: "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_stored_message_is_refused_with_a_panic(headers: Vec<u8>, payload: Vec<u8>) {
            let hdrs = BASE64_STANDARD.encode(headers);
            let _refused_or_not = RawMessage { hdrs, data: BASE64_STANDARD.encode(payload) }.read();
        }
    }
}
