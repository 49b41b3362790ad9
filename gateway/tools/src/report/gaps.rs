//! Declared gaps of a channel, by what its consumers saw: the gaps of the gateway that led.

use std::{collections::BTreeSet, ops::Add};

use mdgw_feeds::time::UnixNs;
use mdgw_status::quantity::Count;
use mdgw_telemetry::channel_metrics::ChannelCount;

use super::{
    leadership::{Leadership, Led},
    lines::{ChannelInputs, Hosts},
};

/// Gaps and the messages in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GapCounts {
    /// Messages in the gaps.
    pub messages: u64,
    /// Number of gaps.
    pub gaps: u64,
}

impl Add for GapCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { messages: self.messages.saturating_add(other.messages), gaps: self.gaps.saturating_add(other.gaps) }
    }
}

impl GapCounts {
    /// What is left. Messages that are left are in a gap, also where the other gateway declared fewer of them in more gaps.
    fn saturating_sub(self, other: Self) -> Self {
        let messages = self.messages.saturating_sub(other.messages);
        Self { messages, gaps: self.gaps.saturating_sub(other.gaps).max(u64::from(messages > 0)) }
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Gaps declared within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredGaps {
    /// Begin of the time.
    pub start: UnixNs,
    /// End of the time.
    pub end: UnixNs,
    /// What was declared.
    pub counts: GapCounts,
}

/// Declared gaps of a channel in time order. Where several gateways declared gaps in overlapping intervals, they count as the same
/// loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributedGaps {
    /// Those of the gateway that led: its consumers saw them. Where nothing says which gateway led, those of the gateway that
    /// declared most.
    pub seen: Vec<DeclaredGaps>,
    /// What a standby declared beyond that. No consumer saw it.
    pub of_standby: Vec<DeclaredGaps>,
    /// Of `seen`: where logs of several gateways exist and nothing says which of them led.
    pub leader_unknown: GapCounts,
}

/// What a count of seen gaps leaves out, and how far it is certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GapNotes {
    pub(super) of_standby: GapCounts,
    pub(super) leader_unknown: GapCounts,
}

impl AttributedGaps {
    pub(super) fn notes(&self) -> GapNotes {
        GapNotes { of_standby: total(&self.of_standby), leader_unknown: self.leader_unknown }
    }
}

impl Add for GapNotes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            of_standby: self.of_standby + other.of_standby,
            leader_unknown: self.leader_unknown + other.leader_unknown,
        }
    }
}

impl GapNotes {
    /// The notes as sentences.
    pub(super) fn lines(self) -> impl Iterator<Item = String> {
        let standby = (self.of_standby, "declared by a standby only: ", ", which no consumer saw");
        let unknown = (
            self.leader_unknown,
            "neither logs nor audits say which gateway led: ",
            ", the most that one gateway declared",
        );
        [standby, unknown].into_iter().filter(|(counts, ..)| !counts.is_none()).map(|(counts, before, after)| {
            let gaps = if counts.gaps == 1 { "gap" } else { "gaps" };
            format!("{before}{} {gaps} ({} messages){after}", Count(counts.gaps), Count(counts.messages))
        })
    }
}

/// Sum of the counts.
pub(super) fn total(gaps: &[DeclaredGaps]) -> GapCounts {
    gaps.iter().map(|gap| gap.counts).fold(GapCounts::default(), Add::add)
}

/// What says which gateway led a channel.
pub(super) struct LeaderSources<'a> {
    pub(super) leadership: &'a Leadership,
    /// Group of the channel, if a log says it.
    pub(super) group: Option<u16>,
    /// Hosts that sent output, and when: only a leader records the stages of sending.
    pub(super) sent: Vec<(&'a str, (u64, u64))>,
}

impl LeaderSources<'_> {
    fn led(&self, host: &str, node: Option<u8>, span: (u64, u64)) -> Led {
        let by_audit = node.map_or(Led::Unknown, |node| self.leadership.led(self.group, node, span));
        if by_audit != Led::Unknown {
            return by_audit;
        }
        let has_sent = |is_wanted: &dyn Fn(&str) -> bool| {
            self.sent.iter().any(|(sender, sent)| is_wanted(sender) && overlap(*sent, span))
        };
        match (has_sent(&|sender| sender == host), has_sent(&|sender| sender != host)) {
            (true, false) => Led::Yes,
            (false, true) => Led::No,
            _ => Led::Unknown,
        }
    }
}

/// The gaps that a gateway declared in one interval of its log.
struct HostGaps<'a> {
    host: &'a str,
    span: (u64, u64),
    counts: GapCounts,
    led: Led,
}

/// Finds what consumers saw of the gaps in the logs.
pub(super) fn attribute(cell: &ChannelInputs<'_>, hosts: &Hosts<'_>, sources: &LeaderSources<'_>) -> AttributedGaps {
    let with_gaps = cell.intervals().filter(|(_, counts)| counts.value(ChannelCount::gaps) > 0);
    let mut declared: Vec<HostGaps<'_>> = with_gaps
        .map(|(path, counts)| {
            let (host, start) = (hosts.of(path), counts.start.0);
            let span = (start, start.saturating_add(counts.length_ns));
            let led = sources.led(host, hosts.node_of(path), span);
            let [gaps, messages] = [ChannelCount::gaps, ChannelCount::gap_messages].map(|count| counts.value(count));
            HostGaps { host, span, counts: GapCounts { messages, gaps }, led }
        })
        .collect();
    declared.sort_by_key(|gaps| gaps.span);
    let has_several_hosts = hosts.count() > 1;
    let mut attributed = AttributedGaps::default();
    let mut rest = declared.as_slice();
    while let Some(first) = rest.first() {
        let mut until = first.span.1;
        let count = rest.iter().take_while(|gaps| {
            let belongs = gaps.span.0 < until || gaps.span == first.span;
            until = if belongs { until.max(gaps.span.1) } else { until };
            belongs
        });
        let (cluster, later) = rest.split_at(count.count());
        attributed.add(cluster, has_several_hosts);
        rest = later;
    }
    attributed
}

impl AttributedGaps {
    /// Adds gaps that several gateways declared in overlapping intervals.
    fn add(&mut self, cluster: &[HostGaps<'_>], has_several_hosts: bool) {
        let hosts: BTreeSet<&str> = cluster.iter().map(|gaps| gaps.host).collect();
        let sum = |is_wanted: &dyn Fn(&HostGaps<'_>) -> bool| {
            cluster.iter().filter(|gaps| is_wanted(gaps)).map(|gaps| gaps.counts).fold(GapCounts::default(), Add::add)
        };
        let most = |is_wanted: &dyn Fn(&HostGaps<'_>) -> bool| {
            hosts.iter().map(|host| sum(&|gaps| gaps.host == *host && is_wanted(gaps))).max().unwrap_or_default()
        };
        let certain = sum(&|gaps| gaps.led == Led::Yes);
        let seen = certain.max(most(&|gaps| gaps.led != Led::No));
        let of_standby = most(&|gaps| gaps.led == Led::No).saturating_sub(seen);
        // The standby may have declared the same messages in more gaps.
        let of_standby = if of_standby.messages == 0 && !seen.is_none() { GapCounts::default() } else { of_standby };
        if has_several_hosts {
            self.leader_unknown = self.leader_unknown + seen.saturating_sub(certain);
        }
        let within = |counts: GapCounts, is_wanted: &dyn Fn(&HostGaps<'_>) -> bool| {
            let spans = || cluster.iter().filter(|gaps| is_wanted(gaps)).map(|gaps| gaps.span);
            let start = spans().map(|(start, _)| start).min().unwrap_or_default();
            let end = spans().map(|(_, end)| end).max().unwrap_or_default();
            (!counts.is_none()).then_some(DeclaredGaps { start: UnixNs(start), end: UnixNs(end), counts })
        };
        self.seen.extend(within(seen, &|gaps| gaps.led != Led::No));
        self.of_standby.extend(within(of_standby, &|gaps| gaps.led == Led::No));
    }
}

fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use mdgw_feeds::identity::{ChannelId, Line};
    use mdgw_status::{
        disclosure::Disclosure,
        interval_log::{CountsTag, IntervalLogWriter, IntervalTag},
    };
    use mdgw_sys::handle::ChannelIndex;
    use mdgw_telemetry::stages::{Stage, StageHistograms};

    use super::*;
    use crate::report::{Report, html, json, table};

    const BEGIN: u64 = 1_548_858_600_000_000_000;
    const NS_PER_S: u64 = 1_000_000_000;

    /// Six intervals of a second of the gateway `node`: whether it sent output, and the messages in the gap that it declared.
    fn log(node: u8, intervals: [(bool, u64); 6]) -> (PathBuf, Vec<u8>) {
        let mut disclosure = Disclosure::default();
        disclosure.push("host", &format!("gw{node}"));
        disclosure.push("config.gateway.node", &node.to_string());
        disclosure.push("config.channel.one.id", "1");
        disclosure.push("config.channel.one.group", "3");
        let mut log = IntervalLogWriter::begin(Vec::new(), UnixNs(BEGIN), &disclosure).unwrap();
        for (second, (sends, messages)) in (0..).zip(intervals) {
            let start = UnixNs(BEGIN + second * NS_PER_S);
            if sends {
                let mut set = StageHistograms::new(1, 3);
                set.record_n(ChannelIndex(0), Stage::WireToWire, 5_000, 50);
                let tag = IntervalTag { channel: ChannelId(1), stage: Stage::WireToWire, thread: "main-0".to_owned() };
                set.recorded().for_each(|recorded| log.write(&tag, start, NS_PER_S, recorded.histogram).unwrap());
            }
            let mut write = |line, counts: &[(&str, u64)]| {
                log.write_counts(&CountsTag { channel: ChannelId(1), line }, start, NS_PER_S, counts).unwrap();
            };
            write(None, &[("messages", 100), ("gaps", u64::from(messages > 0)), ("gap_messages", messages)]);
            write(Some(Line::A), &[("packets", 50), ("won_messages", 100)]);
        }
        (PathBuf::from(format!("gw{node}.hlog")), log.into_inner().unwrap())
    }

    /// The gateway `node` leads from the second `from` on.
    fn audit(node: u8, from: u64) -> String {
        let line = |second: u64, event: &str| {
            let time_ns = BEGIN + second * NS_PER_S;
            format!("{{\"number\":1,\"time_ns\":{time_ns},\"group\":3,\"node\":{node},\"event\":\"{event}\"}}\n")
        };
        line(0, "started") + &line(from, "gained")
    }

    /// Second and messages of each.
    fn listed(gaps: &[DeclaredGaps]) -> Vec<(u64, u64)> {
        gaps.iter().map(|gap| ((gap.start.0 - BEGIN) / NS_PER_S, gap.counts.messages)).collect()
    }

    #[test]
    fn a_gap_of_a_standby_alone_is_no_gap_of_the_day_and_is_shown() {
        const LEADS: bool = true;
        // The second joins, and declares what it lacks. In the fifth second both lose the same messages.
        let first = log(1, [(LEADS, 0), (LEADS, 0), (LEADS, 0), (LEADS, 0), (LEADS, 7), (LEADS, 0)]);
        let second = log(2, [(false, 0), (false, 900), (false, 0), (false, 0), (false, 7), (false, 0)]);
        let report = Report::of(&[first, second], None);
        let channel = &report.channels[0];
        assert_eq!((channel.counted.gaps, channel.counted.gap_messages), (1, 7));
        assert_eq!((listed(&channel.gaps.seen), listed(&channel.gaps.of_standby)), (vec![(4, 7)], vec![(1, 900)]));
        assert_eq!(channel.counted_by_host["gw2"].gaps, 2, "the host's own count stays");

        let (mut text, mut page) = (String::new(), String::new());
        table::write(&report, &mut text).unwrap();
        html::write(&report, &mut page).unwrap();
        let note = "declared by a standby only: 1 gap (900 messages), which no consumer saw";
        assert!(text.contains("  600 messages, 1 gaps declared (7 messages), 0 dropped\n"), "{text}");
        assert!(text.contains(note) && page.contains(note), "{text}");
        assert!(page.contains("gaps declared: 1, 7 messages") && !page.contains("1, 900 messages"), "{page}");
        assert!(!text.contains("which gateway led"), "{text}");
        let json = json::value(&report);
        assert_eq!(json["channels"][0]["gaps_of_standby_only"][0]["messages"], 900);
        assert_eq!(json["channels"][0]["gaps"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn where_nothing_says_who_led_the_most_of_one_gateway_counts_and_the_report_says_so() {
        // Leadership changes in the third second, so both send in it.
        let files = [
            log(1, [(true, 0), (true, 0), (true, 5), (false, 0), (false, 0), (false, 0)]),
            log(2, [(false, 0), (false, 0), (true, 8), (true, 0), (false, 0), (true, 0)]),
        ];
        let report = Report::of(&files, None);
        assert_eq!(report.channels[0].counted.gap_messages, 8);
        let mut text = String::new();
        table::write(&report, &mut text).unwrap();
        let note =
            "neither logs nor audits say which gateway led: 1 gap (8 messages), the most that one gateway declared";
        assert!(text.contains(note), "{text}");

        // Either audit alone says who led all the second.
        for (leader, seen, of_standby) in [(1, 5, 3), (2, 8, 0)] {
            let mut leadership = Leadership::default();
            leadership.add(audit(leader, 1).as_bytes());
            let report = Report::with_leadership(&files, None, &leadership);
            let channel = &report.channels[0];
            let beyond = total(&channel.gaps.of_standby).messages;
            assert_eq!((channel.counted.gap_messages, beyond), (seen, of_standby), "node {leader} leads");
            assert!(channel.gaps.leader_unknown.is_none());
        }
    }
}
