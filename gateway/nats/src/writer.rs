//! Who appends to a stream, and what each append expects: the decisions of a sink, without I/O.
//!
//! ```text
//!             the end is read                 silent for takeover_ms, and the log has more
//!  Unsynced ─────────────────► Following ─────────────────────────────────────────────────► Writing
//!      ▲                          ▲  a gap is next: the other sink may have the messages       │  │
//!      │                          └────────────────────────────────────────────────────────────┘  │
//!      └──── an append is refused, an acknowledgement is late or elsewhere, the connection is lost ┘
//! ```
//! A stream holds one channel. Each append is a compare-and-append: it names the stream's last sequence and, but for the first one behind a
//! read of the end, the id of the message that it follows. So the server stores a message only directly behind the message that its writer
//! believes to be the last. Appends are pipelined: each expects the one before it. If one is refused, all that follow it are refused too.
//!
//! Consequences, for any number of writers, any delay and any order of arrival:
//! - The stream is one chain: each message follows the one that its writer made it for. No record is in it twice or out of order.
//! - A writer that was stopped or cut off changes nothing once another one has appended something else. Where its delayed append is the
//!   very message that comes next, it is stored, as it should be.
//! - A writer that does not know what became of its appends reads the stream's end and goes on there.
//!
//! Sequences alone do not suffice: a delayed append could follow another writer's message that has the expected sequence, but covers less.
//! Ids alone do not suffice either: nats-server 2.9 forgets the last id when it restarts after the de-duplication window.

use std::{collections::VecDeque, time::Duration};

use mdgw_wire::time::MonoNs;

use crate::{
    message::SinkMessage,
    name::{ChannelEnd, Content},
};

/// Limits and times.
#[derive(Clone, Copy, Debug)]
pub struct WriterConfig {
    /// Number of this gateway.
    pub node: u8,
    /// Whether another gateway has the same channel, and may have a sink for it.
    pub has_peer: bool,
    /// How long the stream must be silent before this sink appends behind another one's messages.
    pub takeover: Duration,
    /// How long an acknowledgement may take.
    pub ack_timeout: Duration,
    /// Appends without an acknowledgement.
    pub in_flight_max: usize,
}

/// The end of a stream, as read from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// Sequence of the last message; 0: none was ever stored.
    pub last_sequence: u64,
    /// The last message; `None` if the stream no longer has it.
    pub last: Option<LastMessage>,
}

/// What the sink needs of a stream's last message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastMessage {
    /// Where the channel goes on.
    pub end: ChannelEnd,
    /// Number of the gateway whose sink wrote it.
    pub node: Option<u8>,
}

/// What an append expects of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Names the chain, for [`Writer::on_answer`].
    pub chain: u64,
    /// Sequence of the stream's last message.
    pub last_sequence: u64,
    /// Its id, unless it was read and not appended by this chain.
    pub last_id: Option<String>,
}

/// The server's answer to an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The message is in the stream.
    Stored {
        /// Sequence of that message in the stream.
        sequence: u64,
        /// Whether it was there before.
        is_duplicate: bool,
    },
    /// The stream does not end where the append expects.
    Refused,
}

/// Where the log is to be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Behind the stream's end.
    Behind(ChannelEnd),
    /// From the log's oldest entry: the stream is empty.
    Oldest,
    /// From the log's oldest entry: the stream lost its end, and this process did not see it.
    EndUnknown,
}

/// What happened since the last read of the stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that an operator must know.
    None,
    /// Another gateway's sink appends: this one has stopped.
    Fenced {
        /// Number of the other gateway, if its message says it.
        by: Option<u8>,
    },
    /// The stream ends before what the server had acknowledged.
    RolledBack {
        /// Last sequence that was acknowledged.
        acknowledged: u64,
    },
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Messages that the server acknowledged.
    pub stored: u64,
    /// Records in them.
    pub records: u64,
    /// Of the messages, those that it had already.
    pub duplicates: u64,
    /// Chains that ended in a refusal.
    pub refused: u64,
}

/// The decisions for one stream.
#[derive(Debug)]
pub struct Writer {
    config: WriterConfig,
    state: State,
    /// Number of the current chain. Answers to earlier ones are ignored.
    chain: u64,
    /// Sequence and end of the stream, as far as this process knows.
    known: Option<(u64, ChannelEnd)>,
    /// Last acknowledged sequence, while the chain that it was of has not been replaced by a read.
    acknowledged: Option<u64>,
    counts: WriterCounts,
}

#[derive(Debug)]
enum State {
    Unsynced {
        retry_at: MonoNs,
    },
    Following {
        last_sequence: u64,
        /// When this sink may append, if the stream is silent until then.
        eligible_at: MonoNs,
        poll_at: MonoNs,
    },
    Writing {
        next_sequence: u64,
        last_id: Option<String>,
        in_flight: VecDeque<InFlight>,
        /// Whether the other sink had its time to append what is a gap here.
        has_offered_gap: bool,
    },
}

#[derive(Debug)]
struct InFlight {
    sequence: u64,
    end: ChannelEnd,
    records: u64,
    sent_at: MonoNs,
}

impl Writer {
    /// Knows nothing of the stream yet.
    #[must_use]
    pub fn new(config: WriterConfig) -> Self {
        Self {
            config,
            state: State::Unsynced { retry_at: MonoNs(0) },
            chain: 0,
            known: None,
            acknowledged: None,
            counts: WriterCounts::default(),
        }
    }

    /// Whether the stream's end is to be read now.
    #[must_use]
    pub fn wants_end(&self, now: MonoNs) -> bool {
        match &self.state {
            State::Unsynced { retry_at } => now >= *retry_at,
            State::Following { poll_at, .. } => now >= *poll_at,
            State::Writing { .. } => false,
        }
    }

    /// Takes the stream's end as it is now. Returns where the log is to be read from, if that has changed, and what happened.
    pub fn on_end(&mut self, end: &StreamEnd, now: MonoNs) -> (Option<Resume>, Change) {
        let (before, eligible_before) = match &self.state {
            State::Writing { .. } => return (None, Change::None),
            State::Unsynced { .. } => (None, None),
            State::Following { last_sequence, eligible_at, .. } => (Some(*last_sequence), Some(*eligible_at)),
        };
        let poll_at = now.plus(ns(self.config.takeover / POLLS_PER_TAKEOVER));
        if before == Some(end.last_sequence)
            && let Some(eligible_at) = eligible_before
        {
            self.state = State::Following { last_sequence: end.last_sequence, eligible_at, poll_at };
            return (None, Change::None);
        }
        let known = self.known.filter(|(sequence, _)| *sequence == end.last_sequence).map(|(_, known)| known);
        let resume = match (&end.last, known) {
            (Some(last), _) => Resume::Behind(last.end),
            (None, Some(known)) => Resume::Behind(known),
            (None, None) if end.last_sequence == 0 => Resume::Oldest,
            (None, None) => Resume::EndUnknown,
        };
        let node = end.last.as_ref().and_then(|last| last.node);
        let change = match self.acknowledged.take() {
            Some(acknowledged) if end.last_sequence < acknowledged => Change::RolledBack { acknowledged },
            Some(acknowledged) if end.last_sequence > acknowledged && node != Some(self.config.node) => {
                Change::Fenced { by: node }
            }
            _ => Change::None,
        };
        // Nobody else appends to a stream whose last message is ours, or which has none.
        let is_ours = end.last_sequence == 0 || node == Some(self.config.node);
        let eligible_at = if is_ours || !self.config.has_peer { now } else { self.after_takeover(now) };
        self.known = match resume {
            Resume::Behind(at) => Some((end.last_sequence, at)),
            Resume::Oldest | Resume::EndUnknown => None,
        };
        self.state = State::Following { last_sequence: end.last_sequence, eligible_at, poll_at };
        (Some(resume), change)
    }

    /// The stream's end could not be read: again at that time.
    pub fn on_end_failed(&mut self, retry_at: MonoNs) {
        match &mut self.state {
            State::Unsynced { retry_at: at } | State::Following { poll_at: at, .. } => *at = retry_at,
            State::Writing { .. } => {}
        }
    }

    /// Asks to append the log's next message. `None`: not now.
    pub fn append(&mut self, message: &SinkMessage, now: MonoNs) -> Option<Expectation> {
        let waits_for_peer = message.name.is_missing() && self.config.has_peer;
        if let State::Following { last_sequence, eligible_at, .. } = self.state {
            let eligible_at = if waits_for_peer { self.after_takeover(eligible_at) } else { eligible_at };
            if now < eligible_at {
                return None;
            }
            self.chain += 1;
            // So far, the stream ends where it was read.
            self.acknowledged = Some(last_sequence);
            self.state = State::Writing {
                next_sequence: last_sequence + 1,
                last_id: None,
                in_flight: VecDeque::new(),
                has_offered_gap: waits_for_peer,
            };
        }
        let State::Writing { next_sequence, last_id, in_flight, has_offered_gap } = &mut self.state else {
            return None;
        };
        if in_flight.len() >= self.config.in_flight_max {
            return None;
        }
        if waits_for_peer && !*has_offered_gap {
            if in_flight.is_empty() {
                let (last_sequence, eligible_at) = (*next_sequence - 1, self.after_takeover(now));
                self.acknowledged = None;
                self.state = State::Following { last_sequence, eligible_at, poll_at: now };
            }
            return None;
        }
        let expectation = Expectation { chain: self.chain, last_sequence: *next_sequence - 1, last_id: last_id.take() };
        let records = match message.name.content {
            Content::Records { count } => count.into(),
            Content::Gap { .. } | Content::Hole { .. } | Content::End => 0,
        };
        in_flight.push_back(InFlight { sequence: *next_sequence, end: message.end, records, sent_at: now });
        *next_sequence += 1;
        *last_id = Some(message.id.clone());
        *has_offered_gap = false;
        Some(expectation)
    }

    /// Takes the answer to the append that was to become message `sequence`.
    pub fn on_answer(&mut self, chain: u64, sequence: u64, answer: &Answer, now: MonoNs) {
        let State::Writing { in_flight, .. } = &mut self.state else { return };
        if chain != self.chain {
            return;
        }
        let (stored_at, is_duplicate) = match answer {
            Answer::Stored { sequence, is_duplicate } => (*sequence, *is_duplicate),
            Answer::Refused => {
                self.counts.refused += 1;
                self.lose_track(now);
                return;
            }
        };
        // A duplicate in its own place is an append of an earlier chain that arrived after all. Elsewhere, another writer has come first.
        if stored_at != sequence {
            self.lose_track(now);
            return;
        }
        // What a chain has stored, it has stored behind all that precedes it.
        while let Some(first) = in_flight.front().filter(|first| first.sequence <= sequence) {
            self.known = Some((first.sequence, first.end));
            self.acknowledged = Some(first.sequence);
            self.counts.stored += 1;
            self.counts.records += first.records;
            in_flight.pop_front();
        }
        self.counts.duplicates += u64::from(is_duplicate);
    }

    /// An append failed for another reason, or the connection was lost: what became of the appends is unknown.
    pub fn on_failure(&mut self, retry_at: MonoNs) {
        self.lose_track(retry_at);
    }

    /// Gives up on acknowledgements that are too late. Returns whether there were any.
    pub fn on_deadline(&mut self, now: MonoNs) -> bool {
        let State::Writing { in_flight, .. } = &self.state else { return false };
        let is_late = in_flight.front().is_some_and(|first| now >= first.sent_at.plus(ns(self.config.ack_timeout)));
        if is_late {
            self.lose_track(now);
        }
        is_late
    }

    /// Appends whose answers have not come.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        match &self.state {
            State::Writing { in_flight, .. } => in_flight.len(),
            State::Unsynced { .. } | State::Following { .. } => 0,
        }
    }

    /// Whether an answer of that chain is waited for.
    #[must_use]
    pub fn is_current(&self, chain: u64) -> bool {
        self.is_writing() && chain == self.chain
    }

    /// Whether this sink appends to the stream.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.state, State::Writing { .. })
    }

    /// Whether the stream's end is known.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        !matches!(self.state, State::Unsynced { .. })
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> WriterCounts {
        self.counts
    }

    fn after_takeover(&self, now: MonoNs) -> MonoNs {
        now.plus(ns(self.config.takeover))
    }

    fn lose_track(&mut self, retry_at: MonoNs) {
        self.state = State::Unsynced { retry_at };
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How often a stream is looked at within the time after which another sink takes over.
const POLLS_PER_TAKEOVER: u32 = 10;

#[cfg(test)]
mod tests;
