//! Summary of an offline replay: as a table, or as one line of JSON.

use std::collections::BTreeMap;

use mdgw_captures::capture_file::{CaptureError, CaptureFile};
use mdgw_status::quantity::Count;
use serde::Serialize;

use crate::summary_table::SummaryTable;

/// Summary of an offline replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Each file.
    pub files: Vec<FileSummary>,
    /// Each channel found.
    pub channels: Vec<ChannelSummary>,
    /// All channels together.
    pub total: Totals,
    /// UDP datagrams of unknown feeds, and heartbeats before the feed was known.
    pub unrecognised_datagrams: u64,
    /// UDP datagrams of feeds that were not requested.
    pub other_feed_datagrams: u64,
    /// From the first to the last datagram, seconds of capture time.
    pub capture_seconds: f64,
    /// Duration of the replay, s.
    pub elapsed_seconds: f64,
    /// Messages per second of the replay.
    pub messages_per_second: f64,
    /// The DBN file written.
    pub output: Option<OutputSummary>,
}

/// One file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileSummary {
    /// Path as given.
    pub path: String,
    /// Frames, or packets made from a day file.
    pub frames: u64,
    /// UDP datagrams.
    pub datagrams: u64,
    /// Frames of other protocols.
    pub not_udp: u64,
    /// IP fragments, skipped.
    pub fragments: u64,
    /// Frames with malformed headers, skipped.
    pub malformed: u64,
    /// Frames truncated by the capture's snap length, skipped.
    pub truncated: u64,
    /// Frames without a timestamp, replayed at the time of the frame before.
    pub frames_without_timestamp: u64,
    /// Error that ended the file early.
    pub damage: Option<String>,
}

/// One channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChannelSummary {
    /// Feed of the channel.
    pub feed: &'static str,
    /// Current or last session.
    pub session: Option<String>,
    /// State at the end.
    pub state: String,
    /// Lines of the channel.
    pub lines: Vec<LineSummary>,
    /// Counts of the channel's input and output.
    #[serde(flatten)]
    pub counts: Totals,
    /// Sessions joined after their first message.
    pub late_starts: u64,
    /// Frames that filled a gap after it had been declared: not recorded.
    pub late_messages: u64,
    /// Memory of window, books and tables, bytes.
    pub memory_bytes: u64,
}

/// One line of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineSummary {
    /// A, B, …
    pub line: String,
    /// File and address.
    pub source: String,
}

/// Counts of one channel or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Datagrams routed to the channel.
    pub packets: u64,
    /// Heartbeats, of these.
    pub heartbeats: u64,
    /// Messages in sequence, each once.
    pub messages: u64,
    /// Of these, messages that could not be decoded.
    pub messages_refused: u64,
    /// Messages without sequence: processed in file order.
    pub unsequenced: u64,
    /// Records by schema.
    pub records: BTreeMap<&'static str, u64>,
    /// Records of suspect books.
    pub suspect_records: u64,
    /// Gaps declared.
    pub gaps: u64,
    /// Messages in these gaps.
    pub lost_messages: u64,
    /// Duplicates: messages that a line delivered after another line, or again.
    pub duplicates: u64,
    /// Rejections by reason, without duplicates.
    pub drops: BTreeMap<&'static str, u64>,
    /// Faults of the books, by kind.
    pub book_faults: BTreeMap<&'static str, u64>,
    /// Sessions begun.
    pub sessions: u64,
    /// Trades broken by the venue; DBN has no record for this.
    pub trades_broken: u64,
}

/// The DBN file written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutputSummary {
    /// Path of the file.
    pub path: String,
    /// Records in it.
    pub records: u64,
    /// Symbols in its metadata.
    pub symbols: u64,
    /// Bytes before compression.
    pub bytes: u64,
}

impl Totals {
    /// Adds the counts of another channel.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { packets, heartbeats, messages, messages_refused, unsequenced, suspect_records, .. } = other;
        self.packets += packets;
        self.heartbeats += heartbeats;
        self.messages += messages;
        self.messages_refused += messages_refused;
        self.unsequenced += unsequenced;
        self.suspect_records += suspect_records;
        self.gaps += other.gaps;
        self.lost_messages += other.lost_messages;
        self.duplicates += other.duplicates;
        self.sessions += other.sessions;
        self.trades_broken += other.trades_broken;
        for (mine, others) in [
            (&mut self.records, &other.records),
            (&mut self.drops, &other.drops),
            (&mut self.book_faults, &other.book_faults),
        ] {
            for (name, count) in others {
                *mine.entry(name).or_default() += count;
            }
        }
    }
}

impl Summary {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Table for the terminal.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = SummaryTable::default();
        self.files.iter().for_each(|file| file.rows(&mut table));
        for channel in &self.channels {
            table.blank_line();
            let session = channel.session.as_deref().unwrap_or(channel.feed);
            table.row("channel", format!("{session}, {}", channel.state));
            for line in &channel.lines {
                table.row(&format!("  line {}", line.line), &line.source);
            }
            channel.counts.rows(&mut table);
            table.rows_above_zero([
                ("  late starts", channel.late_starts),
                ("  late messages skipped (gap already declared)", channel.late_messages),
            ]);
        }
        table.blank_line();
        if self.channels.len() > 1 {
            table.row("all channels", "");
            self.total.rows(&mut table);
        }
        table.rows_above_zero([
            ("unknown feed", self.unrecognised_datagrams),
            ("other feeds", self.other_feed_datagrams),
        ]);
        table.row("capture", format!("{:.3} s", self.capture_seconds));
        table.row("replayed in", format!("{:.3} s, {:.0} messages/s", self.elapsed_seconds, self.messages_per_second));
        if let Some(output) = &self.output {
            let (records, symbols) = (Count(output.records), Count(output.symbols));
            table.row("written", format!("{}: {records} records, {symbols} symbols", output.path));
        }
        table.text
    }
}

impl Totals {
    fn rows(&self, table: &mut SummaryTable) {
        table.row("  packets", format!("{} ({} heartbeats)", Count(self.packets), Count(self.heartbeats)));
        table.row("  messages", Count(self.messages));
        table.rows_above_zero([("  not decoded", self.messages_refused)]);
        if self.unsequenced > 0 {
            table.row("  unsequenced", format!("{}, in file order", Count(self.unsequenced)));
        }
        for (schema, count) in &self.records {
            table.row(&format!("  records {schema}"), Count(*count));
        }
        table.rows_above_zero([("  suspect records", self.suspect_records)]);
        if self.trades_broken > 0 {
            table.row("  trades broken", format!("{}, without a record", Count(self.trades_broken)));
        }
        table.row("  gaps", format!("{} ({} messages lost)", Count(self.gaps), Count(self.lost_messages)));
        table.row("  duplicates", Count(self.duplicates));
        for (reason, count) in &self.drops {
            table.row(&format!("  dropped {reason}"), Count(*count));
        }
        let faults: u64 = self.book_faults.values().sum();
        table.row("  book faults", Count(faults));
        for (fault, count) in &self.book_faults {
            table.row(&format!("    {fault}"), Count(*count));
        }
        table.row("  sessions", Count(self.sessions));
    }
}

impl FileSummary {
    /// Counts of the file, and its entry in `damages`, if any.
    pub(crate) fn of(file: &CaptureFile, damages: &[CaptureError]) -> Self {
        let counts = file.counts();
        let damage = damages.iter().find(|damage| damage.path == file.path());
        Self {
            path: file.path().display().to_string(),
            frames: counts.frames,
            datagrams: counts.datagrams,
            not_udp: counts.not_udp,
            fragments: counts.fragments,
            malformed: counts.malformed,
            truncated: counts.truncated,
            frames_without_timestamp: counts.untimed,
            damage: damage.map(|damage| format!("{damage}: {}", damage.fault)),
        }
    }

    pub(crate) fn rows(&self, table: &mut SummaryTable) {
        table.row(&self.path, format!("{} frames, {} UDP", Count(self.frames), Count(self.datagrams)));
        table.rows_above_zero([
            ("  other protocols", self.not_udp),
            ("  IP fragments skipped", self.fragments),
            ("  malformed frames skipped", self.malformed),
            ("  truncated by the capture's snap length", self.truncated),
            ("  without a timestamp", self.frames_without_timestamp),
        ]);
        if let Some(damage) = &self.damage {
            table.row("  damaged", damage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_by_name() {
        let one = Totals { messages: 2, records: [("mbo", 3)].into(), ..Totals::default() };
        let other = Totals { messages: 5, records: [("mbo", 1), ("status", 1)].into(), ..Totals::default() };
        let mut sum = Totals::default();
        sum.add(&one);
        sum.add(&other);
        assert_eq!((sum.messages, sum.records), (7, [("mbo", 4), ("status", 1)].into()));
    }

    #[test]
    fn broken_trades_are_reported() {
        let channel = |trades_broken| {
            let counts = Totals { trades_broken, ..Totals::default() };
            Summary { channels: vec![ChannelSummary { counts, ..ChannelSummary::default() }], ..Summary::default() }
        };
        assert!(channel(3).to_table().contains("  trades broken            3, without a record\n"));
        assert!(!channel(0).to_table().contains("broken"));
        let mut sum = Totals { trades_broken: 1, ..Totals::default() };
        sum.add(&Totals { trades_broken: 2, ..Totals::default() });
        assert_eq!(sum.trades_broken, 3);
    }

    #[test]
    fn json_is_one_line_with_flat_counts() {
        let counts = Totals { gaps: 1, ..Totals::default() };
        let channels = vec![ChannelSummary { feed: "iex-deep-1.0", counts, ..ChannelSummary::default() }];
        let json = Summary { channels, ..Summary::default() }.to_json();
        assert!(!json.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["channels"][0]["gaps"], 1);
        assert_eq!(value["channels"][0]["feed"], "iex-deep-1.0");
    }
}
