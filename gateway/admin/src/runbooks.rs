//! The runbooks, as text in the program, so that an operator who sees an alarm or a slow gateway can read on without another host.

macro_rules! runbooks {
    ($($name:literal)*) => {
        /// Names, without the ending, and texts in Markdown.
        const RUNBOOKS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../ops/runbooks/", $name, ".md")))),*];
    };
}

runbooks! {
    "README"
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
    "log-lines-lost"
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
    "main-thread-stall"
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
    "live-closed"
    "mirror-hole"
    "mirror-silent"
    "mirror-refused"
    "latency-regression"
    "capture-for-the-vendor"
    "clock-step"
    "gateway-restarted"
    "disk-full"
    "slow-consumer"
    "store-maintenance"
    "upgrade"
}

/// The text of the runbook `ops/runbooks/NAME.md`, or of their table, `README`; `None` if there is none of that name. Links to other
/// documents, which are not in the program, become text: their title and their path in the package.
#[must_use]
pub fn runbook(name: &str) -> Option<String> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| without_links_elsewhere(text))
}

/// `[title](../guide/pair.md#x)` becomes `title (ops/guide/pair.md#x)`.
fn without_links_elsewhere(text: &str) -> String {
    let mut parts = text.split("](../");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        if let Some(title) = out.rfind('[') {
            out.remove(title);
        }
        let path = target.strip_prefix("../").map_or_else(|| format!("ops/{target}"), str::to_owned);
        out.extend([" (", &path, ")", rest]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_folder_is_in_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/runbooks");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut pages: Vec<_> = entries.collect();
        pages.sort_unstable();
        let mut known: Vec<_> = RUNBOOKS.iter().map(|(name, _)| format!("{name}.md")).collect();
        known.sort_unstable();
        assert_eq!(pages, known);
    }

    #[test]
    fn each_link_of_a_served_runbook_leads_to_a_served_one() {
        let mut links = 0;
        for (name, written) in RUNBOOKS {
            let text = runbook(name).unwrap();
            for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let page = target.split('#').next().unwrap_or_default();
                let is_served = page.strip_suffix(".md").is_some_and(|page| runbook(page).is_some());
                assert!(page.is_empty() || is_served, "{name}.md: {target}");
                links += 1;
            }
            // Nothing but links is changed.
            let words = |text: &str| text.matches(char::is_alphanumeric).count();
            let prefixes = written.matches("](../").count() - written.matches("](../../").count();
            assert_eq!(words(&text), words(written) + prefixes * "ops".len(), "{name}");
        }
        assert!(links > 50, "{links}");
        let written = "see [a b](../guide/a.md), [c](c.md),\n[`d`](../../D.md#e) (f) [g](#h)\n";
        let served = "see a b (ops/guide/a.md), [c](c.md),\n`d` (D.md#e) (f) [g](#h)\n";
        assert_eq!(without_links_elsewhere(written), served);
    }
}
