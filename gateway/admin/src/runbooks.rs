//! The runbooks, as text in the program, so that an operator who sees an alarm on the page can read on without another host.

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
    "log-behind"
    "audit-failing"
    "gateways-differ"
    "pair-link-down"
    "pair-link-refused"
    "input-history-truncated"
    "no-sentinel"
    "kill-refused"
    "record-rolled-back"
    "store-slow"
    "store-unreachable"
    "not-eligible"
    "duplicate-gateway-id"
    "election-thread-stall"
    "pool-thread-stall"
    "outranked"
    "tag-refused"
    "epoch-jump"
}

/// The text of the runbook `ops/runbooks/NAME.md`; `None` if there is none of that name.
#[must_use]
pub fn runbook(name: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
