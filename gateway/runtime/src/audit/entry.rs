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

/// An event before it has a number in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingEntry {
    /// Time of the event.
    pub time: UnixNs,
    /// Group whose election or leadership the event concerns.
    pub group: GroupId,
    /// Gateway that records the event.
    pub node: NodeId,
    /// Epoch of the leadership that the event concerns.
    pub epoch: Epoch,
    /// What happened.
    pub change: AuditEvent,
}

/// A line as it is in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the line, ascending over all starts of the gateway: a missing number is a lost line.
    pub number: u64,
    /// Time of the event, ns since 1970 UTC.
    pub time_ns: u64,
    /// Group whose election or leadership the event concerns.
    pub group: u16,
    /// Node number of the gateway that wrote the line.
    pub node: u8,
    /// Count of the epoch that the event concerns.
    pub epoch_count: u64,
    /// Node of the epoch that the event concerns.
    pub epoch_node: u8,
    /// What happened; its fields are fields of the line.
    #[serde(flatten)]
    pub change: AuditEvent,
}

/// The kinds of events. The field `event` of a line names the kind in snake case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AuditEvent {
    /// The gateway has started.
    Started,
    /// The gateway stops in order.
    Stopped,
    /// This gateway leads: its fence is about to open.
    Gained,
    /// This gateway leads on under a higher epoch, that of the line.
    Raised {
        /// Raises since the last line of this kind. Those of a second share a line.
        count: u64,
    },
    /// The cost of a takeover is known: each channel has published its first new content, or had no new input.
    TookOver {
        /// Why leadership changed.
        cause: Cow<'static, str>,
        /// The cost for each channel of the group.
        channels: Vec<ChannelTakeover>,
    },
    /// This gateway no longer leads: its fence has closed.
    Lost {
        /// Why leadership ended, such as `expired` or `handed over`.
        reason: Cow<'static, str>,
    },
    /// The connection to the election's backend has changed.
    Connection {
        /// State of the connection from now on.
        state: Cow<'static, str>,
    },
    /// A sentinel has reported that the process of another gateway has died.
    Died {
        /// Node number of the dead gateway.
        #[serde(alias = "holder")]
        dead_node: u8,
        /// Incarnation of the dead process: its start time.
        incarnation: u64,
    },
    /// A notice for the operator.
    Notice {
        /// Text of the notice.
        text: String,
        /// Address and port of the sender whose packet the notice is about, if known.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        from: Option<String>,
    },
    /// The line before this one is incomplete, because of a crash or a full disk.
    Torn {
        /// Bytes of the incomplete line.
        bytes: u64,
    },
}

/// The cost of one takeover for one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelTakeover {
    /// Id of the channel.
    pub channel: u16,
    /// End of the old leader's output as this gateway received it; `None`: no output was received.
    #[serde(alias = "heard")]
    pub received_through: Option<AuditPosition>,
    /// Where this gateway's output continued.
    #[serde(alias = "ready")]
    pub resumed_at: Option<AuditPosition>,
    /// Time from the last packet received from the old leader to the first new content, ns; `None`: no packet was
    /// received, or there was no new content.
    pub blackout_ns: Option<u64>,
    /// Packets that this gateway published although the old leader may have sent them.
    #[serde(alias = "sent_again_packets")]
    pub republished_packets: u64,
}

/// A position in a channel's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPosition {
    /// Session of the channel: feed, date and restart count.
    pub session: String,
    /// Sequence of the first message that is not published completely.
    pub sequence: u64,
    /// How many parts of that message are published.
    pub part: u16,
}

impl From<StreamPosition> for AuditPosition {
    fn from(position: StreamPosition) -> Self {
        let StreamPosition { session, sequence, part } = position;
        Self { session: session.to_string(), sequence: sequence.0, part }
    }
}

impl Entry {
    /// Numbers the entry.
    #[must_use]
    pub(crate) fn of(draft: &PendingEntry, number: u64) -> Self {
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

/// Name of the reason, for audit and status.
#[must_use]
pub(crate) fn reason_name(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Expired => "expired",
        CloseReason::Suspended => "suspended",
        CloseReason::Lost => "lost",
        CloseReason::HandedOver => "handed over",
        CloseReason::Released => "released",
        CloseReason::Outranked => "outranked",
    }
}

/// Name of the connection's state, for audit and status.
#[must_use]
pub(crate) fn state_name(state: ConnectionState) -> &'static str {
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
            AuditEvent::Died { dead_node: 9, incarnation: 10 },
            AuditEvent::Notice { text: "in words".to_owned(), from: None },
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

    #[test]
    fn a_line_of_raises_is_read_as_it_was_written() {
        let (time, group, node, epoch) = (UnixNs(12), GroupId(13), NodeId(14), Epoch::new(15, 16));
        let entry = Entry::of(&PendingEntry { time, group, node, epoch, change: AuditEvent::Raised { count: 17 } }, 18);
        let line = serde_json::to_string(&entry).unwrap();
        assert!(line.contains("\"event\":\"raised\",\"count\":17"), "{line}");
        assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry);
    }
}
