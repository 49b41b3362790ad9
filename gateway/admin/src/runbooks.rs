//! The runbooks, as text in the program, so that an operator who sees an alarm or a slow gateway can read on without another host.

macro_rules! runbooks {
    ($($name:literal)*) => {
        /// Names, without the ending, and texts in Markdown.
        const RUNBOOKS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../ops/runbooks/", $name, ".md")))),*];
    };
}

runbooks! {
    "line-silent"
    "gap-declared"
    "late-start"
    "kernel-drops"
    "channel-failed"
    "output-failing"
    "log-behind"
    "state-file-failing"
    "admin-listener-down"
    "audit-failing"
    "latency-log-failing"
    "gateways-differ"
    "pair-link-down"
    "pair-link-refused"
    "input-history-truncated"
    "no-sentinel"
    "kill-refused"
    "record-rolled-back"
    "store-slow"
    "store-unreachable"
    "voter-silent"
    "not-eligible"
    "duplicate-gateway-id"
    "election-thread-stall"
    "pool-thread-stall"
    "outranked"
    "tag-refused"
    "epoch-jump"
    "journal-stopped"
    "journal-hole"
    "journal-damaged"
    "nats-unreachable"
    "nats-hole"
    "nats-fenced"
    "nats-stream-changed"
    "latency-regression"
    "capture-for-the-vendor"
    "clock-step"
    "disk-full"
    "slow-consumer"
    "store-maintenance"
    "upgrade"
}

/// The text of the runbook `ops/runbooks/NAME.md`; `None` if there is none of that name.
#[must_use]
pub fn runbook(name: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_folder_is_in_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/runbooks");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut pages: Vec<_> = entries.filter(|name| name != "README.md").collect();
        pages.sort_unstable();
        let mut known: Vec<_> = RUNBOOKS.iter().map(|(name, _)| format!("{name}.md")).collect();
        known.sort_unstable();
        assert_eq!(pages, known);
    }
}
