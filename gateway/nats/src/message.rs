//! A message for the stream.

use crate::name::{ChannelEnd, Content, Name, Place};

/// What is published as one message: the consecutive records of one frame that have one schema and one instrument; or that messages are
/// missing; or the end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkMessage {
    /// Which records it has, or which messages are missing.
    pub name: Name,
    /// The name as message id.
    pub id: String,
    /// Subject under which it is published.
    pub subject: String,
    /// Receive time of its records, ns since 1970 UTC; `None` where it has none.
    pub ts_recv: Option<u64>,
    /// The records back to back.
    pub payload: Vec<u8>,
    /// Where the stream ends with this message.
    pub end: ChannelEnd,
}

/// Headers of ours. The others, which begin with `Nats-`, are the server's.
pub mod header {
    /// Number of the channel.
    pub const CHANNEL: &str = "Mdgw-Channel";
    /// Date and restart count of the session.
    pub const SESSION: &str = "Mdgw-Session";
    /// Sequence of the venue's message.
    pub const SEQUENCE: &str = "Mdgw-Sequence";
    /// Part of the message.
    pub const PART: &str = "Mdgw-Part";
    /// Number of the first record in the part.
    pub const INDEX: &str = "Mdgw-Index";
    /// First sequence behind missing messages, or behind the venue's message where nothing of it follows.
    pub const NEXT: &str = "Mdgw-Next";
    /// `gap`, `hole` or `end` where the message has no records.
    pub const KIND: &str = "Mdgw-Kind";
    /// Receive time of the records, ns since 1970 UTC.
    pub const TS_RECV: &str = "Mdgw-Ts-Recv";
    /// Number of the gateway whose sink wrote the message.
    pub const NODE: &str = "Mdgw-Node";
}

impl SinkMessage {
    /// A message without a payload.
    #[must_use]
    pub fn new(name: Name, subject: String, ts_recv: Option<u64>, ts_recv_last: u64) -> Self {
        let end = ChannelEnd { place: name.next(), has_ended: false, ts_recv: ts_recv_last };
        Self { name, id: name.to_string(), subject, ts_recv, payload: Vec::new(), end }
    }

    /// Adds one record.
    pub fn append(&mut self, record: &[u8]) {
        self.payload.extend_from_slice(record);
        if let Content::Records { count } = &mut self.name.content {
            *count = count.saturating_add(1);
        }
        self.end.place = self.name.next();
    }

    /// Nothing of the venue's message follows in the stream.
    pub fn complete(&mut self) {
        let Place { session, sequence, .. } = self.name.first;
        self.end.place = Place::message(session, sequence.saturating_add(1));
    }

    /// The sequence behind the venue's message, where this is the last of it.
    #[must_use]
    pub fn next_sequence(&self) -> Option<u64> {
        Some(self.end.place.sequence).filter(|next| *next > self.name.first.sequence)
    }

    /// Lets missing messages begin later.
    pub fn rename(&mut self, first: Place) {
        self.name.first = first;
        self.id = self.name.to_string();
    }
}
