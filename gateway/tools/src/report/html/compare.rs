//! Page that compares groups: differences, and overlaid curves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write},
};

use mdgw_feeds::{identity::ChannelId, time::UnixNs};
use mdgw_telemetry::stages::Stage;

use super::{charts, figure, latency, span, stage_title};
use crate::report::{
    ChangeVerdict, ChannelReport, Comparison, Difference, Group, StageReport, TimelinePoint,
    chart::{STYLE_COUNT, escape},
    difference::SPREAD_NOTE,
    quantity::{QUANTILES, Share},
    timeline::NS_PER_DAY,
};

/// Names, logs and times.
pub(super) fn groups(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    for (index, Group { name, report }) in comparison.groups.iter().enumerate() {
        let base = if index == 0 { "(baseline)" } else { "" };
        let logs = if report.logs.len() == 1 { "log" } else { "logs" };
        writeln!(
            out,
            "<p><strong>{}</strong>: {} {logs}, {}{base}</p>",
            escape(name),
            report.logs.len(),
            span(report)
        )?;
    }
    Ok(())
}

/// All channels that occur in two groups.
pub(super) fn sections(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    if comparison.differences.is_empty() {
        return writeln!(out, "<p class=\"notice\">No channel and stage is recorded in more than one group.</p>");
    }
    let mut channels: Vec<(ChannelId, String)> = Vec::new();
    for channel in comparison.groups.iter().flat_map(|group| &group.report.channels) {
        if !channels.iter().any(|(id, _)| *id == channel.id) {
            channels.push((channel.id, channel.title()));
        }
    }
    channels.sort();
    for (id, title) in channels {
        writeln!(out, "<section>\n<h2>{}</h2>", escape(&title.replacen("channel", "Channel", 1)))?;
        let mut shown_note = String::new();
        for (index, group) in comparison.groups.iter().enumerate().skip(1) {
            let differences: Vec<&Difference> = comparison
                .differences
                .iter()
                .filter(|difference| difference.channel == id && difference.group == index)
                .collect();
            let base = comparison.groups.first().map_or("", |base| base.name.as_str());
            let caption = format!("{} against {base}", group.name);
            changes(&caption, &differences, &mut shown_note, out)?;
        }
        overlays(comparison, id, out)?;
        for (index, group) in comparison.groups.iter().enumerate().skip(1) {
            let differences = comparison.differences.iter();
            full_table(&group.name, differences.filter(|found| found.channel == id && found.group == index), out)?;
        }
        writeln!(out, "</section>")?;
    }
    writeln!(out, "<p class=\"caption\">{}</p>", escape(SPREAD_NOTE))
}

/// Changes of each percentile, stage by stage. The reading note is printed only if it differs from `shown_note`, the
/// note printed last.
fn changes(caption: &str, differences: &[&Difference], shown_note: &mut String, out: &mut impl Write) -> fmt::Result {
    let Some(first) = differences.first() else { return Ok(()) };
    writeln!(
        out,
        "<p class=\"label\">{}</p>\n<div class=\"scroll\">\n<table>\n<thead><tr><th>stage</th>",
        escape(caption)
    )?;
    QUANTILES.iter().try_for_each(|(_, name)| write!(out, "<th>{name}</th>"))?;
    writeln!(out, "<th>max</th></tr></thead>\n<tbody>")?;
    for difference in differences {
        write!(out, "<tr><th scope=\"row\">{}</th>", stage_title(difference.stage))?;
        for change in &difference.changes {
            let share = change.share();
            let text = share.map_or_else(|| "–".to_owned(), |share| Share(share).to_string().replace('-', "−"));
            let is_slower = share.is_none_or(|share| share > 0.0);
            let (class, sign) = match (change.verdict, is_slower) {
                (ChangeVerdict::Exceeds, true) => ("slower", "▲ "),
                (ChangeVerdict::Exceeds, false) => ("faster", "▼ "),
                (ChangeVerdict::FewSamples, _) => ("unsure", "? "),
                (ChangeVerdict::Within | ChangeVerdict::Unjudged, _) => ("unsure", ""),
            };
            let note =
                format!("{} to {}: {}", latency(change.base_ns), latency(change.value_ns), change.verdict.text());
            write!(
                out,
                "<td class=\"{class}\" title=\"{}\">{sign}{}</td>",
                escape(&note),
                text.replace(' ', "\u{a0}")
            )?;
        }
        writeln!(out, "</tr>")?;
    }
    let samples = first.samples;
    let what = if samples.are_runs { "runs" } else { "parts of a run" };
    writeln!(out, "</tbody>\n</table>\n</div>")?;
    let reading = format!(
        "▲ slower, ▼ faster: outside the spread of {} and {} {what} (by chance in {:.1} % of cases). Grey: within \
         the spread, or not compared. ?: different, but too few runs.",
        samples.base_count,
        samples.count,
        samples.chance() * 100.0
    );
    if *shown_note == reading {
        return Ok(());
    }
    writeln!(out, "<p class=\"caption\">{reading}</p>")?;
    *shown_note = reading;
    Ok(())
}

/// Overlaid curves of all groups.
fn overlays(comparison: &Comparison, id: ChannelId, out: &mut impl Write) -> fmt::Result {
    let of_group = |group: &'_ Group| group.report.channels.iter().position(|channel| channel.id == id);
    let mut shown: Vec<(usize, &Group, &ChannelReport)> = comparison
        .groups
        .iter()
        .enumerate()
        .filter_map(|(index, group)| Some((index, group, group.report.channels.get(of_group(group)?)?)))
        .collect();
    let omitted = shown.len().saturating_sub(STYLE_COUNT);
    shown.truncate(STYLE_COUNT);
    for stage in [Stage::WireToWire, Stage::WireToUser] {
        let lines: Vec<_> = shown
            .iter()
            .filter_map(|(index, group, channel)| {
                let histogram = &channel.stage(stage)?.histogram;
                (!histogram.is_empty()).then(|| (group.name.clone(), *index, histogram))
            })
            .collect();
        if lines.len() > 1 {
            let caption = format!("{}, by percentile", stage_title(stage));
            figure(&caption, &charts::percentiles(stage_title(stage), &lines), out)?;
        }
    }
    let origins = origins(comparison);
    let lines: Vec<charts::OverlayLine<'_>> = shown
        .iter()
        .filter_map(|(index, group, channel)| {
            let stage = channel.stage(Stage::WireToWire)?;
            let (origin, points) = origins.of(group, stage);
            (!points.is_empty()).then_some((group.name.as_str(), *index, origin, points))
        })
        .collect();
    if lines.len() > 1 && lines.iter().any(|(.., points)| points.len() > 1) {
        let caption = format!("Wire to wire, 99th percentile, {}", origins.text());
        figure(&caption, &charts::overlay("Wire to wire", &lines), out)?;
    }
    if omitted > 0 {
        writeln!(
            out,
            "<p class=\"caption\">The charts show the first {STYLE_COUNT} groups; {omitted} more are in the tables.</p>"
        )?;
    }
    Ok(())
}

/// Common time axis of overlaid groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeOrigin {
    Midnight,
    Begin,
}

/// By time of day if a group has several days, or if every group overlaps the first one in time of day; else from the
/// begin of each group.
fn origins(comparison: &Comparison) -> TimeOrigin {
    let span = |group: &Group| {
        let begin = group.report.begin.0 % NS_PER_DAY;
        (begin, begin + (group.report.end.0 - group.report.begin.0))
    };
    let Some((first, others)) = comparison.groups.split_first() else { return TimeOrigin::Begin };
    let (begin, end) = span(first);
    let meets = |group: &Group| {
        let (other_begin, other_end) = span(group);
        other_begin < end && begin < other_end
    };
    let has_days = comparison.groups.iter().any(|group| group.report.has_days());
    if has_days || others.iter().all(meets) { TimeOrigin::Midnight } else { TimeOrigin::Begin }
}

impl TimeOrigin {
    /// Begin of a group's time axis and its timeline; several days are overlaid.
    fn of<'s>(self, group: &Group, stage: &'s StageReport) -> (UnixNs, &'s [TimelinePoint]) {
        match self {
            Self::Midnight if group.report.has_days() => (UnixNs(0), &stage.time_of_day),
            Self::Midnight => (UnixNs(group.report.begin.0 / NS_PER_DAY * NS_PER_DAY), &stage.timeline),
            Self::Begin => (group.report.begin, &stage.timeline),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Midnight => "by time of day (UTC)",
            Self::Begin => "from the start of each",
        }
    }
}

/// All values of a comparison with one group.
fn full_table<'d>(name: &str, differences: impl Iterator<Item = &'d Difference>, out: &mut impl Write) -> fmt::Result {
    let mut differences = differences.peekable();
    if differences.peek().is_none() {
        return Ok(());
    }
    writeln!(
        out,
        "<p class=\"label\">All values: {}</p>\n<div \
         class=\"scroll\">\n<table>\n<thead><tr><th>stage</th><th></th><th>baseline</th><th>value</th>\
         <th>change</th><th>baseline spread</th><th>spread</th><th>result</th></tr></thead>",
        escape(name)
    )?;
    for difference in differences {
        writeln!(out, "<tbody class=\"plain\">")?;
        for (index, change) in difference.changes.iter().enumerate() {
            let stage = if index == 0 { stage_title(difference.stage) } else { "" };
            let span = |(low, high)| format!("{} – {}", latency(low), latency(high));
            writeln!(
                out,
                "<tr><th scope=\"row\">{stage}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                change.name,
                latency(change.base_ns),
                latency(change.value_ns),
                change.share().map_or_else(|| "–".to_owned(), |share| Share(share).to_string().replace('-', "−")),
                span(change.base_spread_ns),
                span(change.spread_ns),
                verdict(change.verdict)
            )?;
        }
        writeln!(out, "</tbody>")?;
    }
    writeln!(out, "</table>\n</div>")
}

/// The result in one word; the note below the tables explains it.
fn verdict(verdict: ChangeVerdict) -> &'static str {
    match verdict {
        ChangeVerdict::Exceeds => "outside",
        ChangeVerdict::Within => "within",
        ChangeVerdict::FewSamples => "too few runs",
        ChangeVerdict::Unjudged => "–",
    }
}

/// Differences between the groups' disclosures: the first place to look for the cause of a change.
pub(super) fn disclosures(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    let disclosed: Vec<BTreeMap<&str, BTreeSet<&str>>> = comparison
        .groups
        .iter()
        .map(|group| {
            let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for (key, value) in group.report.disclosures.iter().flat_map(|source| &source.entries) {
                values.entry(key).or_default().insert(value);
            }
            values
        })
        .collect();
    let keys: BTreeSet<&str> = disclosed.iter().flat_map(|entries| entries.keys().copied()).collect();
    let differing: Vec<&str> = keys
        .into_iter()
        .filter(|key| disclosed.windows(2).any(|pair| matches!(pair, [one, other] if one.get(key) != other.get(key))))
        .collect();
    writeln!(out, "<section>\n<h2>Differences in environment and settings</h2>")?;
    if differing.is_empty() {
        return writeln!(out, "<p>None recorded: host, clocks, build and settings are the same.</p>\n</section>");
    }
    writeln!(out, "<div class=\"scroll\">\n<table class=\"facts\">\n<thead><tr><th></th>")?;
    comparison.groups.iter().try_for_each(|group| write!(out, "<th>{}</th>", escape(&group.name)))?;
    writeln!(out, "</tr></thead>\n<tbody>")?;
    for key in differing {
        write!(out, "<tr><th scope=\"row\">{}</th>", escape(key))?;
        for of_group in &disclosed {
            let values: Vec<String> = of_group.get(key).into_iter().flatten().map(|value| escape(value)).collect();
            let text = if values.is_empty() { "not recorded".to_owned() } else { values.join("<br>") };
            write!(out, "<td>{text}</td>")?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>\n</section>")
}
