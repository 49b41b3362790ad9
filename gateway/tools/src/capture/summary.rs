//! Summary of a capture: as a table, or as one line of JSON.

use std::fmt::Write as _;

use serde::Serialize;

use mdgw_status::quantity::Count;

use crate::summary_table::SummaryTable;

/// Summary of a capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CaptureSummary {
    /// Counts of each line.
    pub lines: Vec<LineSummary>,
    /// From the first to the last packet, seconds by their timestamps.
    pub seconds: f64,
    /// Existing files, the oldest first.
    pub files: Vec<String>,
    /// Files deleted to keep the limit.
    pub files_removed: u64,
    /// Bytes written, as on disk; into a pipe, before compression.
    pub bytes: u64,
    /// How often the trigger fired; `None` without a trigger.
    pub trigger_count: Option<u64>,
    /// The first events that fired it.
    pub trigger_reasons: Vec<String>,
    /// Time that receiving waited for the disk, ns.
    pub disk_wait_ns: u64,
}

/// Counts of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineSummary {
    /// Name of the line.
    pub line: String,
    /// Packets received, whether written or not.
    pub packets: u64,
    /// Bytes on the wire, Ethernet headers included.
    pub bytes: u64,
    /// Packets that the kernel dropped.
    pub dropped: u64,
    /// Packets with a NIC timestamp.
    pub stamps_hardware: u64,
    /// Packets with a kernel timestamp.
    pub stamps_kernel: u64,
    /// Packets without a timestamp; they get the time at which they were read.
    pub stamps_none: u64,
    /// Truncated packets.
    pub truncated: u64,
}

impl CaptureSummary {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Table for the terminal.
    #[must_use]
    pub fn to_table(&self) -> String {
        let width = self.lines.iter().map(|line| line.line.chars().count()).max().unwrap_or(0).max(4);
        let mut table = SummaryTable::with_name_width(10);
        // Writing to a string cannot fail.
        let _ =
            writeln!(table.text, "{:<width$}  {:>14}  {:>11}  {:>16}  stamps", "line", "packets", "dropped", "bytes");
        for line in &self.lines {
            let stamps =
                [(line.stamps_hardware, "hardware"), (line.stamps_kernel, "kernel"), (line.stamps_none, "none")];
            let some: Vec<_> = stamps.into_iter().filter(|(count, _)| *count > 0).collect();
            let stamps = match some.as_slice() {
                [] => "-".to_owned(),
                [(_, kind)] => (*kind).to_owned(),
                several => several
                    .iter()
                    .map(|(count, kind)| format!("{kind} {}", Count(*count)))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            let _ = writeln!(
                table.text,
                "{:<width$}  {:>14}  {:>11}  {:>16}  {stamps}",
                line.line,
                Count(line.packets),
                Count(line.dropped),
                Count(line.bytes)
            );
            if line.truncated > 0 {
                let _ = writeln!(table.text, "{:<width$}  {} packets truncated", "", Count(line.truncated));
            }
        }
        table.row(
            "captured",
            format!("{:.3} s from first to last packet, {} bytes written", self.seconds, Count(self.bytes)),
        );
        if let Some(triggers) = self.trigger_count {
            table.row("triggers", Count(triggers));
            for reason in &self.trigger_reasons {
                table.row("", reason);
            }
        }
        match self.files.as_slice() {
            [] => table.row("files", "none"),
            [file] => table.row("file", file),
            [first, .., last] => {
                table.row("files", format!("{}, {first} to {last}", Count(self.files.len() as u64)));
            }
        }
        if self.files_removed > 0 {
            table.row("deleted", format!("{} older files (--files)", Count(self.files_removed)));
        }
        if self.disk_wait_ns > 1_000_000 {
            table.row("disk", format!("reception blocked {} ms on disk writes", self.disk_wait_ns / 1_000_000));
        }
        table.text
    }
}
