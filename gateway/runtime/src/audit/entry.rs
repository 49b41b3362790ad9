//! One line of the audit.

use std::borrow::Cow;

use mdgw_election::{
    core::{CloseReason, ConnectionState},
    identity::NodeId,
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    published::position::StreamPosition,
    time::UnixNs,
};
use serde::{Deserialize, Serialize};

/// What has happened, before it has a number in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingEntry {
    /// When.
    pub time: UnixNs,
    /// In which group.
    pub group: GroupId,
    /// At which gateway.
    pub node: NodeId,
    /// Of the leadership that it concerns.
    pub epoch: Epoch,
    /// What.
    pub change: AuditEvent,
}

/// As it stands in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Of the line, ascending over all starts of the gateway: a missing number is a lost line.
    pub number: u64,
    /// When, ns since 1970 UTC.
    pub time_ns: u64,
    /// In which group.
    pub group: u16,
    /// At which gateway.
    pub node: u8,
    /// Count of the epoch that it concerns.
    pub epoch_count: u64,
    /// Node of the epoch that it concerns.
    pub epoch_node: u8,
    /// What.
    #[serde(flatten)]
    pub change: AuditEvent,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AuditEvent {
    /// The gateway runs.
    Started,
    /// It ends in order.
    Stopped,
    /// This gateway leads: its fence is about to open.
    Gained,
    /// The first new content is out on every channel that had any.
    TookOver {
        /// Why leadership changed.
        cause: Cow<'static, str>,
        /// What it cost, channel by channel.
        channels: Vec<ChannelTakeover>,
    },
    /// This gateway leads no more: its fence has closed.
    Lost {
        /// Why.
        reason: Cow<'static, str>,
    },
    /// The connection to whoever grants leadership has changed.
    Connection {
        /// How it is.
        state: Cow<'static, str>,
    },
    /// A sentinel has told that the process of another gateway has ended.
    Died {
        /// Which gateway.
        holder: u8,
        /// Which start of it.
        incarnation: u64,
    },
    /// What a person should know.
    Notice {
        /// In words.
        text: String,
    },
    /// The line before broke off: a crash, or a full disk.
    Torn {
        /// Bytes of it.
        bytes: u64,
    },
}

/// What one takeover meant for one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelTakeover {
    /// The channel.
    pub channel: u16,
    /// Up to where the old leader was heard; `None`: not at all.
    #[serde(rename = "heard")]
    pub received_through: Option<AuditPosition>,
    /// Where this gateway went on.
    #[serde(rename = "ready")]
    pub resumed_at: Option<AuditPosition>,
    /// From the last packet heard of the old leader to the first new content, ns; `None`: nothing was heard, or nothing
    /// new came.
    pub blackout_ns: Option<u64>,
    /// Packets that were sent again.
    #[serde(rename = "sent_again_packets")]
    pub republished_packets: u64,
}

/// How far a channel's output had come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPosition {
    /// The numbering.
    pub session: String,
    /// The first message that has not been said whole.
    pub sequence: u64,
    /// How many of its parts have been.
    pub part: u16,
}

impl From<StreamPosition> for AuditPosition {
    fn from(position: StreamPosition) -> Self {
        let StreamPosition { session, sequence, part } = position;
        Self { session: session.to_string(), sequence: sequence.0, part }
    }
}

impl Entry {
    /// With its number.
    #[must_use]
    pub fn of(draft: &PendingEntry, number: u64) -> Self {
        Self {
            number,
            time_ns: draft.time.0,
            group: draft.group.0,
            node: draft.node.0,
            epoch_count: draft.epoch.count(),
            epoch_node: draft.epoch.node(),
            change: draft.change.clone(),
        }
    }
}

/// For audit and status.
#[must_use]
pub fn reason_name(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Expired => "expired",
        CloseReason::Suspended => "suspended",
        CloseReason::Lost => "lost",
        CloseReason::HandedOver => "handed over",
        CloseReason::Released => "released",
        CloseReason::Outranked => "outranked",
    }
}

/// For audit and status.
#[must_use]
pub fn state_name(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Starting => "starting",
        ConnectionState::Connected => "connected",
        ConnectionState::Suspended => "suspended",
        ConnectionState::Lost => "lost",
        ConnectionState::Reconnected => "reconnected",
    }
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    #[test]
    fn lines_written_by_0_1_0_are_read() {
        let date = TradingDate::from_yyyymmdd(20_170_425).unwrap();
        let session = Session { feed: Feed::IexDeep, date, restart: 1 };
        let reached = |part| Some(AuditPosition::from(StreamPosition { session, sequence: Sequence(2), part }));
        let channels = vec![
            ChannelTakeover {
                channel: 3,
                received_through: reached(4),
                resumed_at: reached(5),
                blackout_ns: Some(6),
                republished_packets: 7,
            },
            ChannelTakeover {
                channel: 8,
                received_through: None,
                resumed_at: None,
                blackout_ns: None,
                republished_packets: 0,
            },
        ];
        let mut changes = vec![
            AuditEvent::Started,
            AuditEvent::Stopped,
            AuditEvent::Gained,
            AuditEvent::TookOver { cause: "nobody led".into(), channels },
            AuditEvent::Died { holder: 9, incarnation: 10 },
            AuditEvent::Notice { text: "in words".to_owned() },
            AuditEvent::Torn { bytes: 11 },
        ];
        let reasons = [
            CloseReason::Expired,
            CloseReason::Suspended,
            CloseReason::Lost,
            CloseReason::HandedOver,
            CloseReason::Released,
            CloseReason::Outranked,
        ];
        changes.extend(reasons.map(|reason| AuditEvent::Lost { reason: reason_name(reason).into() }));
        let states = [
            ConnectionState::Starting,
            ConnectionState::Connected,
            ConnectionState::Suspended,
            ConnectionState::Lost,
            ConnectionState::Reconnected,
        ];
        changes.extend(states.map(|state| AuditEvent::Connection { state: state_name(state).into() }));
        let entry = |(number, change)| {
            let (time, group, node, epoch) = (UnixNs(12), GroupId(13), NodeId(14), Epoch::new(15, 16));
            Entry::of(&PendingEntry { time, group, node, epoch, change }, number)
        };
        let entries: Vec<Entry> = (1..).zip(changes).map(entry).collect();
        let fixture = include_str!("../../../../tests/data/formats/audit.jsonl");
        let read: Vec<Entry> = fixture.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, entries);
    }
}
