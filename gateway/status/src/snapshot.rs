//! Status of a gateway, or of a replay, at one moment: plain data, carried as JSON by the control socket. A reader
//! takes missing fields as empty, so it may be newer or older than the gateway.

use std::{collections::BTreeMap, fmt};

use hdrhistogram::Histogram;
use mdgw_wire::identity::Line;
use serde::{Deserialize, Serialize};

/// The whole snapshot. Counts are since the start; rates are computed from two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Short name of the source: `gateway 1, epoch 7`.
    pub source: String,
    /// Wall time, ns since 1970 UTC; of a replay, the capture's time.
    pub time_ns: u64,
    /// Monotonic clock for the computation of rates, ns.
    pub clock_ns: u64,
    /// Bytes read and total bytes, of a replay.
    pub progress: Option<(u64, u64)>,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub kernel_drops: u64,
    /// For how long the main thread, which watches all others, has made no progress, ms; `None` if it makes some.
    pub main_thread_stuck_ms: Option<u64>,
    /// Pools of threads.
    pub pools: Vec<PoolSnapshot>,
    /// Channels in the order of the configuration.
    pub channels: Vec<ChannelSnapshot>,
    /// The gateway's listeners beside the data path.
    pub listeners: Vec<ListenerSnapshot>,
    /// Sessions of live clients, the oldest first. `mdgw live` reports them, at a control socket of its own.
    pub subscribers: Vec<SubscriberSnapshot>,
}

/// A main thread without progress for so long, as `mdgw ha status` and `mdgw top` print it.
#[must_use]
pub fn stuck_main_thread(stuck_ms: u64) -> String {
    let seconds = stuck_ms / 1_000;
    format!("the main thread here is stuck for {seconds} s: fitness and alarms may be old")
}

/// The session of one live client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscriberSnapshot {
    /// Address and port of the client.
    pub peer: String,
    /// Name of its key.
    pub key: String,
    /// The client's name of itself.
    pub client: String,
    /// The dataset that it named at its authentication.
    pub dataset: String,
    /// Schemas that it subscribed to, separated by commas.
    pub schemas: String,
    /// Number of its symbols; `None`: all.
    pub symbols: Option<u64>,
    /// `waiting` (not started by the client), `replaying` or `live`.
    pub phase: String,
    /// What happens if it is too slow: `warn` or `skip`.
    pub policy: String,
    /// Bytes of the latest records that were not sent to it yet; `None`: it replays, or is further behind than those reach.
    pub behind_bytes: Option<u64>,
    /// Bytes that it may be behind.
    pub behind_bytes_max: u64,
    /// Bytes that wait for its socket.
    pub unsent_bytes: u64,
    /// Bytes that its socket has taken since the session began.
    pub sent_bytes: u64,
    /// How often records were skipped.
    pub skips: u64,
    /// When the session began, ns since 1970 UTC.
    pub began_ns: u64,
}

/// One line: who, what, and how far behind.
impl fmt::Display for SubscriberSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, key, dataset, schemas, phase, policy, .. } = self;
        write!(f, "{key} {peer} {dataset} {} of ", if schemas.is_empty() { "nothing" } else { schemas })?;
        match self.symbols {
            None => write!(f, "all symbols")?,
            Some(1) => write!(f, "1 symbol")?,
            Some(count) => write!(f, "{count} symbols")?,
        }
        write!(f, ", {phase}, {policy}, ")?;
        match self.behind_bytes {
            Some(bytes) => {
                let percent = bytes.saturating_mul(100) / self.behind_bytes_max.max(1);
                write!(f, "{} KiB behind ({percent} % of the limit)", bytes.div_ceil(1_024))?;
            }
            None if phase == "replaying" => write!(f, "lag unknown until it is live")?,
            None => write!(f, "behind by more than is kept in memory")?,
        }
        match self.skips {
            0 => Ok(()),
            1 => write!(f, ", skipped once"),
            skips => write!(f, ", skipped {skips} times"),
        }
    }
}

/// One listener beside the data path: the pair link, votes, the retransmission service, the peers' output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerSnapshot {
    /// `pair_link`, `votes`, `members`, `retransmission` or `output_groups`.
    pub name: String,
    /// Datagrams and connections that have arrived.
    pub received: u64,
    /// What was refused, by reason. Reasons without a refusal are left out.
    pub refused: BTreeMap<String, u64>,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolSnapshot {
    /// Name from the configuration.
    pub name: String,
    /// One snapshot per thread of the pool.
    pub threads: Vec<ThreadSnapshot>,
    /// Waits that returned at least one event.
    pub turns: u64,
    /// Events posted to a channel that another thread held.
    #[serde(alias = "deferrals")]
    pub busy_channel_posts: u64,
    /// Time without a leader because every thread was processing, ns.
    pub saturation_ns: u64,
}

/// One thread of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadSnapshot {
    /// Name of the thread.
    pub name: String,
    /// Present role: `absent`, `leader`, `spinning`, `parked`, `processing`; `stalled` if the thread makes no progress.
    pub role: String,
    /// Time spent in processing, ns.
    pub busy_ns: u64,
}

/// One channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelSnapshot {
    /// Id of the channel.
    pub id: u16,
    /// Name from the configuration.
    pub name: String,
    /// Name of its pool.
    pub pool: String,
    /// `waiting`, `live`, `gap`, `recovering`, `stale`, `ended`, `failed`.
    pub state: String,
    /// Why the channel is out of service.
    pub failed: Option<String>,
    /// Datagrams received on all lines.
    pub datagrams: u64,
    /// Messages in sequence, each once.
    pub messages: u64,
    /// Sequence of the message that the channel expects next; 0 before the first packet.
    pub next_sequence: u64,
    /// DBN records produced.
    pub records: u64,
    /// Packets published.
    pub packets_sent: u64,
    /// Gaps declared.
    pub gaps: u64,
    /// Messages in declared gaps.
    pub gap_messages: u64,
    /// Packets and messages dropped unexpectedly.
    pub drops: u64,
    /// The same by reason. Reasons without a drop are left out.
    pub drop_reasons: BTreeMap<String, u64>,
    /// Messages that contradict a book.
    pub book_faults: u64,
    /// Sessions that began in their middle.
    pub late_starts: u64,
    /// Messages of the current session are missing here, so books are suspect.
    pub input_incomplete: bool,
    /// Names of the lines that are silent.
    pub silent_lines: Vec<String>,
    /// Its lines over the last interval; of a replay, over the whole run.
    pub lines: Vec<LineSnapshot>,
    /// Latencies by stage over the last interval.
    pub stages: Vec<StageSnapshot>,
    /// Snapshots of its books for subscribers that start late.
    pub book_snapshots: BookSnapshots,
}

/// Snapshots that the retransmission service has taken of a channel's books, and answers about them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BookSnapshots {
    /// How many were taken.
    pub taken: u64,
    /// How many of them had suspect books.
    pub suspect: u64,
    /// How long the last one took, ns.
    pub duration_last_ns: u64,
    /// Answers with the last chunk of a snapshot.
    pub served: u64,
    /// Bytes of answers, headers included.
    pub bytes: u64,
    /// Requests that got no chunk: `early`, since the snapshot was being taken; `gone`, since there is no such image. Reasons without
    /// a request are left out.
    pub refused: BTreeMap<String, u64>,
}

/// Lead of one line: messages that arrived first here, among messages that arrived on at least two lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineSnapshot {
    /// Name of the line.
    pub line: String,
    /// Number of such messages.
    pub lead_count: u64,
    /// Median lead, ns.
    pub lead_p50_ns: u64,
    /// 99th percentile of the lead, ns.
    pub lead_p99_ns: u64,
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageSnapshot {
    /// Name of the stage, as in latency logs.
    pub stage: String,
    /// When recording began, on [the clock of the snapshot](Snapshot::clock_ns); 0 if unknown.
    pub begin_ns: u64,
    /// When recording ended, on the same clock.
    pub end_ns: u64,
    /// Number of values.
    pub count: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
    /// Maximum, ns.
    pub max_ns: u64,
}

/// One line: what was refused, by reason.
impl fmt::Display for ListenerSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, received, refused } = self;
        let total: u64 = refused.values().sum();
        write!(f, "{name}: {received} received, {total} refused")?;
        for (index, (reason, count)) in refused.iter().enumerate() {
            write!(f, "{} {count} {reason}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl LineSnapshot {
    /// Snapshot of one line from the leads of its last interval.
    #[must_use]
    pub fn of(line: Line, lead_ns: &Histogram<u64>) -> Self {
        Self {
            line: line.to_string(),
            lead_count: lead_ns.len(),
            lead_p50_ns: lead_ns.value_at_quantile(0.5),
            lead_p99_ns: lead_ns.value_at_quantile(0.99),
        }
    }
}

impl ChannelSnapshot {
    /// The stage with that name, if it was measured.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<&StageSnapshot> {
        self.stages.iter().find(|stage| stage.stage == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_shown_in_one_line() {
        let refused = [("forged", 2), ("too_long", 30)].map(|(reason, count)| (reason.to_owned(), count));
        let listener = ListenerSnapshot { name: "votes".to_owned(), received: 40, refused: refused.into() };
        assert_eq!(listener.to_string(), "votes: 40 received, 32 refused: 2 forged, 30 too_long");
        let quiet = ListenerSnapshot { refused: BTreeMap::new(), ..listener };
        assert_eq!(quiet.to_string(), "votes: 40 received, 0 refused");
    }

    #[test]
    fn a_subscriber_is_shown_in_one_line() {
        let subscriber = SubscriberSnapshot {
            peer: "10.0.0.9:4711".to_owned(),
            key: "research".to_owned(),
            dataset: "XNAS.ITCH".to_owned(),
            schemas: "mbo,trades".to_owned(),
            phase: "live".to_owned(),
            policy: "warn".to_owned(),
            behind_bytes: Some(1_536),
            behind_bytes_max: 6_144,
            ..SubscriberSnapshot::default()
        };
        assert_eq!(
            subscriber.to_string(),
            "research 10.0.0.9:4711 XNAS.ITCH mbo,trades of all symbols, live, warn, 2 KiB behind (25 % of the limit)"
        );
        let slow = SubscriberSnapshot { symbols: Some(1), behind_bytes: None, skips: 3, ..subscriber };
        assert!(
            slow.to_string()
                .ends_with("of 1 symbol, live, warn, behind by more than is kept in memory, skipped 3 times")
        );
        let new = SubscriberSnapshot {
            schemas: String::new(),
            symbols: Some(0),
            phase: "replaying".to_owned(),
            skips: 0,
            ..slow
        };
        assert!(
            new.to_string().ends_with("nothing of 0 symbols, replaying, warn, lag unknown until it is live"),
            "{new}"
        );
    }

    #[test]
    fn a_snapshot_written_by_0_1_0_is_read() {
        let line = LineSnapshot { line: "A".to_owned(), lead_count: 1, lead_p50_ns: 2, lead_p99_ns: 3 };
        let stage = StageSnapshot {
            stage: "wire_to_wire".to_owned(),
            begin_ns: 4,
            end_ns: 5,
            count: 6,
            p50_ns: 7,
            p99_ns: 8,
            p999_ns: 9,
            max_ns: 10,
        };
        let channel = ChannelSnapshot {
            id: 11,
            name: "deep".to_owned(),
            pool: "main".to_owned(),
            state: "live".to_owned(),
            failed: Some("no room".to_owned()),
            datagrams: 12,
            messages: 13,
            next_sequence: 0,
            records: 14,
            packets_sent: 15,
            gaps: 16,
            gap_messages: 17,
            drops: 18,
            drop_reasons: BTreeMap::new(),
            book_faults: 19,
            late_starts: 0,
            input_incomplete: false,
            silent_lines: vec!["B".to_owned()],
            lines: vec![line],
            stages: vec![stage],
            book_snapshots: BookSnapshots::default(),
        };
        let thread = ThreadSnapshot { name: "main-0".to_owned(), role: "parked".to_owned(), busy_ns: 20 };
        let pool = PoolSnapshot {
            name: "main".to_owned(),
            threads: vec![thread],
            turns: 21,
            busy_channel_posts: 22,
            saturation_ns: 23,
        };
        let snapshot = Snapshot {
            source: "gateway 1, epoch 7".to_owned(),
            time_ns: 24,
            clock_ns: 25,
            progress: Some((26, 27)),
            kernel_drops: 28,
            main_thread_stuck_ms: None,
            pools: vec![pool],
            channels: vec![channel],
            listeners: Vec::new(),
            subscribers: Vec::new(),
        };
        let fixture = include_str!("../../../tests/data/formats/snapshot.json");
        assert_eq!(serde_json::from_str::<Snapshot>(fixture).unwrap(), snapshot);
    }
}
