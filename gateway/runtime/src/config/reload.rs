//! What SIGHUP may change.

use std::{collections::BTreeMap, fmt};

use super::resolved::{LogConfig, Resolved, RetransmissionLimits};

/// Keys that may change while the gateway runs. All other keys are fixed at the start.
pub(crate) const RELOADABLE: [&str; 8] = [
    "log.level",
    "log.alarm_interval_ms",
    "latency.interval_ms",
    "retransmission.allowed",
    "retransmission.requests_per_second",
    "retransmission.bytes_per_second",
    "retransmission.packets_per_request_max",
    "retransmission.requesters_max",
];

/// The changes of a reload; `None`: unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New level and alarm interval of the log.
    pub log: Option<LogConfig>,
    /// New length of latency intervals.
    pub latency_interval_ns: Option<u64>,
    /// New limits of the retransmission service.
    pub retransmission: Option<RetransmissionLimits>,
}

/// A change that needs a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The key, as in [`Resolved::settings`].
    pub key: String,
    /// The value in force; `None`: unset.
    pub old: Option<String>,
    /// The value in the file; `None`: unset.
    pub new: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [old, new] = [&self.old, &self.new].map(|value| value.as_deref().unwrap_or("unset"));
        write!(
            f,
            "{}: {new} needs a restart; {old} remains in effect (reloadable: {})",
            self.key,
            RELOADABLE.join(", ")
        )
    }
}

impl Resolved {
    /// The changes from `old` to `new` that need no restart.
    ///
    /// # Errors
    /// Every change that needs a restart; then no change is applied.
    pub fn diff_reloadable(old: &Self, new: &Self) -> Result<Changes, Vec<Refused>> {
        let (before, after): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (old.settings().into_iter().collect(), new.settings().into_iter().collect());
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort();
        keys.dedup();
        let service_stays = old.retransmission.is_some() == new.retransmission.is_some();
        let refused: Vec<Refused> = keys
            .into_iter()
            .filter(|key| before.get(*key) != after.get(*key))
            .filter(|key| !RELOADABLE.contains(&key.as_str()) || !service_stays && key.starts_with("retransmission."))
            .map(|key| Refused { key: key.clone(), old: before.get(key).cloned(), new: after.get(key).cloned() })
            .collect();
        if !refused.is_empty() {
            return Err(refused);
        }
        let limits = |of: &Self| of.retransmission.as_ref().map(|service| service.limits.clone());
        Ok(Changes {
            log: (old.log != new.log).then_some(new.log),
            latency_interval_ns: (old.latency != new.latency).then_some(new.latency.interval_ns),
            retransmission: if limits(old) == limits(new) { None } else { limits(new) },
        })
    }
}
