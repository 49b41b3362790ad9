//! Stop point of a replay: after one message of one session.

use std::str::FromStr;

use mdgw_feeds::{
    identity::{Feed, Sequence, Session},
    time::TradingDate,
    transport::{
        Packet, PacketKind,
        iextp::{self, DeepProtocol, TopsProtocol},
        moldudp64,
    },
};

use crate::replay::routes;

/// The message after which to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPoint {
    /// Its session; `None`: the first session that reaches the sequence.
    pub session: Option<SessionSelector>,
    /// Sequence of the message.
    pub sequence: Sequence,
}

/// A session as typed on the command line: `2017-04-25#3`, `#3` or `3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSelector {
    /// Trading date, for input with several days.
    pub date: Option<TradingDate>,
    /// How many times the venue restarted its sequences on that day.
    pub restart: u32,
}

/// The part of a datagram before the stop point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PacketPart {
    /// All of it.
    Whole,
    /// The first packet, then, unless the stop was reached, the second.
    Split([Vec<u8>; 2]),
    /// None of it.
    None,
}

impl StopPoint {
    /// Whether a channel at this position has reached the stop point.
    pub(super) fn is_reached(&self, position: Option<(Session, Sequence)>) -> bool {
        position.is_some_and(|(session, expected)| self.matches_session(session) && expected > self.sequence)
    }

    /// The part of a packet to process before the stop. A packet that extends past the message is split after it.
    /// Channels tolerate this, since two lines may pack messages differently anyway.
    pub(super) fn part(&self, position: Option<(Session, Sequence)>, feed: Feed, payload: &[u8]) -> PacketPart {
        let packet = routes::parse(feed, payload).ok().filter(|packet| packet.kind == PacketKind::Messages);
        let Some(packet) = packet else { return PacketPart::Whole };
        if packet.unsequenced || packet.next() <= self.sequence.plus(1) {
            return PacketPart::Whole;
        }
        if packet.first <= self.sequence {
            return split_packet(feed, payload, &packet, self.sequence.plus(1))
                .map_or(PacketPart::Whole, PacketPart::Split);
        }
        // The packet lies after the stop point. A channel that held the packet would deliver it together with the stop
        // message.
        if position.is_some_and(|(session, _)| self.matches_session(session)) {
            PacketPart::None
        } else {
            PacketPart::Whole
        }
    }

    fn matches_session(&self, session: Session) -> bool {
        self.session
            .is_none_or(|asked| asked.restart == session.restart && asked.date.is_none_or(|date| date == session.date))
    }
}

/// Splits a packet; the second part begins with message `at`.
fn split_packet(feed: Feed, payload: &[u8], packet: &Packet<'_>, at: Sequence) -> Option<[Vec<u8>; 2]> {
    let part = |from, until| {
        let mut out = Vec::new();
        let written = match feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => moldudp64::write_part(&mut out, payload, from, until),
            Feed::IexTops => iextp::write_part::<TopsProtocol>(&mut out, payload, from, until),
            Feed::IexDeep => iextp::write_part::<DeepProtocol>(&mut out, payload, from, until),
        };
        written.ok().map(|()| out)
    };
    Some([part(packet.first, at)?, part(at, packet.next())?])
}

impl FromStr for SessionSelector {
    type Err = InvalidSession;

    fn from_str(text: &str) -> Result<Self, InvalidSession> {
        let (date, restart) = text.split_once('#').unwrap_or(("", text));
        // The printed form has a space before the `#`.
        let date = date.trim_end();
        let date = if date.is_empty() { None } else { Some(date.parse().map_err(|_| InvalidSession)?) };
        Ok(Self { date, restart: restart.parse().map_err(|_| InvalidSession)? })
    }
}

/// Text that is not a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a session (expected N or YYYY-MM-DD#N, N counting the restarts of the day from 0)")]
pub struct InvalidSession;

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        time::UnixNs,
        transport::iextp::{SegmentPosition, StreamIdentity},
    };

    use super::*;

    const MESSAGES: [&[u8]; 3] = [b"one", b"", b"three"];

    /// `first` is the sequence of the packet's first message.
    fn check(feed: Feed, payload: &[u8], first: u64) {
        let stop = |sequence| StopPoint { session: None, sequence: Sequence(sequence) };
        let numbers = |payload: &[u8]| {
            let packet = routes::parse(feed, payload).unwrap();
            (packet.first.0, packet.next().0)
        };
        for last in first..first + 2 {
            let PacketPart::Split([head, tail]) = stop(last).part(None, feed, payload) else { panic!("{last}") };
            assert_eq!((numbers(&head), numbers(&tail)), ((first, last + 1), (last + 1, first + 3)));
        }
        assert_eq!(stop(first + 2).part(None, feed, payload), PacketPart::Whole);
        assert_eq!(stop(first - 1).part(None, feed, payload), PacketPart::Whole, "no session yet, so it may begin one");
        let session = Session { feed, date: TradingDate::default(), restart: 0 };
        assert_eq!(stop(first - 1).part(Some((session, Sequence(first))), feed, payload), PacketPart::None);
    }

    #[test]
    fn a_packet_beyond_the_stop_is_split_after_it() {
        let mut packet = Vec::new();
        let mut writer = moldudp64::PacketWriter::begin(&mut packet, *b"OWNSESSION", Sequence(7), 1_400);
        assert!(MESSAGES.into_iter().all(|message| writer.push(message)));
        writer.finish();
        check(Feed::NasdaqItch, &packet, 7);

        let stream = StreamIdentity { message_protocol_id: iextp::PROTOCOL_DEEP_1_0, channel_id: 1, session_id: 5 };
        let position = SegmentPosition { first: Sequence(9), stream_offset: 100, send_time: UnixNs(3) };
        let mut writer = iextp::PacketWriter::begin(&mut packet, stream, position, 1_400);
        assert!(MESSAGES.into_iter().all(|message| writer.push(message)));
        writer.finish();
        check(Feed::IexDeep, &packet, 9);
    }

    #[test]
    fn session_selectors_are_parsed_strictly() {
        let asked = |text: &str| text.parse::<SessionSelector>();
        let date = TradingDate::from_yyyymmdd(20_170_425);
        assert_eq!(asked("2017-04-25#3"), Ok(SessionSelector { date, restart: 3 }));
        assert_eq!(asked("2017-04-25 #3"), Ok(SessionSelector { date, restart: 3 }), "the printed form");
        assert_eq!(asked("#3"), Ok(SessionSelector { date: None, restart: 3 }));
        assert_eq!(asked("3"), Ok(SessionSelector { date: None, restart: 3 }));
        for text in ["", "#", "x", "2017-04-25", "2017-04-31#3", "3#2017-04-25"] {
            assert_eq!(asked(text), Err(InvalidSession), "{text}");
        }
    }
}
