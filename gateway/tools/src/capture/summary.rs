//! What was captured: as a table, or as one line of JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::replay::summary::grouped;

/// What was captured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CaptureSummary {
    /// Each line.
    pub lines: Vec<LineSummary>,
    /// From the first to the last packet, s by their stamps.
    pub seconds: f64,
    /// The files that there are, the oldest first.
    pub files: Vec<String>,
    /// Files that gave way to newer ones.
    pub files_removed: u64,
    /// Bytes written, as they are on disk; into a pipe, before compression.
    pub bytes: u64,
    /// How often a trigger was set off, and by what first; `None` without a trigger.
    pub triggers: Option<u64>,
    /// What set it off, the first of them.
    pub trigger_reasons: Vec<String>,
    /// How long receiving has waited for the disk, ns.
    #[serde(rename = "waited_ns")]
    pub disk_wait_ns: u64,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineSummary {
    /// Its name.
    pub line: String,
    /// Packets received, written or not.
    pub packets: u64,
    /// Their bytes on the wire, Ethernet headers included.
    pub bytes: u64,
    /// Packets that the kernel dropped.
    pub dropped: u64,
    /// Packets with the NIC's stamp.
    pub stamps_hardware: u64,
    /// Packets with the kernel's stamp.
    pub stamps_kernel: u64,
    /// Packets without a stamp: they have the time at which they were read.
    pub stamps_none: u64,
    /// Packets that lack their end.
    #[serde(rename = "cut")]
    pub truncated: u64,
}

impl CaptureSummary {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A table for people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let width = self.lines.iter().map(|line| line.line.chars().count()).max().unwrap_or(0).max(4);
        let mut text = format!("{:<width$}  {:>14}  {:>11}  {:>16}  stamps\n", "line", "packets", "dropped", "bytes");
        for line in &self.lines {
            let stamps =
                [(line.stamps_hardware, "hardware"), (line.stamps_kernel, "kernel"), (line.stamps_none, "none")];
            let some: Vec<_> = stamps.into_iter().filter(|(count, _)| *count > 0).collect();
            let stamps = match some.as_slice() {
                [] => "-".to_owned(),
                [(_, kind)] => (*kind).to_owned(),
                several => several
                    .iter()
                    .map(|(count, kind)| format!("{kind} {}", grouped(*count)))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<width$}  {:>14}  {:>11}  {:>16}  {stamps}",
                line.line,
                grouped(line.packets),
                grouped(line.dropped),
                grouped(line.bytes)
            );
            if line.truncated > 0 {
                let _ = writeln!(text, "{:<width$}  {} packets truncated", "", grouped(line.truncated));
            }
        }
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<10} {value}");
        };
        row(
            "captured",
            format!("{:.3} s from first to last packet, {} bytes written", self.seconds, grouped(self.bytes)),
        );
        if let Some(triggers) = self.triggers {
            row("triggers", grouped(triggers));
            for reason in &self.trigger_reasons {
                row("", reason.clone());
            }
        }
        match self.files.as_slice() {
            [] => row("files", "none".to_owned()),
            [file] => row("file", file.clone()),
            [first, .., last] => {
                row("files", format!("{}, {first} to {last}", grouped(self.files.len() as u64)));
            }
        }
        if self.files_removed > 0 {
            row("deleted", format!("{} older files (--files)", grouped(self.files_removed)));
        }
        if self.disk_wait_ns > 1_000_000 {
            row("disk", format!("reception blocked {} ms on disk writes", self.disk_wait_ns / 1_000_000));
        }
        text
    }
}
