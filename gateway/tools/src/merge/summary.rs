//! Summary of a merge: as tables, or as one line of JSON.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, time::Duration};

use mdgw_feeds::{
    drop_reason::DropReason,
    identity::{Feed, Line, Session},
};
use mdgw_status::quantity::Count;
use serde::Serialize;

use super::{
    clock::{self, SAME_LINE, quantile},
    leads::Differences,
    merged_channel::{MergedChannel, WINDOW_PACKETS},
    output::WrittenCounts,
    sources::Sources,
};
use crate::{
    replay::{
        routes::{ChannelRoutes, LineSource},
        summary::FileSummary,
    },
    report::quantity::Latency,
    summary_table::SummaryTable,
};

/// Summary of a merge.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MergeSummary {
    /// Each capture.
    pub files: Vec<FileSummary>,
    /// Each channel.
    pub channels: Vec<MergedChannelSummary>,
    /// Clock offsets between captures.
    pub clocks: Vec<ClockSummary>,
    /// UDP datagrams of unknown feeds.
    pub unrecognised_datagrams: u64,
    /// UDP datagrams of feeds that were not requested.
    pub other_feed_datagrams: u64,
    /// Datagrams of known lines with malformed framing, skipped.
    pub malformed_datagrams: u64,
    /// Output written.
    pub output: OutputSummary,
    /// Duration of the merge, s.
    pub elapsed_seconds: f64,
}

/// One channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MergedChannelSummary {
    /// Feed of the channel.
    pub feed: &'static str,
    /// Last session.
    pub session: Option<String>,
    /// Number of sessions.
    pub sessions: u64,
    /// Messages written, each once.
    pub messages: u64,
    /// Packets written with messages.
    pub packets: u64,
    /// Of the messages, those without sequence: written in file order.
    pub unsequenced: u64,
    /// Gaps that no line could fill.
    pub gap_count: u64,
    /// Messages in these gaps.
    pub gap_messages: u64,
    /// Of the gaps, those declared because the window was full: a line may deliver the messages later.
    pub gaps_window_full: u64,
    /// The first of these gaps.
    pub gaps: Vec<GapSummary>,
    /// Packets rejected, by reason; copies are not among them.
    pub drops: BTreeMap<&'static str, u64>,
    /// Lines of the channel.
    pub lines: Vec<LineSummary>,
    /// Leads between lines.
    pub leads: Vec<LeadSummary>,
}

/// Messages `[first, next)` that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GapSummary {
    /// Session of the gap.
    pub session: String,
    /// First missing sequence.
    pub first: u64,
    /// First sequence after the gap.
    pub next: u64,
}

/// One line, as recorded in one capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LineSummary {
    /// A, B, …
    pub line: String,
    /// Path of the capture.
    pub path: String,
    /// Destination address of its packets.
    pub dst: String,
    /// Packets with messages.
    pub packets: u64,
    /// Messages, each once.
    pub messages: u64,
    /// Messages that this line delivered first, by uncorrected timestamps.
    pub won_messages: u64,
    /// Messages missing between the line's first one and its last one.
    pub lost_messages: u64,
    /// Of these, messages missing on all other lines too; other lines delivered the rest.
    pub lost_by_all_messages: u64,
    /// Gaps of this line.
    pub line_gaps: u64,
    /// Messages in the longest gap.
    pub longest_line_gap: u64,
    /// The first gaps of this line, as `[first, next)`.
    pub first_line_gaps: Vec<(u64, u64)>,
    /// Messages of the channel after the line's last one.
    pub missing_after_last: u64,
    /// Messages delivered after later ones.
    pub reordered_messages: u64,
    /// Packets that the line delivered more than once.
    pub duplicate_packets: u64,
    /// Messages that arrived after they had been declared missing, as far as the arbiter still remembers their gaps.
    pub late_messages: u64,
}

/// How much earlier messages arrived on one line than on another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LeadSummary {
    /// The line that was ahead.
    pub line: String,
    /// The line that was behind.
    pub other_line: String,
    /// Messages that both lines delivered.
    pub common_messages: u64,
    /// Of these, messages that `line` delivered first.
    pub won_messages: u64,
    /// Median lead of these, ns.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Largest lead, ns.
    pub max_ns: u64,
    /// Clock basis of the comparison: `one clock`, `clocks corrected` (by the offset listed in `clocks`) or `clocks not
    /// corrected`.
    pub clocks: &'static str,
}

/// Clock offset of one capture against another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClockSummary {
    /// Path of the capture.
    pub file: String,
    /// Path of the reference capture.
    pub reference: String,
    /// Which common messages were compared: those of the same line, else those of different lines.
    pub basis: &'static str,
    /// Messages compared.
    pub messages: u64,
    /// Median of the timestamp differences, ns: clock offset plus path difference.
    pub offset_ns: i64,
    /// First percentile of the differences.
    pub p01_ns: i64,
    /// 99th percentile of the differences.
    pub p99_ns: i64,
    /// Drift of the difference, parts per million; `None` if the captures are too short.
    pub drift_ppm: Option<f64>,
}

/// Output written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutputSummary {
    /// Path of the output.
    pub path: String,
    /// Packets, heartbeats included.
    pub packets: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
}

impl MergeSummary {
    pub(super) fn of(
        sources: &Sources,
        channels: &[MergedChannel],
        written: WrittenCounts,
        path: &Path,
        elapsed: Duration,
    ) -> Self {
        let routes = || channels.iter().zip(sources.routes().channels());
        let pairs = routes().flat_map(|(channel, routes)| {
            let source = |line: Line| source_of(routes, line);
            channel
                .leads
                .pairs()
                .filter_map(move |(first, second, differences)| Some((source(first)?, source(second)?, differences)))
        });
        let clocks = clock::estimates(sources, pairs);
        let unrouted = sources.routes().counts();
        Self {
            files: sources.files().map(|file| FileSummary::of(file, sources.damages())).collect(),
            channels: routes().map(|(channel, routes)| MergedChannelSummary::of(channel, routes, &clocks)).collect(),
            clocks,
            unrecognised_datagrams: unrouted.unrecognised,
            other_feed_datagrams: unrouted.other_feed,
            malformed_datagrams: sources.refused().iter().map(|(_, count)| count).sum(),
            output: OutputSummary {
                path: path.display().to_string(),
                packets: written.packets,
                payload_bytes: written.payload_bytes,
            },
            elapsed_seconds: elapsed.as_secs_f64(),
        }
    }

    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Tables for the terminal.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = SummaryTable::default();
        self.files.iter().for_each(|file| file.rows(&mut table));
        for channel in &self.channels {
            table.blank_line();
            channel.rows(&mut table);
        }
        if !self.clocks.is_empty() {
            table.blank_line();
            self.clocks.iter().for_each(|clock| clock.rows(&mut table));
            table.row("", "(the offset includes the difference of the network paths)");
        }
        table.blank_line();
        table.rows_above_zero([
            ("unknown feed", self.unrecognised_datagrams),
            ("other feeds", self.other_feed_datagrams),
            ("malformed packets", self.malformed_datagrams),
        ]);
        let OutputSummary { path, packets, payload_bytes } = &self.output;
        let (packets, payload_bytes) = (Count(*packets), Count(*payload_bytes));
        table.row("written", format!("{path}: {packets} packets, {payload_bytes} bytes of payload"));
        table.row("elapsed", format!("{:.3} s", self.elapsed_seconds));
        table.text
    }
}

impl MergedChannelSummary {
    fn of(channel: &MergedChannel, routes: &ChannelRoutes, clocks: &[ClockSummary]) -> Self {
        let counts = &channel.counts;
        let mut drops = BTreeMap::new();
        for (reason, count) in channel.arbiter().drops().iter().chain(counts.drops.iter()) {
            if !matches!(reason, DropReason::Duplicate | DropReason::LateAfterGap) {
                *drops.entry(reason.name()).or_default() += count;
            }
        }
        Self {
            feed: Feed::name(channel.feed()),
            session: channel.session().as_ref().map(Session::to_string),
            sessions: counts.sessions,
            messages: counts.messages,
            packets: counts.packets,
            unsequenced: counts.unsequenced,
            gap_count: counts.gaps,
            gap_messages: counts.gap_messages,
            gaps_window_full: channel.arbiter().statistics().gaps_window_full,
            gaps: channel
                .gaps
                .iter()
                .map(|(session, gap)| GapSummary {
                    session: session.to_string(),
                    first: gap.first().0,
                    next: gap.next().0,
                })
                .collect(),
            drops,
            lines: routes.lines.iter().map(|(line, source)| LineSummary::of(channel, *line, source)).collect(),
            leads: channel
                .leads
                .pairs()
                .flat_map(|(first, second, differences)| leads_of(routes, first, second, differences, clocks))
                .collect(),
        }
    }

    fn rows(&self, table: &mut SummaryTable) {
        let name = self.session.as_deref().unwrap_or(self.feed);
        let sessions = if self.sessions > 1 { format!(", {} sessions", self.sessions) } else { String::new() };
        table.row("channel", format!("{name}{sessions}"));
        table.row("  messages", format!("{} in {} packets", Count(self.messages), Count(self.packets)));
        if self.unsequenced > 0 {
            table.row("  unsequenced", format!("{}, in file order", Count(self.unsequenced)));
        }
        let gaps = match self.gap_count {
            0 => "nothing".to_owned(),
            count => format!("{} messages in {} gaps", Count(self.gap_messages), Count(count)),
        };
        table.row("  lost on all lines", gaps);
        for gap in self.gaps.iter().take(GAPS_SHOWN) {
            let count = Count(gap.next - gap.first);
            table.row("", format!("[{}, {}) {count} of {}", Count(gap.first), Count(gap.next), gap.session));
        }
        if self.gap_count > GAPS_SHOWN as u64 {
            table.row("", format!("and {} more", Count(self.gap_count - GAPS_SHOWN as u64)));
        }
        let late: u64 = self.lines.iter().map(|line| line.late_messages).sum();
        if self.gaps_window_full > 0 {
            let why = format!(
                "{} gaps, because the window of {} packets was full",
                Count(self.gaps_window_full),
                Count(WINDOW_PACKETS as u64)
            );
            table.row("  declared early", format!("{why}; {} messages arrived later", Count(late)));
            table.row("", "(give a lagging line as a file, not as a pipe)");
        } else if late > 0 {
            // The arbiter remembers its last gaps only.
            let late = Count(late);
            table.row(
                "  declared early",
                format!("at least {late} messages arrived after all lines known at that time had passed them"),
            );
            table.row("", "(give a line that starts this late as a separate capture)");
        }
        for (reason, count) in &self.drops {
            table.row(&format!("  dropped {reason}"), Count(*count));
        }
        if self.sessions > 0 {
            self.line_table(&mut table.text);
            self.lead_table(&mut table.text);
        }
    }

    /// Messages delivered and lost by each line.
    fn line_table(&self, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n  {:<6}{:>12}{:>14}{:>8}{:>12}{:>9}{:>9}{:>12}  from",
            "line", "packets", "messages", "first", "lost", "gaps", "longest", "filled"
        );
        for line in &self.lines {
            let _ = writeln!(
                text,
                "  {:<6}{:>12}{:>14}{:>8}{:>12}{:>9}{:>9}{:>12}  {} to {}",
                line.line,
                Count(line.packets),
                Count(line.messages),
                share(line.won_messages, self.messages),
                Count(line.lost_messages),
                Count(line.line_gaps),
                Count(line.longest_line_gap),
                Count(line.lost_messages.saturating_sub(line.lost_by_all_messages)),
                line.path,
                line.dst,
            );
            let anomalies = [
                ("reordered", line.reordered_messages),
                ("too late", line.late_messages),
                ("duplicate packets", line.duplicate_packets),
                ("missing after the line's last packet", line.missing_after_last),
            ];
            for (name, count) in anomalies.into_iter().filter(|(_, count)| *count > 0) {
                let _ = writeln!(text, "        {} {name}", Count(count));
            }
        }
    }

    /// Leads between lines.
    fn lead_table(&self, text: &mut String) {
        if self.leads.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\n  {:<6}{:<6}{:>14}{:>8}{:>10}{:>10}{:>10}{:>10}",
            "first", "over", "common", "share", "p50", "p90", "p99", "max"
        );
        for lead in &self.leads {
            let by = if lead.clocks == SAME_CLOCK { String::new() } else { format!("  {}", lead.clocks) };
            let _ = writeln!(
                text,
                "  {:<6}{:<6}{:>14}{:>8}{:>10}{:>10}{:>10}{:>10}{by}",
                lead.line,
                lead.other_line,
                Count(lead.common_messages),
                share(lead.won_messages, lead.common_messages),
                Latency(lead.p50_ns),
                Latency(lead.p90_ns),
                Latency(lead.p99_ns),
                Latency(lead.max_ns),
            );
        }
    }
}

impl LineSummary {
    fn of(channel: &MergedChannel, line: Line, source: &LineSource) -> Self {
        let statistics = channel.arbiter().line_statistics(line);
        let losses = channel.line(line).map(|line| &line.losses);
        let counts = losses.map(|losses| losses.counts).unwrap_or_default();
        Self {
            line: line.to_string(),
            path: source.path.display().to_string(),
            dst: source.dst.to_string(),
            packets: statistics.packets,
            messages: counts.messages,
            won_messages: statistics.won_messages,
            lost_messages: counts.lost_messages,
            lost_by_all_messages: counts.lost_by_all.min(counts.lost_messages),
            line_gaps: counts.line_gaps,
            longest_line_gap: counts.longest_line_gap,
            first_line_gaps: losses
                .map(|losses| losses.listed.iter().map(|hole| (hole.first().0, hole.next().0)).collect())
                .unwrap_or_default(),
            missing_after_last: counts.missing_after_last,
            reordered_messages: counts.reordered,
            duplicate_packets: counts.duplicate_packets,
            late_messages: statistics.late_messages,
        }
    }
}

impl ClockSummary {
    fn rows(&self, table: &mut SummaryTable) {
        let (file, reference) = (&self.file, &self.reference);
        // Shown to the nanosecond, so that it can be subtracted.
        let offset_ns = self.offset_ns.unsigned_abs();
        let offset = format!("{}.{:09} s", offset_ns / 1_000_000_000, offset_ns % 1_000_000_000);
        let direction = if self.offset_ns < 0 { "behind" } else { "ahead of" };
        table.row("clocks", format!("{file} is {offset} {direction} {reference}"));
        let spread = Latency(self.p99_ns.abs_diff(self.p01_ns));
        let drift = self.drift_ppm.map_or_else(String::new, |ppm| format!(", drifting by {ppm:.3} ppm"));
        let messages = Count(self.messages);
        table.row("", format!("median of {messages} messages of {}; 98 % within {spread}{drift}", self.basis));
    }
}

/// Both directions of a pair of lines.
fn leads_of(
    routes: &ChannelRoutes,
    first: Line,
    second: Line,
    differences: &Differences,
    clocks: &[ClockSummary],
) -> Vec<LeadSummary> {
    let (Some(first_source), Some(second_source)) = (source_of(routes, first), source_of(routes, second)) else {
        return Vec::new();
    };
    let (correction_ns, by) = correction(first_source, second_source, clocks);
    // Differences: how much later the second line delivered a message, ns.
    let all: Vec<(i64, u64)> = differences
        .distribution()
        .into_iter()
        .map(|(difference_ns, count)| (difference_ns.saturating_sub(correction_ns), count))
        .collect();
    let common_messages = all.iter().map(|(_, count)| count).sum();
    // Equal timestamps count for the line that was given first.
    let ahead: Vec<(i64, u64)> = all.iter().copied().filter(|(lead_ns, _)| *lead_ns >= 0).collect();
    let behind = all.iter().rev().filter(|(lead_ns, _)| *lead_ns < 0).map(|(lead_ns, count)| (-lead_ns, *count));
    [(first, second, ahead), (second, first, behind.collect())]
        .into_iter()
        .map(|(line, other_line, leads)| {
            let at = |part| quantile(&leads, part).unsigned_abs();
            LeadSummary {
                line: line.to_string(),
                other_line: other_line.to_string(),
                common_messages,
                won_messages: leads.iter().map(|(_, count)| count).sum(),
                p50_ns: at(0.5),
                p90_ns: at(0.9),
                p99_ns: at(0.99),
                max_ns: at(1.0),
                clocks: by,
            }
        })
        .collect()
}

/// Clock offset of the second line's capture against the first line's, ns; known if the captures contain a common line.
fn correction(first: &LineSource, second: &LineSource, clocks: &[ClockSummary]) -> (i64, &'static str) {
    if first.file == second.file {
        return (0, SAME_CLOCK);
    }
    let (first, second) = (first.path.display().to_string(), second.path.display().to_string());
    let known = clocks.iter().filter(|clock| clock.basis == SAME_LINE).find_map(|clock| {
        match (clock.reference == first && clock.file == second, clock.file == first && clock.reference == second) {
            (true, _) => Some(clock.offset_ns),
            (_, true) => Some(-clock.offset_ns),
            _ => None,
        }
    });
    known.map_or((0, "clocks not corrected"), |offset_ns| (offset_ns, "clocks corrected"))
}

fn source_of(routes: &ChannelRoutes, wanted: Line) -> Option<&LineSource> {
    routes.lines.iter().find(|(line, _)| *line == wanted).map(|(_, source)| source)
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

const SAME_CLOCK: &str = "one clock";
/// Gaps in the table; the JSON lists more.
const GAPS_SHOWN: usize = 10;
