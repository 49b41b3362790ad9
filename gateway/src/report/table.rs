//! The table for the terminal.

use std::fmt::{self, Write};

use super::{
    Report,
    quantity::{Count, Latency, QUANTILES, Timestamp},
};

/// Writes the table: percentiles of every stage, channel by channel.
///
/// # Errors
/// What `out` says.
pub fn write(report: &Report, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "{} to {} UTC", Timestamp(report.begin), Timestamp(report.end))?;
    let mut negative_count = 0;
    for channel in &report.channels {
        write!(out, "\n{:<24}", channel.title())?;
        QUANTILES.iter().try_for_each(|(_, name)| write!(out, "{name:>10}"))?;
        writeln!(out, "{:>10}{:>14}", "max", "count")?;
        for stage in &channel.stages {
            let histogram = &stage.histogram;
            write!(out, "  {:<22}", stage.stage.name())?;
            for (quantile, _) in QUANTILES {
                write!(out, "{:>10}", Latency(histogram.value_at_quantile(quantile)))?;
            }
            writeln!(out, "{:>10}{:>14}", Latency(histogram.max()), Count(histogram.len()))?;
            negative_count += stage.negative_count;
        }
    }
    if report.channels.is_empty() {
        writeln!(out, "\nnothing was recorded")?;
    }
    if negative_count > 0 {
        writeln!(out, "\n{} values came out negative and are not in the table", Count(negative_count))?;
    }
    let build = report.disclosures.iter().flat_map(|disclosed| &disclosed.entries).find(|(key, _)| key == "build");
    match build {
        Some((_, build)) if build.starts_with("debug") => writeln!(out, "\nbuild: {build}"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::plausible_report;

    #[test]
    fn every_stage_of_every_channel_has_a_row_of_one_width() {
        let mut text = String::new();
        write(&plausible_report(), &mut text).unwrap();
        let rows: Vec<&str> =
            text.lines().filter(|line| line.starts_with("  ") || line.starts_with("channel")).collect();
        assert_eq!(rows.len(), 2 * 7, "{text}");
        assert!(rows.iter().all(|row| row.chars().count() == rows[0].chars().count()), "{text}");
        assert!(text.contains("6 values came out negative"), "{text}");
        assert!(text.contains("build: debug"), "{text}");
    }

    #[test]
    fn an_empty_report_says_so() {
        let mut text = String::new();
        write(&Report::of(&[], None), &mut text).unwrap();
        assert!(text.contains("nothing was recorded"));
    }
}
