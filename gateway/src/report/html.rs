//! The report as one HTML page that asks for nothing else: no scripts, no fonts, no images but its own drawings.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;
use mdgw_feeds::time::UnixNs;

use super::{
    ChannelReport, Report, StageReport,
    chart::{Axis, Chart, STYLE_COUNT, Series, escape},
    quantity::{Count, Latency, QUANTILES, TimeOfDay, Timestamp},
};
use crate::observe::stages::Stage;

/// Writes the page.
///
/// # Errors
/// What `out` says.
pub fn write(report: &Report, out: &mut impl Write) -> fmt::Result {
    let style = include_str!("style.css");
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>mdgw latency</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<header>\n<h1>Latency by stage</h1>"
    )?;
    writeln!(out, "<p>{} to {} UTC</p>\n</header>", Timestamp(report.begin), TimeOfDay(report.end))?;
    notices(report, out)?;
    if report.channels.len() > 1 {
        comparison(report, out)?;
    }
    for channel in &report.channels {
        section(channel, report, out)?;
    }
    table(report, out)?;
    disclosure(report, out)?;
    writeln!(out, "</body>\n</html>")
}

/// What a reader must know before any figure.
fn notices(report: &Report, out: &mut impl Write) -> fmt::Result {
    let build = report.disclosures.iter().flat_map(|disclosed| &disclosed.entries).find(|(key, _)| key == "build");
    if let Some((_, build)) = build.filter(|(_, build)| build.starts_with("debug")) {
        writeln!(out, "<p class=\"notice\">Build: {}</p>", escape(build))?;
    }
    if report.channels.is_empty() {
        writeln!(out, "<p class=\"notice\">Nothing was recorded.</p>")?;
    }
    if !report.damage.is_empty() {
        writeln!(out, "<div class=\"notice\">{} damaged lines are left out:<ul>", Count(report.damage.len() as u64))?;
        for damage in report.damage.iter().take(DAMAGE_SHOWN_MAX) {
            writeln!(out, "<li>{}</li>", escape(&damage.to_string()))?;
        }
        writeln!(out, "</ul></div>")?;
    }
    Ok(())
}

/// The whole way, channel against channel: those with the slowest tails, if there are many.
fn comparison(report: &Report, out: &mut impl Write) -> fmt::Result {
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

fn section(channel: &ChannelReport, report: &Report, out: &mut impl Write) -> fmt::Result {
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
        let caption = format!("{}, over time (UTC)", stage_title(stage.stage));
        figure(&caption, &timeline(stage, report), out)?;
    }
    writeln!(out, "</section>")
}

fn tile(name: &str, value: &str, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>")
}

fn figure(caption: &str, chart: &Chart, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "<figure>\n<figcaption>{}</figcaption>\n{}<ul class=\"legend\">", escape(caption), chart.svg())?;
    for series in &chart.series {
        let style = series.style % STYLE_COUNT;
        writeln!(
            out,
            "<li><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><line class=\"line s{style}\" x1=\"1\" x2=\"25\" y1=\"4\" y2=\"4\"/></svg>{}</li>",
            escape(&series.name)
        )?;
    }
    writeln!(out, "</ul>\n</figure>")
}

/// Curves over the percentile axis: each step to the right is ten times fewer values.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a drawing"
)]
fn percentiles(label: &str, lines: &[(String, usize, &Histogram<u64>)]) -> Chart {
    let count_max = lines.iter().map(|(_, _, histogram)| histogram.len()).max().unwrap_or(1);
    let nines_max = (count_max as f64).log10().clamp(1.0, 6.0);
    let tick = |(position, text): (f64, &str)| (position, text.to_owned());
    let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
    let ticks = (0..).zip(names).map(|(nines, name)| tick((f64::from(nines), name)));
    let series: Vec<Series> = lines
        .iter()
        .map(|(name, style, histogram)| {
            let end = (histogram.len().max(1) as f64).log10().min(nines_max);
            let steps = (end / NINES_STEP).ceil() as usize;
            let point = |nines: f64| (nines, position(histogram.value_at_quantile(1.0 - 10_f64.powf(-nines))));
            let mut points: Vec<(f64, f64)> = (0..steps).map(|step| point(step as f64 * NINES_STEP)).collect();
            points.push((end, position(histogram.max())));
            Series { name: name.clone(), style: *style, points, notes: Vec::new() }
        })
        .collect();
    let (min, max) = lines.iter().fold((u64::MAX, 0), |(min, max), (_, _, histogram)| {
        (min.min(histogram.value_at_quantile(0.0)), max.max(histogram.max()))
    });
    Chart {
        label: format!("{label}: latency by percentile"),
        x: Axis { min: 0.0, max: nines_max, ticks: ticks.filter(|(position, _)| *position <= nines_max).collect() },
        y: Axis::latency(min.min(max), max, latency_tick),
        series,
    }
}

#[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
fn timeline(stage: &StageReport, report: &Report) -> Chart {
    let moments = &stage.timeline;
    let at = |moment: &super::Moment| (moment.start.0 - report.begin.0) as f64;
    let span_ns = moments.last().map_or(1, |last| last.start.0 - report.begin.0).max(1);
    let series = |name: &str, style: usize, pick: fn(&super::Moment) -> u64| Series {
        name: name.to_owned(),
        style,
        points: moments.iter().map(|moment| (at(moment), position(pick(moment)))).collect(),
        notes: moments
            .iter()
            .map(|moment| {
                let (time, value) = (TimeOfDay(moment.start), latency(pick(moment)));
                format!("{time} {name} {value}, {} packets", Count(moment.count))
            })
            .collect(),
    };
    let low = moments.iter().map(|moment| moment.p50_ns).min().unwrap_or(1);
    let high = moments.iter().map(|moment| moment.max_ns).max().unwrap_or(1);
    Chart {
        label: format!("{}: median, 99th percentile and maximum over time", stage_title(stage.stage)),
        x: Axis { min: 0.0, max: span_ns as f64, ticks: time_ticks(report.begin, span_ns) },
        y: Axis::latency(low, high, latency_tick),
        series: vec![
            series("max", 3, |moment| moment.max_ns),
            series("p99", 1, |moment| moment.p99_ns),
            series("p50", 5, |moment| moment.p50_ns),
        ],
    }
}

/// Round times of day, at most seven of them.
#[allow(clippy::cast_precision_loss, reason = "positions in a drawing")]
fn time_ticks(begin: UnixNs, span_ns: u64) -> Vec<(f64, String)> {
    const STEPS_S: [u64; 16] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 86_400];
    let fits = STEPS_S.into_iter().find(|step| span_ns / (step * NS_PER_SECOND) < 7);
    let step_ns = fits.unwrap_or(span_ns / NS_PER_SECOND / 6 + 1) * NS_PER_SECOND;
    let first = begin.0.div_ceil(step_ns) * step_ns;
    let times = (0..8).map(|index| first + index * step_ns);
    times
        .take_while(|time| *time <= begin.0 + span_ns)
        .map(|time| ((time - begin.0) as f64, TimeOfDay(UnixNs(time)).to_string()))
        .collect()
}

fn table(report: &Report, out: &mut impl Write) -> fmt::Result {
    if report.channels.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section>\n<h2>Figures</h2>\n<div class=\"scroll\">\n<table>\n<thead><tr><th>stage</th>")?;
    QUANTILES.iter().try_for_each(|(_, name)| write!(out, "<th>{name}</th>"))?;
    writeln!(out, "<th>max</th><th>count</th><th>negative</th></tr></thead>")?;
    for channel in &report.channels {
        let columns = QUANTILES.len() + 4;
        writeln!(
            out,
            "<tbody>\n<tr><th colspan=\"{columns}\" scope=\"rowgroup\">{}</th></tr>",
            escape(&channel.title())
        )?;
        for stage in &channel.stages {
            let histogram = &stage.histogram;
            write!(out, "<tr><th scope=\"row\">{}</th>", stage_title(stage.stage))?;
            for (quantile, _) in QUANTILES {
                write!(out, "<td>{}</td>", latency(histogram.value_at_quantile(quantile)))?;
            }
            let (max, count) = (latency(histogram.max()), Count(histogram.len()));
            writeln!(out, "<td>{max}</td><td>{count}</td><td>{}</td></tr>", Count(stage.negative_count))?;
        }
        writeln!(out, "</tbody>")?;
    }
    writeln!(
        out,
        "</table>\n</div>\n<p class=\"caption\">Claim wait: one value for each claim. All others: one for each packet; from decode \
         and book on only packets that brought something new, wire to user and wire to wire from the receive stamp. \
         Negative values (two clocks, a step of one) are counted and in no percentile.</p>\n</section>"
    )
}

fn disclosure(report: &Report, out: &mut impl Write) -> fmt::Result {
    for disclosed in &report.disclosures {
        writeln!(out, "<section>\n<h2>Where this was measured</h2>")?;
        let logs: Vec<String> = disclosed.logs.iter().map(|log| escape(&log.display().to_string())).collect();
        writeln!(out, "<p class=\"caption\">{}</p>", logs.join("<br>"))?;
        let (settings, host): (Vec<_>, Vec<_>) =
            disclosed.entries.iter().partition(|(key, _)| key.starts_with(SETTING_PREFIX));
        if host.is_empty() {
            writeln!(out, "<p class=\"notice\">The log doesn't say. Figures without it mean nothing.</p>")?;
        }
        let rows = |entries: &[&(String, String)], out: &mut dyn Write| -> fmt::Result {
            writeln!(out, "<table class=\"facts\">")?;
            for (key, value) in entries {
                let key = key.strip_prefix(SETTING_PREFIX).unwrap_or(key);
                writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(key), escape(value))?;
            }
            writeln!(out, "</table>")
        };
        rows(&host, out)?;
        if !settings.is_empty() {
            writeln!(out, "<details>\n<summary>Configuration in force ({} settings)</summary>", settings.len())?;
            rows(&settings, out)?;
            writeln!(out, "</details>")?;
        }
        writeln!(out, "</section>")?;
    }
    Ok(())
}

const SETTING_PREFIX: &str = "config.";
const DAMAGE_SHOWN_MAX: usize = 10;
/// Points of a percentile curve, per ten times fewer values.
const NINES_STEP: f64 = 0.02;
const NS_PER_SECOND: u64 = 1_000_000_000;

fn stage_title(stage: Stage) -> &'static str {
    match stage {
        Stage::WireToUser => "Wire to user",
        Stage::ClaimWait => "Claim wait",
        Stage::Arbitrate => "Arbitrate",
        Stage::DecodeAndBook => "Decode and book",
        Stage::Publish => "Publish",
        Stage::WireToWire => "Wire to wire",
    }
}

fn latency(ns: u64) -> String {
    Latency(ns).to_string().replace("us", "µs").replace(' ', "\u{a0}")
}

/// A decade step, without decimals.
fn latency_tick(ns: u64) -> String {
    match ns {
        ..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a position in a drawing")]
fn position(ns: u64) -> f64 {
    (ns.max(1) as f64).log10()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::plausible_report;

    fn page(report: &Report) -> String {
        let mut text = String::new();
        write(report, &mut text).unwrap();
        text
    }

    #[test]
    fn the_page_asks_for_nothing_and_runs_nothing() {
        let page = page(&plausible_report());
        for forbidden in ["http:", "https:", "src=", "href=", "@import", "url(", "<script", "NaN", "inf"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "what a log says is text");
    }

    #[test]
    fn the_page_shows_curves_timeline_table_and_disclosure() {
        let page = page(&plausible_report());
        for expected in [
            "All channels",
            "Channel 1 nasdaq",
            "Stages, by percentile",
            "Wire to wire, over time",
            "<table>",
            "kernel software",
            "clock source",
            "Configuration in force",
            "debug",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
        for tag in ["svg", "section", "figure", "table", "div", "ul", "details", "dl"] {
            let count = |text: &str| page.matches(text).count();
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
    }

    #[test]
    fn an_empty_report_is_a_page_that_says_so() {
        assert!(page(&Report::of(&[], None)).contains("Nothing was recorded"));
    }

    #[test]
    fn time_ticks_are_round_and_few() {
        let begin = UnixNs(1_548_858_603_500_000_000);
        for seconds in [1, 7, 20, 600, 4_000, 86_400, 5_000_000] {
            let ticks = time_ticks(begin, seconds * NS_PER_SECOND);
            assert!(ticks.len() <= 8, "{seconds}: {ticks:?}");
        }
        assert_eq!(time_ticks(begin, 20 * NS_PER_SECOND)[0].1, "14:30:05");
    }
}
