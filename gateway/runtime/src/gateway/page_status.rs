//! What the page of the admin listener shows. It discloses nothing of its own: the document consists of the control socket's
//! answers for `mdgw ha status` and `mdgw top`, and of what metrics and health have of alarms, links, sentinel, audit and threads.

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::Ordering},
};

use mdgw_election::identity::NodeName;
use mdgw_pair::pair_link::LinkHandle;
use mdgw_status::snapshot::Snapshot;
use mdgw_sys::{alarm::Alarm, clock::mono_now};
use serde::Serialize;
use serde_json::Value;

use super::{health::lock, main_thread::MainThread, sentinel_handle::SentinelFaults, thread_watch::HotThread};
use crate::{
    audit::{AuditCounts, AuditSender},
    control::PairControl,
};

/// The sources of the page.
pub(super) struct PageSource {
    pub(super) identity: GatewayIdentity,
    pub(super) pair: PairControl,
    /// The link to the gateways with these node numbers, if there is one.
    pub(super) link: Option<(Arc<LinkHandle>, Vec<u8>)>,
    /// Counts the lines of the history, and failed writes.
    pub(super) audit: Option<AuditSender>,
    pub(super) sentinel_faults: Arc<SentinelFaults>,
    /// The last history that was read, and how many lines were written to the audit by then.
    pub(super) recent_history: Mutex<Option<(u64, String)>>,
    pub(super) main_thread: MainThread,
    /// The hot threads that make no progress.
    pub(super) stalled_threads: Arc<Mutex<Vec<HotThread>>>,
}

/// Which gateway the page shows.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GatewayIdentity {
    /// Node number.
    pub(super) node: u8,
    /// `election.name`; `None` without an election.
    pub(super) name: Option<NodeName>,
    pub(super) version: &'static str,
    /// Empty if unknown.
    pub(super) commit: &'static str,
    /// Count of the epoch of this start.
    pub(super) epoch_count: u64,
    /// When the gateway started, ns since 1970 UTC.
    pub(super) started_ns: u64,
    /// `election.backend`; `None` without an election.
    pub(super) backend: Option<&'static str>,
    /// Lease, ms; 0 without an election.
    pub(super) lease_ms: u64,
}

/// The document. Fields are added without a new number; a field that changes its meaning or goes takes a new number.
#[derive(Debug, Serialize)]
struct Document<'a> {
    format: u32,
    gateway: &'a GatewayIdentity,
    /// As of `mdgw ha status --json`.
    status: Value,
    /// As the control socket's `snapshot`.
    snapshot: Snapshot,
    /// All alarms, in the order of the runbooks' table.
    alarms: Vec<AlarmStatus>,
    /// `None` without a pair link.
    links: Option<Vec<LinkStatus>>,
    /// Lines written to the audit since the start; a change means that there is a new history. `None` without an audit file.
    audit_lines: Option<u64>,
    /// As `mdgw_audit_failures_total`. `None` without an audit file.
    audit_failures: Option<u64>,
    /// As `mdgw_sentinel_lost`.
    sentinel_lost: bool,
    /// As `mdgw_sentinel_kill_refused`.
    sentinel_kill_refused: bool,
    /// Names of the pools' threads that make no progress. Of election threads, `status` says so.
    stalled_pool_threads: Vec<String>,
    /// For how long the main thread has made no progress; `None` if it makes some.
    main_thread_stuck_ms: Option<u64>,
}

/// As `mdgw_alarms_total`.
#[derive(Debug, Serialize)]
struct AlarmStatus {
    alarm: &'static str,
    about: &'static str,
    /// Since the start of the process.
    count: u64,
    /// ns since 1970 UTC; 0 if never.
    last_ns: u64,
}

/// As `mdgw_pair_link_up`.
#[derive(Debug, Serialize)]
struct LinkStatus {
    node: u8,
    is_up: bool,
}

/// Number of the document's format.
const FORMAT: u32 = 1;
/// Lines of the history.
const HISTORY_LINES: usize = 50;

impl PageSource {
    /// The document as JSON.
    pub(super) fn status(&self) -> String {
        let alarm = |alarm: &Alarm| {
            let raised = alarm.raised();
            AlarmStatus { alarm: alarm.name(), about: alarm.about(), count: raised.count, last_ns: raised.last.0 }
        };
        let links = self.link.as_ref().map(|(link, nodes)| {
            nodes.iter().map(|node| LinkStatus { node: *node, is_up: link.is_linked_to(*node) }).collect()
        });
        // First, so that the alarms have it.
        let main_thread_stuck_ms = self.main_thread.stuck_ms(mono_now());
        let audit = self.audit.as_ref().map(AuditSender::counts);
        let SentinelFaults { is_lost, is_kill_refused } = &*self.sentinel_faults;
        let document = Document {
            format: FORMAT,
            gateway: &self.identity,
            status: self.pair.status(),
            snapshot: (self.pair.snapshot)(),
            alarms: Alarm::ALL.iter().map(alarm).collect(),
            links,
            audit_lines: audit.map(|AuditCounts { written, .. }| written),
            audit_failures: audit.map(|AuditCounts { failures, .. }| failures),
            sentinel_lost: is_lost.load(Ordering::Relaxed),
            sentinel_kill_refused: is_kill_refused.load(Ordering::Relaxed),
            stalled_pool_threads: HotThread::pool_threads(&lock(&self.stalled_threads)),
            main_thread_stuck_ms,
        };
        serde_json::to_string(&document).unwrap_or_else(|_| unreachable!("names and numbers"))
    }

    /// The newest lines of the audit as JSON, as of `mdgw ha history --json`. The file is read when there is a new line.
    pub(super) fn history(&self) -> Result<String, String> {
        let mut recent = lock(&self.recent_history);
        // Before the file is read: a line that is written meanwhile is read again.
        let line_count = self.audit.as_ref().map_or(0, |audit| audit.counts().written);
        if let Some((_, text)) = recent.as_ref().filter(|(read_at, _)| *read_at == line_count) {
            return Ok(text.clone());
        }
        let text = self.pair.recent_history(HISTORY_LINES)?.to_string();
        *recent = Some((line_count, text.clone()));
        Ok(text)
    }
}

impl fmt::Debug for PageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageSource").field("identity", &self.identity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alarm_has_a_runbook_in_the_program() {
        for alarm in Alarm::ALL {
            let text = mdgw_admin::runbook(alarm.name()).unwrap_or_else(|| panic!("{}", alarm.name()));
            assert!(text.starts_with("# "), "{}", alarm.name());
        }
    }
}
