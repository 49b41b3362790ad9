//! Takeovers out of the audit files of the gateways of a pair.

use std::path::Path;

use mdgw_feeds::{identity::ChannelId, time::UnixNs};
use serde::Deserialize;

use super::{LogDamage, log::lines_of};

/// A gateway has taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// When its cost was known.
    pub time: UnixNs,
    /// Group of channels that changed its leader.
    pub group: u16,
    /// Node number of the new leader.
    pub node: u8,
    /// Why leadership changed, in the gateway's words.
    pub cause: String,
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
struct Line {
    time_ns: u64,
    group: u16,
    node: u8,
    event: String,
    cause: Option<String>,
    #[serde(default)]
    channels: Vec<TakenOverChannel>,
}

/// The takeovers in an audit file, and its unreadable lines. A last line without an end is still being written.
#[must_use]
pub fn read(path: &Path, bytes: &[u8]) -> (Vec<Takeover>, Vec<LogDamage>) {
    let (mut takeovers, mut damage) = (Vec::new(), Vec::new());
    for (place, line) in lines_of(bytes) {
        let Some(text) = line.strip_suffix(b"\n") else { break };
        match parse(text) {
            Ok(Line { time_ns, group, node, event, cause, channels }) if event == "took_over" => {
                let cause = cause.unwrap_or_default();
                takeovers.push(Takeover { time: UnixNs(time_ns), group, node, cause, channels });
            }
            Ok(_) => {}
            Err(reason) => damage.push(LogDamage::at(path, place, reason)),
        }
    }
    (takeovers, damage)
}

/// A line whose checksum, where it has one, is that of the bytes before it.
fn parse(text: &[u8]) -> Result<Line, String> {
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
