//! Which gateway led when, by the audit files of the gateways of a pair.

use std::collections::{BTreeMap, BTreeSet};

use super::{log::lines_of, takeovers::parse};

/// Changes of leadership by group. A file that is added twice counts once.
#[derive(Debug, Default)]
pub struct Leadership(BTreeMap<u16, BTreeSet<Change>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    time_ns: u64,
    node: u8,
    begins: bool,
}

/// Whether a gateway led in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// All the time.
    Yes,
    /// At no time.
    No,
    /// A part of the time, or nothing says it.
    Unknown,
}

impl Leadership {
    /// Adds the content of an audit file. Unreadable lines are reported by [`super::takeovers::read`].
    pub fn add(&mut self, bytes: &[u8]) {
        for (_, line) in lines_of(bytes) {
            let Some(Ok(line)) = line.strip_suffix(b"\n").map(parse) else { continue };
            let begins = match line.event.as_str() {
                "gained" => true,
                "lost" | "started" | "stopped" => false,
                _ => continue,
            };
            self.0.entry(line.group).or_default().insert(Change { time_ns: line.time_ns, node: line.node, begins });
        }
    }

    /// Whether the gateway `node` led the group from `from_ns` to `until_ns`. Without a group: the only one of the files.
    pub(super) fn led(&self, group: Option<u16>, node: u8, (from_ns, until_ns): (u64, u64)) -> Led {
        let changes = match group {
            Some(group) => self.0.get(&group),
            None => self.0.values().next().filter(|_| self.0.len() == 1),
        };
        let (mut leader, mut not_leading) = (None, BTreeSet::new());
        let mut seen: Option<Led> = None;
        let mut changes = changes.into_iter().flatten().take_while(|change| change.time_ns < until_ns).peekable();
        loop {
            if changes.peek().is_none_or(|next| next.time_ns > from_ns) {
                let now = match leader {
                    Some(leader) if leader == node => Led::Yes,
                    Some(_) => Led::No,
                    None if not_leading.contains(&node) => Led::No,
                    None => Led::Unknown,
                };
                if seen.is_some_and(|before| before != now) {
                    return Led::Unknown;
                }
                seen = Some(now);
            }
            let Some(change) = changes.next() else { return seen.unwrap_or(Led::Unknown) };
            if change.begins {
                leader = Some(change.node);
                not_leading.clear();
            } else {
                leader = leader.filter(|leader| *leader != change.node);
                not_leading.insert(change.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(time_ns: u64, node: u8, event: &str) -> String {
        format!("{{\"number\":1,\"time_ns\":{time_ns},\"group\":3,\"node\":{node},\"event\":\"{event}\"}}\n")
    }

    #[test]
    fn an_audit_says_who_led_and_nothing_of_what_it_does_not_know() {
        let first =
            [line(10, 1, "started"), line(20, 1, "gained"), line(50, 1, "lost"), line(90, 1, "gained")].concat();
        let second = [line(15, 2, "started"), line(51, 2, "gained"), line(80, 2, "started")].concat();
        let mut both = Leadership::default();
        [&first, &second, &first].into_iter().for_each(|file| both.add(file.as_bytes()));
        let mut one = Leadership::default();
        one.add(first.as_bytes());
        for (node, span, of_both, of_one) in [
            (1, (0, 9), Led::Unknown, Led::Unknown),
            (1, (11, 19), Led::No, Led::No),
            (1, (20, 40), Led::Yes, Led::Yes),
            (2, (20, 40), Led::No, Led::No),
            (1, (40, 60), Led::Unknown, Led::Unknown),
            (1, (51, 70), Led::No, Led::No),
            (2, (51, 70), Led::Yes, Led::Unknown),
            (2, (81, 85), Led::No, Led::Unknown),
            (1, (95, 200), Led::Yes, Led::Yes),
        ] {
            let found = [&both, &one].map(|audits| audits.led(Some(3), node, span));
            assert_eq!(found, [of_both, of_one], "node {node} from {} to {}", span.0, span.1);
        }
        assert_eq!((both.led(None, 1, (20, 40)), both.led(Some(4), 1, (20, 40))), (Led::Yes, Led::Unknown));
    }
}
