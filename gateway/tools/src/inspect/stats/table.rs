//! Statistics as a table for the terminal.

use std::fmt::{self, Display, Formatter};

use mdgw_feeds::time::{TradingDate, UnixNs};
use mdgw_status::quantity::Count;

use super::{FileStatistics, LineSummary};
use crate::inspect::text::ClockNs;

impl Display for FileStatistics {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  {} frames, {} UDP datagrams", self.path, Count(self.frames), Count(self.datagrams))?;
        for (count, what) in [
            (self.not_udp, "frames of other protocols"),
            (self.fragments, "IP fragments"),
            (self.malformed, "malformed frames"),
            (self.truncated, "frames truncated by the capture's snap length"),
            (self.frames_without_timestamp, "packets without a timestamp"),
            (self.unrecognised, "datagrams of unknown feeds"),
            (self.published, "datagrams of a gateway's output (mdgw ha verify judges them)"),
            (self.lines_over_limit, "datagrams beyond the limit of addresses"),
        ] {
            if count > 0 {
                write!(f, ", {} {what}", Count(count))?;
            }
        }
        writeln!(f)?;
        self.lines.iter().try_for_each(|line| line.fmt(f))
    }
}

impl Display for LineSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}  {}", self.dst, self.protocol)?;
        if let Some(channel) = self.channel {
            write!(f, ", channel {channel}")?;
        }
        let moment = |ns| format!("{} {}", TradingDate::in_utc(UnixNs(ns)), ClockNs(ns));
        writeln!(f, "\n  {:<16}{} to {} UTC", "captured", moment(self.first_ns), moment(self.last_ns))?;
        let heartbeats = Count(self.heartbeats);
        let rate = rate(self.packets_per_second);
        writeln!(f, "  {:<16}{:>14}  {rate}/s, {heartbeats} heartbeats", "packets", Count(self.packets))?;
        let bytes = Count(self.payload_bytes);
        writeln!(f, "  {:<16}{bytes:>14}", "payload bytes")?;
        writeln!(f, "  {:<16}{:>14}  {}/s", "messages", Count(self.messages), self::rate(self.messages_per_second))?;
        for burst in self.bursts.iter().filter(|burst| burst.messages > 0) {
            let window = match burst.window_us {
                us if us >= 1_000_000 => format!("busiest {} s", us / 1_000_000),
                us => format!("busiest {} ms", us / 1_000),
            };
            writeln!(f, "  {window:<16}{:>14}  from {}", Count(burst.messages), moment(burst.time_ns))?;
        }
        self.write_sequence_rows(f)?;
        for (title, counts) in
            [("malformed messages", &self.malformed_messages), ("malformed packets", &self.malformed_packets)]
        {
            for (reason, count) in counts {
                writeln!(f, "  {title:<16}{:>14}  {reason}", Count(*count))?;
            }
        }
        if !self.types.is_empty() {
            writeln!(f, "  {:<32}{:>14}{:>9}", "type", "messages", "share")?;
        }
        for kind in &self.types {
            #[expect(clippy::cast_precision_loss, reason = "a share for people")]
            let share = 100.0 * kind.messages as f64 / self.messages.max(1) as f64;
            let name = kind.name.unwrap_or("unknown");
            writeln!(f, "    {:<4} {name:<25}{:>14}{share:>7.2} %", kind.code, Count(kind.messages))?;
        }
        Ok(())
    }
}

impl LineSummary {
    fn write_sequence_rows(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let missing = if self.gap_count > 0 {
            format!("  {} messages missing", Count(self.missing_messages))
        } else {
            String::new()
        };
        writeln!(f, "  {:<16}{:>14}{missing}", "gaps", Count(self.gap_count))?;
        for gap in self.gaps.iter().take(SHOWN_MAX) {
            let (first, last) = (Count(gap.first), Count(gap.next - 1));
            let count = Count(gap.next - gap.first);
            writeln!(f, "    {}  {first} to {last} ({count})  at {}", gap.session, ClockNs(gap.time_ns))?;
        }
        write_more(f, self.gap_count, self.gaps.len())?;
        for (count, title) in [(self.duplicates, "duplicate or late"), (self.stale_packets, "stale packets")] {
            if count > 0 {
                writeln!(f, "  {title:<16}{:>14}", Count(count))?;
            }
        }
        writeln!(f, "  {:<16}{:>14}", "sessions", Count(self.session_count))?;
        for session in self.sessions.iter().take(SHOWN_MAX) {
            write!(f, "    {}  from {}", session.session, ClockNs(session.time_ns))?;
            if session.next > session.first {
                write!(f, "  messages {} to {}", Count(session.first), Count(session.next - 1))?;
            } else {
                write!(f, "  no messages")?;
            }
            if session.gaps > 0 {
                write!(f, ", {} missing in {} gaps", Count(session.missing_messages), Count(session.gaps))?;
            }
            writeln!(f)?;
        }
        write_more(f, self.session_count, self.sessions.len())
    }
}

/// Notes that a list was truncated.
fn write_more(f: &mut Formatter<'_>, count: u64, listed: usize) -> fmt::Result {
    let left = count.saturating_sub(listed.min(SHOWN_MAX) as u64);
    if left > 0 { writeln!(f, "    and {} more", Count(left)) } else { Ok(()) }
}

/// A rate with three digits, or all digits before the point.
fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

const SHOWN_MAX: usize = 20;
