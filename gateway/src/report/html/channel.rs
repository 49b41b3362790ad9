//! One channel on a page of one report.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;

use super::{
    charts::{self, LoadLine, TimeSpan, percentiles},
    figure, latency, stage_title, tile,
};
use crate::{
    observe::stages::Stage,
    report::{
        BURST_FACTOR, ChannelReport, LoadBucket, Report, StageReport,
        chart::{STYLE_COUNT, escape},
        figures::Figures,
        quantity::{Count, QUANTILES},
    },
};

/// The whole way, channel against channel: those with the slowest tails, if there are many.
pub(super) fn all_channels(report: &Report, out: &mut impl Write) -> fmt::Result {
    let mut whole: Vec<(&ChannelReport, &StageReport)> = report
        .channels
        .iter()
        .filter_map(|channel| channel.stage(Stage::WireToWire).map(|stage| (channel, stage)))
        .collect();
    if whole.len() < 2 {
        return Ok(());
    }
    let left_out = whole.len().saturating_sub(STYLE_COUNT);
    whole.sort_by_key(|(_, stage)| std::cmp::Reverse(stage.histogram.value_at_quantile(0.99)));
    whole.truncate(STYLE_COUNT);
    whole.sort_by_key(|(channel, _)| channel.id);
    let lines: Vec<(String, usize, &Histogram<u64>)> =
        (0..).zip(&whole).map(|(style, (channel, stage))| (channel.title(), style, &stage.histogram)).collect();
    writeln!(out, "<section>\n<h2>All channels</h2>")?;
    figure("Wire to wire, by percentile", &percentiles("Wire to wire", &lines), out)?;
    if left_out > 0 {
        writeln!(out, "<p>The {STYLE_COUNT} channels with the slowest p99; {left_out} others are in the table.</p>")?;
    }
    writeln!(out, "</section>")
}

pub(super) fn section(channel: &ChannelReport, report: &Report, out: &mut impl Write) -> fmt::Result {
    let title = channel.title();
    writeln!(out, "<section>\n<h2>{}</h2>", escape(&title.replacen("channel", "Channel", 1)))?;
    if let Some(whole) = channel.stage(Stage::WireToWire).filter(|whole| !whole.histogram.is_empty()) {
        writeln!(out, "<p class=\"label\">Wire to wire</p>\n<dl class=\"tiles\">")?;
        let histogram = &whole.histogram;
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
    let whole = channel.stage(Stage::WireToWire).or_else(|| channel.stages.last());
    if let Some(stage) = whole.filter(|stage| stage.timeline.len() > 1) {
        let span = TimeSpan::of(report.begin, &stage.timeline, &channel.pauses);
        let caption = format!("{}, over time (UTC)", stage_title(stage.stage));
        figure(&caption, &charts::timeline(stage.stage, &stage.timeline, &span), out)?;
        figure("Rate, over time (UTC)", &charts::rates(&stage.timeline, &span), out)?;
        writeln!(
            out,
            "<p class=\"caption\">Burst: an interval in which at least {BURST_FACTOR} times as much came as in the median \
             interval. Pause: nothing was recorded for more than three intervals. Rates are means over an interval.</p>"
        )?;
    }
    queueing(channel, out)?;
    writeln!(out, "</section>")
}

/// Where packets wait, and how long, by how much comes.
fn queueing(channel: &ChannelReport, out: &mut impl Write) -> fmt::Result {
    let waits = [Stage::WireToUser, Stage::ClaimWait, Stage::WireToWire];
    let stages: Vec<&StageReport> = waits.iter().filter_map(|stage| channel.stage(*stage)).collect();
    if stages.iter().all(|stage| stage.load.len() < 2) {
        return Ok(());
    }
    let p50: fn(&Figures) -> u64 = |figures| figures.percentiles_ns[0];
    let p99: fn(&Figures) -> u64 = |figures| figures.percentiles_ns[2];
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
    figure("Queueing: latency by packets a second", &charts::load(&channel.title(), &lines), out)?;
    writeln!(out, "<div class=\"scroll\">\n<table>\n<thead><tr><th>load</th><th>stage</th><th>intervals</th>")?;
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
        write!(out, "<tr><th scope=\"row\">{title}</th><td>{}</td>", stage_title(stage))?;
        write!(out, "<td>{}</td>", Count(bucket.intervals))?;
        for (_, value_ns) in bucket.figures.named() {
            write!(out, "<td>{}</td>", latency(value_ns))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>")
}
