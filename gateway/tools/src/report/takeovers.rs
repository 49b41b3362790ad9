//! Takeovers out of the audit files of the gateways of a pair.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use mdgw_feeds::{identity::ChannelId, time::UnixNs};
use serde::Deserialize;

use super::{LogDamage, log::lines_of, quantity::Latency};

/// A gateway has taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// When its cost was known; of a leadership that ended before that, when it began.
    pub time: UnixNs,
    /// Group of channels that changed its leader.
    pub group: u16,
    /// Node number of the new leader.
    pub node: u8,
    /// Why leadership changed, in the gateway's words; of a leadership that ended before its cost was known, why it ended.
    pub cause: String,
    /// How long a leadership lasted that ended before its cost was known, ns.
    pub lost_after_ns: Option<u64>,
    /// What it cost, channel by channel.
    pub channels: Vec<TakenOverChannel>,
}

/// The cost of a takeover for one channel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TakenOverChannel {
    /// Id of the channel.
    pub channel: u16,
    /// Time from the old leader's last packet to the first new content, ns; `None` where one of the two was missing.
    pub blackout_ns: Option<u64>,
    /// Packets published again.
    #[serde(alias = "sent_again_packets")]
    pub republished_packets: u64,
}

impl Takeover {
    /// The longest blackout of the channels, ns, or of one of them.
    #[must_use]
    pub fn blackout_ns(&self, only: Option<ChannelId>) -> Option<u64> {
        let channels = self.channels.iter().filter(|cost| only.is_none_or(|only| only.0 == cost.channel));
        channels.filter_map(|cost| cost.blackout_ns).max()
    }

    /// Packets of all channels that were published again.
    #[must_use]
    pub fn republished_packets(&self) -> u64 {
        self.channels.iter().map(|cost| cost.republished_packets).fold(0, u64::saturating_add)
    }

    /// Whether the channel was taken over.
    #[must_use]
    pub fn concerns(&self, channel: ChannelId) -> bool {
        self.channels.iter().any(|cost| cost.channel == channel.0)
    }
}

/// A line of an audit file, as far as it is needed here. Lines of all kinds have these fields.
#[derive(Deserialize)]
pub(super) struct Line {
    pub(super) time_ns: u64,
    pub(super) group: u16,
    pub(super) node: u8,
    pub(super) event: String,
    cause: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    channels: Vec<TakenOverChannel>,
}

/// The takeovers in an audit file, and its unreadable lines. A last line without an end is still being written.
#[must_use]
pub fn read(path: &Path, bytes: &[u8]) -> (Vec<Takeover>, Vec<LogDamage>) {
    let (mut takeovers, mut damage) = (Vec::new(), Vec::new());
    let mut leaderships: BTreeMap<(u16, u8), Leadership> = BTreeMap::new();
    for (place, line) in lines_of(bytes) {
        let Some(text) = line.strip_suffix(b"\n") else { break };
        match parse(text) {
            Ok(line) => {
                let known = (line.group, line.node);
                match line.event.as_str() {
                    "took_over" => {
                        let Line { time_ns, group, node, cause, channels, .. } = line;
                        let cause = cause.unwrap_or_default();
                        takeovers.push(Takeover {
                            time: UnixNs(time_ns),
                            group,
                            node,
                            cause,
                            lost_after_ns: None,
                            channels,
                        });
                        leaderships.remove(&known);
                    }
                    "gained" => {
                        let begun = Leadership { begin_ns: line.time_ns, end: None };
                        takeovers.extend(leaderships.insert(known, begun).and_then(|before| before.takeover(known)));
                    }
                    // The cost of a leadership that opened its fence may follow.
                    "lost" => {
                        if let Some(leadership) = leaderships.get_mut(&known) {
                            leadership.end.get_or_insert_with(|| (line.time_ns, line.reason.unwrap_or_default()));
                        }
                    }
                    "started" => takeovers.extend(leaderships.remove(&known).and_then(|before| before.takeover(known))),
                    _ => {}
                }
            }
            Err(reason) => damage.push(LogDamage::at(path, place, reason)),
        }
    }
    takeovers.extend(leaderships.into_iter().filter_map(|(known, leadership)| leadership.takeover(known)));
    takeovers.sort_by_key(|takeover| takeover.time);
    (takeovers, damage)
}

/// A leadership of a group by a node whose cost is not known.
struct Leadership {
    begin_ns: u64,
    /// When it ended, and why.
    end: Option<(u64, String)>,
}

impl Leadership {
    /// As a takeover without a known cost, if it has ended. Its channels are not in the audit.
    fn takeover(self, (group, node): (u16, u8)) -> Option<Takeover> {
        let (end_ns, reason) = self.end?;
        let lasted_ns = end_ns.saturating_sub(self.begin_ns);
        let cause = format!("lost again after {}: {reason}", Latency(lasted_ns));
        let time = UnixNs(self.begin_ns);
        Some(Takeover { time, group, node, cause, lost_after_ns: Some(lasted_ns), channels: Vec::new() })
    }
}

/// Leaves each takeover once, whatever audit files name it: a file and its copy may both be given. Gives leaderships without a
/// known cost the channels of their group, as other takeovers name them.
pub fn complete(takeovers: &mut Vec<Takeover>) {
    let mut known = BTreeSet::new();
    takeovers.retain(|of| known.insert((of.time, of.group, of.node, of.lost_after_ns)));
    let mut channels: BTreeMap<u16, Vec<TakenOverChannel>> = BTreeMap::new();
    for takeover in takeovers.iter().filter(|takeover| !takeover.channels.is_empty()) {
        let of_group = takeover.channels.iter();
        let without_cost =
            of_group.map(|of| TakenOverChannel { channel: of.channel, blackout_ns: None, republished_packets: 0 });
        channels.insert(takeover.group, without_cost.collect());
    }
    for takeover in takeovers.iter_mut().filter(|takeover| takeover.lost_after_ns.is_some()) {
        takeover.channels = channels.get(&takeover.group).cloned().unwrap_or_default();
    }
}

/// A line whose checksum, where it has one, is that of the bytes before it.
pub(super) fn parse(text: &[u8]) -> Result<Line, String> {
    const CHECKSUM: &[u8] = b",\"crc32c\":";
    if let Some(at) = text.windows(CHECKSUM.len()).rposition(|window| window == CHECKSUM) {
        let stated = text[at + CHECKSUM.len()..].strip_suffix(b"}").and_then(|digits| std::str::from_utf8(digits).ok());
        if stated.and_then(|digits| digits.parse().ok()) != Some(crc32c::crc32c(&text[..at])) {
            return Err("an audit entry with a wrong checksum".to_owned());
        }
    }
    serde_json::from_slice(text).map_err(|_| "not an audit entry".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN_OVER: &str = r#"{"number":7,"time_ns":1548858605000000000,"group":1,"node":2,"epoch_count":4,"epoch_node":2,"event":"took_over","cause":"process died","channels":[{"channel":1,"received_through":null,"resumed_at":null,"blackout_ns":1700000,"republished_packets":3},{"channel":2,"received_through":null,"resumed_at":null,"blackout_ns":null,"republished_packets":0}]"#;

    fn with_checksum(line: &str) -> String {
        format!("{line},\"crc32c\":{}}}\n", crc32c::crc32c(line.as_bytes()))
    }

    #[test]
    fn takeovers_are_read_and_other_events_are_passed_over() {
        let started = r#"{"number":6,"time_ns":1,"group":1,"node":2,"epoch_count":4,"epoch_node":2,"event":"started"}"#;
        let file = format!("{started}\n{}{TAKEN_OVER}", with_checksum(TAKEN_OVER));
        let (takeovers, damage) = read(Path::new("audit"), file.as_bytes());
        assert_eq!(damage, [], "the last line is still being written");
        let [takeover] = &takeovers[..] else { panic!("{takeovers:?}") };
        assert_eq!(
            (takeover.time, takeover.node, &*takeover.cause),
            (UnixNs(1_548_858_605_000_000_000), 2, "process died")
        );
        assert_eq!(takeover.blackout_ns(None), Some(1_700_000));
        assert_eq!(takeover.blackout_ns(Some(ChannelId(2))), None);
        assert!(takeover.concerns(ChannelId(2)) && !takeover.concerns(ChannelId(3)));
    }

    fn line(time_ns: u64, event: &str) -> String {
        format!(
            r#"{{"number":1,"time_ns":{time_ns},"group":1,"node":2,"epoch_count":4,"epoch_node":2,"event":{event}}}"#
        ) + "\n"
    }

    #[test]
    fn a_leadership_that_ends_before_its_cost_is_known_is_a_takeover_too() {
        let (gained, lost) = (r#""gained""#, r#""lost","reason":"expired""#);
        let took_over = r#""took_over","cause":"handed over","channels":[{"channel":7,"received_through":null,"resumed_at":null,"blackout_ns":5,"republished_packets":1}]"#;
        let ms = 1_000_000;
        let audit = [
            line(1, r#""started""#),
            // Its fence never opened.
            line(100 * ms, gained),
            line(190 * ms, lost),
            line(200 * ms, gained),
            line(246 * ms, lost),
            // The cost follows the end.
            line(300 * ms, gained),
            line(310 * ms, lost),
            line(320 * ms, took_over),
            // A normal one.
            line(400 * ms, gained),
            line(450 * ms, took_over),
            line(900 * ms, lost),
            // Its process ended: nothing says when.
            line(950 * ms, gained),
            line(960 * ms, r#""started""#),
        ];
        let (mut takeovers, damage) = read(Path::new("audit"), audit.concat().as_bytes());
        assert_eq!(damage, []);
        complete(&mut takeovers);
        let found: Vec<_> =
            takeovers.iter().map(|takeover| (takeover.time.0 / ms, takeover.lost_after_ns, &*takeover.cause)).collect();
        assert_eq!(
            found,
            [
                (100, Some(90 * ms), "lost again after 90.0 ms: expired"),
                (200, Some(46 * ms), "lost again after 46.0 ms: expired"),
                (320, None, "handed over"),
                (450, None, "handed over"),
            ]
        );
        assert!(takeovers.iter().all(|takeover| takeover.concerns(ChannelId(7))), "{takeovers:?}");
        assert_eq!((takeovers[0].blackout_ns(None), takeovers[0].republished_packets()), (None, 0));
    }

    #[test]
    fn a_takeover_that_two_audit_files_name_is_left_once() {
        let of_other_node = TAKEN_OVER.replace("\"node\":2", "\"node\":3");
        let read = |text: &str| read(Path::new("audit"), with_checksum(text).as_bytes()).0;
        let (one, other) = (read(TAKEN_OVER), read(&of_other_node));
        let mut takeovers = [one.clone(), other.clone(), one.clone()].concat();
        complete(&mut takeovers);
        assert_eq!(takeovers, [one, other].concat());
    }

    #[test]
    fn a_changed_digit_and_other_text_are_damage() {
        let changed = with_checksum(TAKEN_OVER).replacen("1700000", "1700001", 1);
        let file = format!("{changed}not JSON\n{}", with_checksum(TAKEN_OVER));
        let (takeovers, damage) = read(Path::new("audit"), file.as_bytes());
        assert_eq!(takeovers.len(), 1);
        let reasons: Vec<_> = damage.iter().map(|damage| (damage.line, &*damage.reason)).collect();
        assert_eq!(reasons, [(1, "an audit entry with a wrong checksum"), (2, "not an audit entry")]);
    }
}
