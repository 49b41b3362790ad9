//! Every alarm that a gateway can log. Alarm names are written only here: a tracing call uses
//! `alarm = Alarm::LineSilent.name()`.
//!
//! A gateway counts each alarm that it raises, for its admin listener; the counts belong to the process.
//!
//! Each alarm has a page `ops/runbooks/NAME.md`; a test in `tests/tidy` compares the two.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mdgw_wire::time::UnixNs;

macro_rules! alarms {
    ($($variant:ident = $name:literal, $about:literal;)*) => {
        /// A condition that an operator must investigate. Its page is `ops/runbooks/NAME.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Alarm { $(#[doc = $about] $variant,)* }

        impl Alarm {
            /// All alarms, in the order of the runbooks' table.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The value of the log field `alarm`, and the name of the runbook's file.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The alarm's row in the runbooks' table.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),* }
            }
        }

        static RAISED: [RaisedCell; Alarm::ALL.len()] = [const { RaisedCell::new() }; Alarm::ALL.len()];
    };
}

alarms! {
    LineSilent = "line-silent", "no packet and no heartbeat arrives on a line";
    GapDeclared = "gap-declared", "messages are missing for good, and consumers were notified";
    LateStart = "late-start", "a channel began in the middle of a session, so its books lack what came before";
    KernelDrops = "kernel-drops", "the kernel dropped datagrams because a receive buffer was full";
    ChannelFailed = "channel-failed", "a channel is out of service; the others continue";
    OutputFailing = "output-failing", "packets of an output line are not sent, or received by nobody";
    LogBehind = "log-behind", "entries of the publication log are missing for its readers";
    StateFileFailing = "state-file-failing", "restart counts and epochs for the next start cannot be written to disk";
    AdminListenerDown = "admin-listener-down", "a process cannot be monitored, since another one holds its admin port";
    AuditFailing = "audit-failing", "changes of leadership cannot be written to disk";
    LatencyLogFailing = "latency-log-failing", "latency histograms cannot be written to disk";
    LogLinesLost = "log-lines-lost", "lines of the log of a process are lost, since the log is not written in time";
    GatewaysDiffer = "gateways-differ", "the two gateways produced different records for one message";
    PairLinkDown = "pair-link-down", "the gateways cannot talk to each other";
    PairLinkRefused = "pair-link-refused", "a connection to the pair link failed authentication or broke the protocol";
    InputHistoryTruncated = "input-history-truncated", "the input history no longer covers the session";
    NoSentinel = "no-sentinel", "no sentinel would announce this gateway's death";
    KillRefused = "kill-refused", "the sentinel may not kill its gateway, so it announces no death before the process has ended";
    RecordRolledBack = "record-rolled-back", "the election store returned an older record than before";
    StoreSlow = "store-slow", "the election store is too slow for the lease";
    StoreUnreachable = "store-unreachable", "the election store, a majority of the voters, or every other member does not answer";
    VoterSilent = "voter-silent", "a voter of the quorum does not answer this gateway";
    NotEligible = "not-eligible", "a gateway would not take over";
    DuplicateGatewayId = "duplicate-gateway-id", "two running gateways use the same node number";
    ElectionThreadStall = "election-thread-stall", "the thread that renews the lease did not run in time";
    PoolThreadStall = "pool-thread-stall", "a thread of a pool makes no progress";
    MainThreadStall = "main-thread-stall", "the main thread, which watches all others, makes no progress";
    Outranked = "outranked", "receivers may drop the leader's packets: a higher epoch than its own was received";
    TagRefused = "tag-refused", "a packet of an output group has no tag under a key of this gateway";
    EpochJump = "epoch-jump", "a packet with an implausibly high epoch was dropped";
    JournalStopped = "journal-stopped", "the journal cannot write and has stopped; the gateway publishes on";
    JournalHole = "journal-hole", "the journal lacks messages that the publication log no longer had";
    JournalDamaged = "journal-damaged", "files of the journal were damaged and set aside";
    NatsUnreachable = "nats-unreachable", "the NATS sink cannot write to its stream; the gateway publishes on";
    NatsHole = "nats-hole", "the NATS stream lacks messages that the publication log no longer had";
    NatsFenced = "nats-fenced", "the NATS sink was overtaken by the sink of another gateway";
    NatsStreamChanged = "nats-stream-changed", "the NATS stream lost messages that it had acknowledged";
    LiveClosed = "live-closed", "live clients are refused: no gateway writes the host's logs, or the port cannot be opened";
    MirrorHole = "mirror-hole", "the mirrored log lacks messages of the gateway's output, or may lack some";
    MirrorSilent = "mirror-silent", "no packet and no heartbeat of the gateways arrives at the mirror";
    MirrorRefused = "mirror-refused", "the mirror refuses packets of the output groups";
}

/// How often this process has raised an alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raised {
    /// Since the start of the process.
    pub count: u64,
    /// When the alarm was raised last; 0 if never.
    pub last: UnixNs,
}

#[derive(Debug)]
struct RaisedCell {
    count: AtomicU64,
    last_unix_ns: AtomicU64,
}

impl RaisedCell {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), last_unix_ns: AtomicU64::new(0) }
    }
}

impl Alarm {
    /// The alarm with that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|alarm| alarm.name() == name)
    }

    /// Counts that the alarm was raised at that time.
    pub fn count_raised(self, at: UnixNs) {
        let cell = &RAISED[self as usize];
        cell.last_unix_ns.fetch_max(at.0, Relaxed);
        cell.count.fetch_add(1, Relaxed);
    }

    /// How often the alarm was raised in this process.
    #[must_use]
    pub fn raised(self) -> Raised {
        let cell = &RAISED[self as usize];
        Raised { count: cell.count.load(Relaxed), last: UnixNs(cell.last_unix_ns.load(Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alarm_has_its_own_count() {
        for (number, alarm) in (1..).zip(Alarm::ALL) {
            assert_eq!(Alarm::by_name(alarm.name()), Some(*alarm));
            (0..number).for_each(|turn| alarm.count_raised(UnixNs(100 * number + turn)));
        }
        for (number, alarm) in (1..).zip(Alarm::ALL) {
            assert_eq!(alarm.raised(), Raised { count: number, last: UnixNs(101 * number - 1) });
        }
        assert_eq!(Alarm::by_name("no-such-alarm"), None);
    }
}
