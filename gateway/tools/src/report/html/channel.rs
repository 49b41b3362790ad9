//! Section of one channel on the page of a report.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;
use mdgw_feeds::time::{TradingDate, UnixNs};
use mdgw_status::quantity::Count;
use mdgw_telemetry::stages::Stage;

use super::{
    charts::{self, LoadLine, TimeSpan, percentiles},
    figure, latency, stage_title, tile,
};
use crate::report::{
    BURST_FACTOR, ChannelCounts, ChannelReport, LoadBucket, Report, StageReport,
    chart::{STYLE_COUNT, escape},
    lines::{lead_count, percent, slice_starts},
    quantity::{QUANTILES, TimeOfDay},
    statistics::LatencyStatistics,
};

/// End to end latency, one channel against another: the slowest tails if there are many channels.
pub(super) fn all_channels(report: &Report, out: &mut impl Write) -> fmt::Result {
    let mut wire_to_wire: Vec<(&ChannelReport, &StageReport)> = report
        .channels
        .iter()
        .filter_map(|channel| channel.stage(Stage::WireToWire).map(|stage| (channel, stage)))
        .collect();
    if wire_to_wire.len() < 2 {
        return Ok(());
    }
    let omitted = wire_to_wire.len().saturating_sub(STYLE_COUNT);
    wire_to_wire.sort_by_key(|(_, stage)| std::cmp::Reverse(stage.histogram.value_at_quantile(0.99)));
    wire_to_wire.truncate(STYLE_COUNT);
    wire_to_wire.sort_by_key(|(channel, _)| channel.id);
    let lines: Vec<(String, usize, &Histogram<u64>)> =
        (0..).zip(&wire_to_wire).map(|(style, (channel, stage))| (channel.title(), style, &stage.histogram)).collect();
    writeln!(out, "<section>\n<h2>All channels</h2>")?;
    figure("Wire to wire, by percentile", &percentiles("Wire to wire", &lines), out)?;
    if omitted > 0 {
        writeln!(out, "<p>The {STYLE_COUNT} channels with the slowest p99; {omitted} more are in the table.</p>")?;
    }
    writeln!(out, "</section>")
}

pub(super) fn section(channel: &ChannelReport, report: &Report, out: &mut impl Write) -> fmt::Result {
    let title = channel.title();
    writeln!(out, "<section>\n<h2>{}</h2>", escape(&title.replacen("channel", "Channel", 1)))?;
    if let Some(wire_to_wire) =
        channel.stage(Stage::WireToWire).filter(|wire_to_wire| !wire_to_wire.histogram.is_empty())
    {
        writeln!(out, "<p class=\"label\">Wire to wire</p>\n<dl class=\"tiles\">")?;
        let histogram = &wire_to_wire.histogram;
        for (quantile, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            tile(name, &latency(histogram.value_at_quantile(quantile)), out)?;
        }
        tile("max", &latency(histogram.max()), out)?;
        tile("packets", &Count(histogram.len()).to_string(), out)?;
        writeln!(out, "</dl>")?;
    }
    let lines: Vec<(String, usize, &Histogram<u64>)> = channel
        .stages
        .iter()
        .filter(|stage| !stage.histogram.is_empty())
        .map(|stage| (stage_title(stage.stage).to_owned(), stage.stage as usize, &stage.histogram))
        .collect();
    if !lines.is_empty() {
        figure("Stages, by percentile", &percentiles(&title, &lines), out)?;
    }
    let wire_to_wire = channel.stage(Stage::WireToWire).or_else(|| channel.stages.last());
    if let Some(stage) = wire_to_wire.filter(|stage| stage.timeline.len() > 1) {
        let span = TimeSpan::of(report, &stage.timeline, channel);
        let caption = format!("{}, over time (UTC)", stage_title(stage.stage));
        figure(&caption, &charts::timeline(stage.stage, &stage.timeline, &span), out)?;
        figure("Rate, over time (UTC)", &charts::rates(channel.rate_unit, &stage.timeline, &span), out)?;
        writeln!(
            out,
            "<p class=\"caption\">Burst: an interval with at least {BURST_FACTOR} times the median count of \
             non-empty intervals. Idle: nothing recorded for more than three intervals. Rates are averages over an \
             interval.</p>"
        )?;
    }
    days(channel, out)?;
    leads(channel, out)?;
    channel.gaps.notes().lines().try_for_each(|note| writeln!(out, "<p class=\"caption\">Gaps {note}.</p>"))?;
    queueing(channel, out)?;
    writeln!(out, "</section>")
}

/// The last days overlaid, if there are several.
fn days(channel: &ChannelReport, out: &mut impl Write) -> fmt::Result {
    let Some(stage) = channel.stage(Stage::WireToWire).or_else(|| channel.stages.last()) else { return Ok(()) };
    let shown = &stage.days[stage.days.len().saturating_sub(STYLE_COUNT)..];
    if shown.len() < 2 || shown.iter().all(|(_, points)| points.len() < 2) {
        return Ok(());
    }
    let names: Vec<String> = shown.iter().map(|(day, _)| TradingDate::in_utc(*day).to_string()).collect();
    let lines: Vec<charts::OverlayLine<'_>> = names
        .iter()
        .zip(shown)
        .enumerate()
        .map(|(style, (name, (_, points)))| (name.as_str(), style, UnixNs(0), points.as_slice()))
        .collect();
    let title = stage_title(stage.stage);
    figure(
        &format!("{title}, 99th percentile of each day, by time of day (UTC)"),
        &charts::overlay(title, &lines),
        out,
    )?;
    match stage.days.len() - shown.len() {
        0 => Ok(()),
        omitted => {
            writeln!(out, "<p class=\"caption\">The last {STYLE_COUNT} days; {omitted} earlier days are not drawn.</p>")
        }
    }
}

/// Which line is faster, by how much and when.
fn leads(channel: &ChannelReport, out: &mut impl Write) -> fmt::Result {
    if channel.lines.is_empty() {
        return Ok(());
    }
    let ChannelCounts { messages, gaps, gap_messages, drops, .. } = channel.counted;
    let compared = lead_count(channel.lines.iter().map(|line| line.lead));
    let share = |part, whole| format!("{:.1}\u{a0}%", percent(part, whole));
    writeln!(
        out,
        "<p class=\"label\">Lines</p>\n<div \
         class=\"scroll\">\n<table>\n<thead><tr><th>line</th><th>packets</th><th>coverage</th>\
         <th>first</th><th>late</th><th>leads</th><th>lead p50</th><th>p90</th><th>p99</th><th>max</th></tr></thead>\n<tbody class=\"plain\">"
    )?;
    for line in &channel.lines {
        let [p50_ns, p90_ns, p99_ns, ..] = line.lead.percentiles_ns;
        writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            line.line,
            Count(line.packets),
            share(line.messages(), messages),
            share(line.won_messages, messages),
            Count(line.late_messages),
            share(line.lead.count, compared),
            lead(line.lead.count, p50_ns),
            lead(line.lead.count, p90_ns),
            lead(line.lead.count, p99_ns),
            lead(line.lead.count, line.lead.max_ns)
        )?;
    }
    writeln!(
        out,
        "</tbody>\n</table>\n</div>\n<p class=\"caption\">{} messages; {} gaps declared ({} messages), {} dropped. \
         Coverage: share of all messages that arrived on the line. First: share that arrived on this line before any \
         other, or only on this line. Leads: of the messages that arrived on two lines, those that arrived on this \
         line first, and by how much. Late: arrived after their gap was declared.</p>",
        Count(messages),
        Count(gaps),
        Count(gap_messages),
        Count(drops)
    )?;
    let slices = slice_starts(&channel.lines);
    if slices.len() < 2 {
        return Ok(());
    }
    figure("Lead of each line over time (UTC)", &charts::leads(&channel.title(), &channel.lines), out)?;
    writeln!(out, "<div class=\"scroll\">\n<table>\n<thead><tr><th>from</th>")?;
    for line in &channel.lines {
        write!(out, "<th>{} leads</th><th>lead p50</th><th>p99</th>", line.line)?;
    }
    writeln!(out, "</tr></thead>\n<tbody class=\"plain\">")?;
    for (start, _) in slices {
        let compared = lead_count(channel.lines.iter().map(|line| line.lead_at(start)));
        write!(out, "<tr><th scope=\"row\">{}</th>", TimeOfDay(start))?;
        for line in &channel.lines {
            let then = line.lead_at(start);
            let [p50_ns, _, p99_ns, ..] = then.percentiles_ns;
            let ahead = share(then.count, compared);
            write!(out, "<td>{ahead}</td><td>{}</td><td>{}</td>", lead(then.count, p50_ns), lead(then.count, p99_ns))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>")
}

/// Lead of a line, if it ever led.
fn lead(count: u64, ns: u64) -> String {
    if count == 0 { "–".to_owned() } else { latency(ns) }
}

/// Waiting times of packets, by load.
fn queueing(channel: &ChannelReport, out: &mut impl Write) -> fmt::Result {
    let waits = [Stage::WireToUser, Stage::ClaimWait, Stage::WireToWire];
    let stages: Vec<&StageReport> = waits.iter().filter_map(|stage| channel.stage(*stage)).collect();
    if stages.iter().all(|stage| stage.load.len() < 2) {
        return Ok(());
    }
    let p50: fn(&LatencyStatistics) -> u64 = |statistics| statistics.percentiles_ns[0];
    let p99: fn(&LatencyStatistics) -> u64 = |statistics| statistics.percentiles_ns[2];
    let line = |stage: &&'_ StageReport, name: &str, style, pick| {
        (format!("{} {name}", stage_title(stage.stage)), style, pick)
    };
    let lines: Vec<LoadLine<'_>> = stages
        .iter()
        .flat_map(|stage| {
            let style = stage.stage as usize;
            let mut picked = vec![line(stage, "p99", style, p99)];
            if stage.stage == Stage::WireToWire {
                picked.push(line(stage, "p50", 6, p50));
            }
            picked.into_iter().map(|(name, style, pick)| LoadLine { name, style, buckets: &stage.load, pick })
        })
        .collect();
    figure(
        &format!("Latency against load ({} per second)", channel.rate_unit.name()),
        &charts::load(&channel.title(), &lines),
        out,
    )?;
    writeln!(
        out,
        "<div class=\"scroll\">\n<table>\n<thead><tr><th>load</th><th class=\"text\">stage</th><th>intervals</th>"
    )?;
    QUANTILES.iter().try_for_each(|(_, name)| write!(out, "<th>{name}</th>"))?;
    writeln!(out, "<th>max</th></tr></thead>\n<tbody class=\"plain\">")?;
    let mut buckets: Vec<(&LoadBucket, Stage)> =
        stages.iter().flat_map(|stage| stage.load.iter().map(|bucket| (bucket, stage.stage))).collect();
    buckets.sort_by_key(|(bucket, stage)| (bucket.from_per_s, *stage));
    let mut last = None;
    for (bucket, stage) in buckets {
        let title = if last.replace(bucket.from_per_s) == Some(bucket.from_per_s) {
            String::new()
        } else {
            charts::bucket_title(bucket)
        };
        write!(out, "<tr><th scope=\"row\">{title}</th><td class=\"text\">{}</td>", stage_title(stage))?;
        write!(out, "<td>{}</td>", Count(bucket.intervals))?;
        for (_, value_ns) in bucket.statistics.named() {
            write!(out, "<td>{}</td>", latency(value_ns))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>")
}
