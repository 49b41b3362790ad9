//! Names of the stream's messages, and the place in a channel that follows from the last one.
//!
//! A message id is the same at both gateways of a pair, since it is made of numbers that the venue gives:
//!
//! ```text
//!  XNAS.ITCH/1/2026-11-27.0/4711/0/2      dataset, channel, session (date and restart count), sequence, part, index of the first record
//!  XNAS.ITCH/1/2026-11-27.0/4711/gap/4715 messages that are missing: [first, next); `hole` where only the log lacks them
//!  XNAS.ITCH/1/2026-11-27.0/9000/end      end of the session, behind its last message
//! ```

use std::fmt;

use mdgw_wire::{
    consumer_edge::first_record_of_any_length,
    identity::{ChannelId, Feed, Session},
    time::TradingDate,
};

/// A place in a channel: of a record, and behind everything that precedes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Session that numbers the messages.
    pub session: Session,
    /// Sequence of the message; `u64::MAX`: behind the session.
    pub sequence: u64,
    /// Part of the message.
    pub part: u16,
    /// Number of the record among all records of the part, whatever their schemas.
    pub index: u16,
}

/// Where a stream ends: what its next message must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEnd {
    /// Behind the last message.
    pub place: Place,
    /// Whether the session has ended, and the stream has its end.
    pub has_ended: bool,
    /// Latest receive time in the stream, ns since 1970 UTC; 0: unknown.
    pub ts_recv: u64,
}

/// What a message of the stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Consecutive records of one schema and one instrument.
    Records {
        /// How many records the message has.
        count: u16,
    },
    /// Messages that the gateway declared missing, up to this sequence.
    Gap {
        /// First sequence behind them.
        next: u64,
    },
    /// Messages that the log did not have any longer, up to this sequence; `u64::MAX`: to the end of the session.
    Hole {
        /// First sequence behind them.
        next: u64,
    },
    /// The venue has ended the session.
    End,
}

/// The name of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Feed whose records the channel has.
    pub feed: Feed,
    /// Channel of the message.
    pub channel: ChannelId,
    /// Place of the first record, or of the first missing message.
    pub first: Place,
    /// What the message says.
    pub content: Content,
}

impl Place {
    /// In front of a session's first message.
    #[must_use]
    pub fn beginning(session: Session) -> Self {
        Self::message(session, FIRST_SEQUENCE)
    }

    /// In front of a message.
    #[must_use]
    pub fn message(session: Session, sequence: u64) -> Self {
        Self { session, sequence, part: 0, index: 0 }
    }
}

impl Name {
    /// The place behind the message.
    #[must_use]
    pub fn next(&self) -> Place {
        let Place { session, index, .. } = self.first;
        match self.content {
            Content::Records { count } => Place { index: index.saturating_add(count), ..self.first },
            Content::Gap { next } | Content::Hole { next } => Place::message(session, next),
            Content::End => self.first,
        }
    }

    /// Whether the message stands for missing ones.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.content, Content::Gap { .. } | Content::Hole { .. })
    }

    /// Reads a message id. `payload` tells how many records the message has.
    #[must_use]
    pub fn parse(id: &str, payload: &[u8]) -> Option<Self> {
        let mut fields = id.split('/');
        let dataset = fields.next()?;
        let feed = Feed::ALL.into_iter().find(|feed| feed.dataset() == dataset)?;
        let channel = ChannelId(fields.next()?.parse().ok()?);
        let (date, restart) = fields.next()?.split_once('.')?;
        let digits: String = date.split('-').collect();
        let date = TradingDate::from_yyyymmdd(digits.parse().ok()?)?;
        let session = Session { feed, date, restart: restart.parse().ok()? };
        let sequence = fields.next()?.parse().ok()?;
        let mut first = Place::message(session, sequence);
        let content = match (fields.next()?, fields.next()) {
            ("end", None) => Content::End,
            ("gap", Some(next)) => Content::Gap { next: next.parse().ok()? },
            ("hole", Some(next)) => Content::Hole { next: next.parse().ok()? },
            (part, Some(index)) => {
                (first.part, first.index) = (part.parse().ok()?, index.parse().ok()?);
                Content::Records { count: count_records(payload) }
            }
            _ => return None,
        };
        let name = Self { feed, channel, first, content };
        // One name, one id.
        (fields.next().is_none() && name.to_string() == id).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { session, sequence, part, index } = self.first;
        write!(f, "{}/{}/{}/{sequence}/", self.feed.dataset(), self.channel.0, SessionText(session))?;
        match self.content {
            Content::Records { .. } => write!(f, "{part}/{index}"),
            Content::Gap { next } => write!(f, "gap/{next}"),
            Content::Hole { next } => write!(f, "hole/{next}"),
            Content::End => f.write_str("end"),
        }
    }
}

/// A session without its feed: `2026-11-27.0`.
#[derive(Clone, Copy, Debug)]
pub struct SessionText(pub Session);

impl fmt::Display for SessionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.date, self.0.restart)
    }
}

fn count_records(mut payload: &[u8]) -> u16 {
    let mut count = 0_u16;
    while let Some(record) = first_record_of_any_length(payload) {
        count = count.saturating_add(1);
        payload = payload.get(record.len()..).unwrap_or_default();
    }
    count
}

/// Sequence of a session's first message.
const FIRST_SEQUENCE: u64 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn session() -> Session {
        Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_261_127).unwrap(), restart: 0 }
    }

    fn name(content: Content) -> Name {
        let first = Place::message(session(), 4_711);
        Name { feed: Feed::NasdaqItch, channel: ChannelId(1), first, content }
    }

    #[test]
    fn ids_are_those_of_the_documentation_and_come_back() {
        let mut records = name(Content::Records { count: 2 });
        records.first.index = 2;
        for (name, id, payload) in [
            (records, "XNAS.ITCH/1/2026-11-27.0/4711/0/2", [4, 0, 0, 0].repeat(8)),
            (name(Content::Gap { next: 4_715 }), "XNAS.ITCH/1/2026-11-27.0/4711/gap/4715", Vec::new()),
            (name(Content::Hole { next: 4_715 }), "XNAS.ITCH/1/2026-11-27.0/4711/hole/4715", Vec::new()),
            (name(Content::End), "XNAS.ITCH/1/2026-11-27.0/4711/end", Vec::new()),
        ] {
            assert_eq!(name.to_string(), id);
            assert_eq!(Name::parse(id, &payload), Some(name));
        }
        assert_eq!(records.next(), Place { index: 4, ..records.first });
        assert_eq!(name(Content::Gap { next: 9 }).next(), Place::message(session(), 9));
    }

    #[test]
    fn ids_of_others_are_refused() {
        for id in [
            "",
            "XNAS.ITCH",
            "XNAS.OTHER/1/2026-11-27.0/1/0/0",
            "XNAS.ITCH/70000/2026-11-27.0/1/0/0",
            "XNAS.ITCH/1/2026-13-27.0/1/0/0",
            "XNAS.ITCH/1/2026-11-27/1/0/0",
            "XNAS.ITCH/1/2026-11-27.0/1/0",
            "XNAS.ITCH/1/2026-11-27.0/1/0/0/0",
            "XNAS.ITCH/1/2026-11-27.0/+1/0/0",
            "XNAS.ITCH/1/20261127.0/1/0/0",
            "XNAS.ITCH/1/2026-11-27.0/1/end/2",
            "XNAS.ITCH/1/2026-11-27.0/1/gap",
        ] {
            assert_eq!(Name::parse(id, &[]), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn no_id_and_no_payload_is_refused_with_a_panic(
            id in proptest::collection::vec(any::<u8>(), 0..60),
            payload in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let _refused_or_not = Name::parse(&String::from_utf8_lossy(&id), &payload);
        }
    }
}
