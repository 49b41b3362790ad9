//! One channel: its log, its stream, and the decisions of [`Writer`] carried out.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use async_nats::Subscriber;
use futures_util::{FutureExt as _, StreamExt as _};
use mdgw_sys::{alarm::Alarm, clock::mono_now};
use mdgw_wire::time::MonoNs;

use crate::{
    SinkChannel, SinkError,
    config::StreamConfig,
    connection::{Connection, read_answer},
    cursor::Cursor,
    message::SinkMessage,
    name::{ChannelEnd, Content},
    progress::{Progress, RETRY_INTERVAL, wait},
    subject,
    writer::{Change, Resume, Writer, WriterConfig, WriterCounts},
};

/// Sinks one channel.
pub(crate) struct ChannelSink {
    channel: SinkChannel,
    node: u8,
    stream: StreamConfig,
    connection: Connection,
    progress: Arc<Progress>,
    writer: Writer,
    cursor: Option<Cursor>,
    /// Where a cursor begins that is opened next.
    begin: Option<ChannelEnd>,
    inbox: String,
    losses: u64,
    checked_at: MonoNs,
    /// What is counted in [`Progress`] already.
    reported: WriterCounts,
    is_writing: bool,
    is_failing: bool,
    unknown_symbols: u64,
}

impl ChannelSink {
    pub(crate) fn new(
        channel: SinkChannel,
        config: WriterConfig,
        stream: StreamConfig,
        connection: Connection,
        progress: &Arc<Progress>,
    ) -> Self {
        Self {
            channel,
            node: config.node,
            stream,
            inbox: connection.inbox(),
            losses: connection.losses(),
            connection,
            progress: Arc::clone(progress),
            writer: Writer::new(config),
            cursor: None,
            begin: None,
            checked_at: MonoNs(0),
            reported: WriterCounts::default(),
            is_writing: false,
            is_failing: false,
            unknown_symbols: 0,
        }
    }

    /// Works until the sink stops.
    pub(crate) async fn run(mut self) {
        let mut answers = loop {
            match self.connection.answers(&self.inbox).await {
                Ok(answers) => break answers,
                Err(error) => self.report_failure(&error),
            }
            if wait(&self.progress, RETRY_INTERVAL).await {
                return;
            }
        };
        while !self.progress.is_stopping() {
            if !self.step(&mut answers).await {
                // Until an answer comes, or the log may have more.
                if let Ok(Some(answer)) = tokio::time::timeout(POLL_INTERVAL, answers.next()).await {
                    self.take(&answer);
                }
            }
            self.count();
        }
        let until = tokio::time::Instant::now() + STOP_TIME;
        while self.writer.in_flight() > 0 && self.connection.is_connected() {
            let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await else { break };
            self.take(&answer);
        }
        self.count();
    }

    /// Returns whether something was done.
    async fn step(&mut self, answers: &mut Subscriber) -> bool {
        let mut is_busy = false;
        while let Some(Some(answer)) = answers.next().now_or_never() {
            self.take(&answer);
            is_busy = true;
        }
        let now = mono_now();
        let losses = self.connection.losses();
        if losses != self.losses {
            self.losses = losses;
            self.writer.on_failure(now);
        }
        if !self.connection.is_connected() {
            self.report_failure(&SinkError::Request("the connection was lost".to_owned()));
            return false;
        }
        if self.writer.on_deadline(now) {
            self.report_failure(&SinkError::Request("an acknowledgement is late".to_owned()));
        }
        if self.writer.wants_end(now) {
            self.read_end().await;
        }
        if !self.writer.is_synced() || !self.open_log() {
            return is_busy;
        }
        self.append_some().await || is_busy
    }

    async fn read_end(&mut self) {
        let subjects = subject::all_subjects(&self.channel.subject_prefix, self.channel.feed);
        let end = match self.connection.stream_end(&self.channel.stream, &subjects, &self.stream).await {
            Ok(end) => end,
            Err(error) => {
                self.report_failure(&error);
                return self.writer.on_end_failed(after(RETRY_INTERVAL));
            }
        };
        if self.progress.end_failure(&mut self.is_failing) {
            let (ends, stream) = (Alarm::NatsUnreachable.name(), &self.channel.stream);
            tracing::info!(ends, stream, "nats: the stream can be used again");
        }
        let (resume, change) = self.writer.on_end(&end, mono_now());
        let (channel_id, stream) = (self.channel.id.0, self.channel.stream.as_str());
        match change {
            Change::None => {}
            Change::Fenced { by } => {
                self.progress.fenced.fetch_add(1, Relaxed);
                tracing::warn!(
                    alarm = Alarm::NatsFenced.name(),
                    channel_id,
                    stream,
                    by_node = by.unwrap_or_default(),
                    "nats: another gateway's sink has gone on; this one follows, and nothing of it was stored twice"
                );
            }
            Change::RolledBack { acknowledged } => tracing::error!(
                alarm = Alarm::NatsStreamChanged.name(),
                channel_id,
                stream,
                acknowledged,
                last_sequence = end.last_sequence,
                "nats: the stream lacks messages that were acknowledged; the sink writes again what the log still has"
            ),
        }
        let begin = match resume {
            None => return,
            Some(Resume::Behind(begin)) => Some(begin),
            Some(Resume::Oldest) => None,
            Some(Resume::EndUnknown) => {
                tracing::error!(
                    alarm = Alarm::NatsStreamChanged.name(),
                    channel_id,
                    stream,
                    last_sequence = end.last_sequence,
                    "nats: the stream no longer has its last message; the sink writes again what the log has"
                );
                None
            }
        };
        self.begin = begin;
        if let Some(cursor) = &mut self.cursor
            && let Err(error) = cursor.move_to(begin)
        {
            tracing::warn!(channel_id, %error, "nats: cannot read the publication log, trying again");
            self.cursor = None;
        }
    }

    /// Opens the log if it is not open. Returns whether it is.
    fn open_log(&mut self) -> bool {
        let now = mono_now();
        if self.cursor.is_none() && now >= self.checked_at {
            self.checked_at = after(CHECK_INTERVAL);
            match Cursor::open(self.channel.clone(), self.begin) {
                Ok(cursor) => self.cursor = Some(cursor),
                Err(error) => tracing::debug!(%error, "nats: cannot read the publication log yet, trying again"),
            }
        }
        self.cursor.is_some()
    }

    /// Appends what the log has, within bounds. Returns whether there was something.
    async fn append_some(&mut self) -> bool {
        let Some(cursor) = &mut self.cursor else { return false };
        for count in 0..BATCH {
            let now = mono_now();
            let Some(message) = cursor.peek() else {
                if now >= self.checked_at {
                    self.checked_at = after(CHECK_INTERVAL);
                    if let Err(error) = cursor.reopen_if_replaced() {
                        tracing::debug!(%error, "nats: the publication log is not there");
                    }
                }
                return count > 0;
            };
            let Some(expectation) = self.writer.append(message, now) else { return count > 0 };
            let Some(message) = cursor.pop() else { return count > 0 };
            self.begin = Some(message.end);
            report(&self.progress, &self.channel, &message);
            let sent = self.connection.append(&self.channel.stream, &self.inbox, self.node, message, expectation);
            // Without a connection the client takes a number of messages, and then no more.
            let sent = tokio::time::timeout(APPEND_TIMEOUT, sent).await;
            let sent = sent.unwrap_or_else(|_elapsed| Err(SinkError::Request("nothing can be sent".to_owned())));
            if let Err(error) = sent {
                self.report_failure(&error);
                self.writer.on_failure(after(RETRY_INTERVAL));
                return true;
            }
        }
        // The connection is served by the same thread.
        tokio::task::yield_now().await;
        true
    }

    fn report_failure(&mut self, error: &SinkError) {
        self.progress.report_failure(&mut self.is_failing, &self.channel.stream, error);
    }

    fn take(&mut self, answer: &async_nats::Message) {
        let now = mono_now();
        match read_answer(answer) {
            Some((chain, sequence, Ok(answer))) => self.writer.on_answer(chain, sequence, &answer, now),
            Some((chain, _, Err(error))) if self.writer.is_current(chain) => {
                self.report_failure(&SinkError::Request(error));
                self.writer.on_failure(after(RETRY_INTERVAL));
            }
            _ => {}
        }
    }

    fn count(&mut self) {
        let (counts, before) = (self.writer.counts(), self.reported);
        self.progress.stored.fetch_add(counts.stored - before.stored, Relaxed);
        self.progress.records.fetch_add(counts.records - before.records, Relaxed);
        self.progress.duplicates.fetch_add(counts.duplicates - before.duplicates, Relaxed);
        self.reported = counts;
        let (channel_id, stream) = (self.channel.id.0, self.channel.stream.as_str());
        if self.writer.is_writing() != self.is_writing {
            self.is_writing = !self.is_writing;
            if self.is_writing {
                self.progress.writing.fetch_add(1, Relaxed);
                tracing::info!(channel_id, stream, "nats: appends to the stream");
            } else {
                self.progress.writing.fetch_sub(1, Relaxed);
            }
        }
        let unknown_symbols = self.cursor.as_ref().map_or(0, Cursor::unknown_symbols);
        if unknown_symbols > 0 && self.unknown_symbols == 0 {
            tracing::warn!(channel_id, stream, "nats: the log lacks symbols; their records have subjects by number");
        }
        self.unknown_symbols = unknown_symbols;
    }
}

/// What an operator must know of a message.
fn report(progress: &Progress, channel: &SinkChannel, message: &SinkMessage) {
    let first = message.name.first;
    match message.name.content {
        Content::Records { .. } | Content::End => {}
        Content::Gap { .. } => _ = progress.gaps.fetch_add(1, Relaxed),
        Content::Hole { next } => {
            progress.holes.fetch_add(1, Relaxed);
            tracing::error!(
                alarm = Alarm::NatsHole.name(),
                channel_id = channel.id.0,
                stream = channel.stream,
                session = %first.session,
                first = first.sequence,
                next,
                "nats: the publication log lacks messages; the stream says so in its gap subject"
            );
        }
    }
}

fn after(duration: Duration) -> MonoNs {
    mono_now().plus(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// How long to wait when the log has nothing new.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How often a log without news is looked at, for one that was replaced.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for acknowledgements at the end.
const STOP_TIME: Duration = Duration::from_secs(5);
/// How long the client may take to accept a message.
const APPEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Messages between two looks at answers.
const BATCH: usize = 256;
