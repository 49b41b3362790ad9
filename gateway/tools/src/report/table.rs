//! Tables for the terminal.

use std::fmt::{self, Write};

use mdgw_status::quantity::Count;

use super::{
    ChannelCounts, ChannelReport, Comparison, Group, Report,
    difference::SPREAD_NOTE,
    lines::{lead_count, percent},
    quantity::{Latency, QUANTILES, Share, Span, Timestamp},
    takeovers::Takeover,
};

/// Writes the table: percentiles of every stage, channel by channel.
///
/// # Errors
/// Errors of `out`.
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
            negative_count = u64::saturating_add(negative_count, stage.negative_count);
        }
    }
    report.channels.iter().try_for_each(|channel| lines(channel, out))?;
    takeovers(&report.takeovers, out)?;
    if report.channels.is_empty() {
        writeln!(out, "\nno data recorded")?;
    }
    if negative_count > 0 {
        writeln!(out, "\n{} negative values are excluded", Count(negative_count))?;
    }
    let build = report.disclosures.iter().flat_map(|disclosed| &disclosed.entries).find(|(key, _)| key == "build");
    match build {
        Some((_, build)) if build.starts_with("debug") => writeln!(out, "\nbuild: {build}"),
        _ => Ok(()),
    }
}

/// Each takeover with its cost.
pub(super) fn takeovers(takeovers: &[Takeover], out: &mut impl Write) -> fmt::Result {
    if takeovers.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<24}{:>8}{:>6}{:>10}{:>13}  cause",
        "takeovers (UTC)", "group", "node", "blackout", "republished"
    )?;
    for takeover in takeovers {
        let Takeover { time, group, node, cause, .. } = takeover;
        let blackout = takeover.blackout_ns(None).map_or_else(|| "–".to_owned(), |ns| Latency(ns).to_string());
        let republished = takeover.republished_packets();
        let time = Timestamp(*time).to_string();
        writeln!(out, "  {time:<22}{group:>8}{node:>6}{blackout:>10}{:>13}  {cause}", Count(republished))?;
    }
    Ok(())
}

/// Messages and leads of each line.
fn lines(channel: &ChannelReport, out: &mut impl Write) -> fmt::Result {
    let ChannelCounts { messages, gaps, gap_messages, drops, .. } = channel.counted;
    if channel.lines.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "\n{:<24}{:>10}{:>10}{:>10}{:>10}",
        format!("{}: lines", channel.title()),
        "packets",
        "coverage",
        "first",
        "leads"
    )?;
    writeln!(out, "{:>10}{:>10}{:>10}", "lead p50", "p99", "max")?;
    let compared = lead_count(channel.lines.iter().map(|line| line.lead));
    for line in &channel.lines {
        let share = |part, whole| format!("{:.1} %", percent(part, whole));
        write!(
            out,
            "  {:<22}{:>10}{:>10}{:>10}{:>10}",
            format!("line {}", line.line),
            Count(line.packets),
            share(line.messages(), messages),
            share(line.won_messages, messages),
            share(line.lead.count, compared)
        )?;
        let [p50_ns, _, p99_ns, ..] = line.lead.percentiles_ns;
        writeln!(out, "{:>10}{:>10}{:>10}", Latency(p50_ns), Latency(p99_ns), Latency(line.lead.max_ns))?;
    }
    writeln!(
        out,
        "  {} messages, {} gaps declared ({} messages), {} dropped",
        Count(messages),
        Count(gaps),
        Count(gap_messages),
        Count(drops)
    )?;
    channel.gaps.notes().lines().try_for_each(|note| writeln!(out, "    {note}"))?;
    for (host, counts) in &channel.counted_by_host {
        let ChannelCounts { messages, gaps, gap_messages, drops, .. } = *counts;
        let [messages, gaps, gap_messages, drops] = [messages, gaps, gap_messages, drops].map(Count);
        writeln!(
            out,
            "    of them {host}: {messages} messages, {gaps} gaps ({gap_messages} messages), {drops} dropped"
        )?;
    }
    Ok(())
}

/// Writes the differences between the groups of a comparison, percentile by percentile.
///
/// # Errors
/// Errors of `out`.
pub fn write_comparison(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    for (index, Group { name, report }) in comparison.groups.iter().enumerate() {
        let (logs, base) = (report.logs.len(), if index == 0 { "  (baseline)" } else { "" });
        let logs = if logs == 1 { "1 log".to_owned() } else { format!("{logs} logs") };
        writeln!(out, "{name:<20} {logs:>8}  {} to {} UTC{base}", Timestamp(report.begin), Timestamp(report.end))?;
    }
    let mut title = String::new();
    for difference in &comparison.differences {
        let group = comparison.groups.get(difference.group).map_or("", |group| group.name.as_str());
        let (id, name) = (difference.channel.0, difference.name.as_deref().unwrap_or_default());
        let this = format!("channel {id} {name}: {group}");
        if this != title {
            writeln!(
                out,
                "\n{this:<37}{:>10}{:>10}{:>10}  {:<19}  {:<19}",
                "baseline", "now", "change", "spread before", "spread now"
            )?;
            title = this;
        }
        for (index, change) in difference.changes.iter().enumerate() {
            let stage = if index == 0 { difference.stage.name() } else { "" };
            writeln!(
                out,
                "  {stage:<26}{:>9}{:>10}{:>10}{:>10}  {:<19}  {:<19}  {}",
                change.name,
                Latency(change.base_ns),
                Latency(change.value_ns),
                change.share().map_or_else(|| "-".to_owned(), |share| Share(share).to_string()),
                Span(change.base_spread_ns).to_string(),
                Span(change.spread_ns).to_string(),
                change.verdict.text(),
            )?;
        }
    }
    if comparison.differences.is_empty() {
        return writeln!(out, "\nno channel and stage is recorded in more than one group: nothing to compare");
    }
    writeln!(out, "\n{SPREAD_NOTE}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::sample_report;

    #[test]
    fn every_stage_of_every_channel_has_a_row_of_one_width() {
        let mut text = String::new();
        write(&sample_report(), &mut text).unwrap();
        let rows: Vec<&str> =
            text.lines().filter(|line| line.starts_with("  ") || line.starts_with("channel")).collect();
        assert_eq!(rows.len(), 2 * 7, "{text}");
        assert!(rows.iter().all(|row| row.chars().count() == rows[0].chars().count()), "{text}");
        assert!(text.contains("6 negative values are excluded"), "{text}");
        assert!(text.contains("build: debug"), "{text}");
    }

    #[test]
    fn an_empty_report_table_states_that_nothing_was_recorded() {
        let mut text = String::new();
        write(&Report::of(&[], None), &mut text).unwrap();
        assert!(text.contains("no data recorded"));
    }

    #[test]
    fn a_comparison_has_a_row_for_each_percentile_and_explains_the_spread() {
        let groups = ["yesterday", "today"].map(|name| Group { name: name.to_owned(), report: sample_report() });
        let mut text = String::new();
        write_comparison(&Comparison::of(groups.into()), &mut text).unwrap();
        let rows = text.lines().filter(|line| line.contains(" +0.0 % ")).count();
        assert_eq!(rows, 2 * 6 * 6, "{text}");
        assert!(text.contains("channel 1 nasdaq: today") && text.contains("within the spread"), "{text}");
        assert!(text.contains("Spread: from the lowest to the highest"), "{text}");
    }
}
