//! The report as one self-contained HTML page: no scripts, fonts or images besides its own drawings.

mod channel;
mod charts;
mod compare;
mod week;

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
};

use mdgw_feeds::time::TradingDate;
use mdgw_status::quantity::Count;
use mdgw_telemetry::stages::Stage;

pub use self::week::write as write_week;
use super::{
    Comparison, LogDamage, Report,
    chart::{BandKind, Chart, STYLE_COUNT, escape},
    quantity::{Latency, QUANTILES, TimeOfDay, Timestamp},
};

/// Writes the page of one report.
///
/// # Errors
/// Errors of `out`.
pub fn write(report: &Report, out: &mut impl Write) -> fmt::Result {
    begin("Latency by stage", out)?;
    writeln!(out, "<p>{}</p>\n</header>", span(report))?;
    debug_build_notices([report], out)?;
    notices(report, out)?;
    if report.channels.len() > 1 {
        channel::all_channels(report, out)?;
    }
    for channel in &report.channels {
        channel::section(channel, report, out)?;
    }
    table(report, "Latencies", out)?;
    disclosure(report, "Measurement environment", out)?;
    writeln!(out, "</body>\n</html>")
}

/// Writes the page that compares groups with the first of them.
///
/// # Errors
/// Errors of `out`.
pub fn write_comparison(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    begin("Latency compared", out)?;
    compare::groups(comparison, out)?;
    writeln!(out, "</header>")?;
    debug_build_notices(comparison.groups.iter().map(|group| &group.report), out)?;
    comparison.groups.iter().try_for_each(|group| notices(&group.report, out))?;
    compare::sections(comparison, out)?;
    for group in &comparison.groups {
        table(&group.report, &format!("Values: {}", group.name), out)?;
    }
    compare::disclosures(comparison, out)?;
    for group in &comparison.groups {
        disclosure(&group.report, &format!("Measurement environment of {}", group.name), out)?;
    }
    writeln!(out, "</body>\n</html>")
}

fn begin(title: &str, out: &mut impl Write) -> fmt::Result {
    let style = include_str!("style.css");
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>mdgw latency</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>"
    )
}

/// Begin and end; the date only once if it is the same.
fn span(report: &Report) -> String {
    let begin = Timestamp(report.begin);
    if TradingDate::in_utc(report.begin) == TradingDate::in_utc(report.end) {
        format!("{begin} to {} UTC", TimeOfDay(report.end))
    } else {
        format!("{begin} to {} UTC", Timestamp(report.end))
    }
}

/// Warnings about builds whose latencies are not meaningful, each listed once.
fn debug_build_notices<'r>(reports: impl IntoIterator<Item = &'r Report>, out: &mut impl Write) -> fmt::Result {
    let disclosed = reports.into_iter().flat_map(|report| &report.disclosures).flat_map(|disclosed| &disclosed.entries);
    let builds: BTreeSet<&str> = disclosed
        .filter(|(key, build)| key == "build" && build.starts_with("debug"))
        .map(|(_, build)| &**build)
        .collect();
    builds.iter().try_for_each(|build| writeln!(out, "<p class=\"notice\">Build: {}</p>", escape(build)))
}

/// Warnings that a reader must see before any value.
fn notices(report: &Report, out: &mut impl Write) -> fmt::Result {
    if report.channels.is_empty() {
        writeln!(out, "<p class=\"notice\">Nothing was recorded.</p>")?;
    }
    damage_notice(&report.damage, out)
}

fn damage_notice(damage: &[LogDamage], out: &mut impl Write) -> fmt::Result {
    if damage.is_empty() {
        return Ok(());
    }
    writeln!(out, "<div class=\"notice\">{} damaged lines are skipped:<ul>", Count(damage.len() as u64))?;
    for damage in damage.iter().take(DAMAGE_SHOWN_MAX) {
        writeln!(out, "<li>{}</li>", escape(&damage.to_string()))?;
    }
    writeln!(out, "</ul></div>")
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
            "<li><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><line class=\"line s{style}\" x1=\"1\" \
             x2=\"25\" y1=\"4\" y2=\"4\"/></svg>{}</li>",
            escape(&series.name)
        )?;
    }
    for kind in [BandKind::Burst, BandKind::Pause, BandKind::Gap, BandKind::Takeover] {
        if chart.bands.iter().any(|band| band.kind == kind) {
            let class = kind.class();
            writeln!(
                out,
                "<li><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><rect class=\"{class}\" \
                 width=\"26\" height=\"8\"/></svg>{}</li>",
                kind.text()
            )?;
        }
    }
    writeln!(out, "</ul>\n</figure>")
}

fn table(report: &Report, title: &str, out: &mut impl Write) -> fmt::Result {
    if report.channels.is_empty() {
        return Ok(());
    }
    let title = escape(title);
    writeln!(out, "<section>\n<h2>{title}</h2>\n<div class=\"scroll\">\n<table>\n<thead><tr><th>stage</th>")?;
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
        "</table>\n</div>\n<p class=\"caption\">Claim wait: one value per claim. Other stages: one value per packet; \
         decode and book and later stages count only packets with new messages. Wire to user and wire to wire start \
         at the receive timestamp. Negative values (two clocks, or a clock step) are counted but excluded from \
         percentiles.</p>\n</section>"
    )
}

fn disclosure(report: &Report, title: &str, out: &mut impl Write) -> fmt::Result {
    for disclosed in &report.disclosures {
        writeln!(out, "<section>\n<h2>{}</h2>", escape(title))?;
        let logs: Vec<String> = disclosed.logs.iter().map(|log| escape(&log.display().to_string())).collect();
        writeln!(out, "<p class=\"caption\">{}</p>", logs.join("<br>"))?;
        let (settings, host): (Vec<_>, Vec<_>) =
            disclosed.entries.iter().partition(|(key, _)| key.starts_with(SETTING_PREFIX));
        if host.is_empty() {
            writeln!(
                out,
                "<p class=\"notice\">Not recorded in the log. Latencies without the measurement environment are not \
                 meaningful.</p>"
            )?;
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
            writeln!(out, "<details>\n<summary>Effective configuration ({} settings)</summary>", settings.len())?;
            rows(&settings, out)?;
            writeln!(out, "</details>")?;
        }
        writeln!(out, "</section>")?;
    }
    Ok(())
}

const SETTING_PREFIX: &str = "config.";
const DAMAGE_SHOWN_MAX: usize = 10;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{
        Group,
        summary::tests::{sample_report, two_day_report},
    };

    fn page(report: &Report) -> String {
        let mut text = String::new();
        write(report, &mut text).unwrap();
        text
    }

    fn comparison_page(names: &[&str]) -> String {
        let groups = names.iter().map(|name| Group { name: (*name).to_owned(), report: sample_report() });
        let mut text = String::new();
        write_comparison(&Comparison::of(groups.collect()), &mut text).unwrap();
        text
    }

    fn week_page() -> String {
        let mut text = String::new();
        write_week(&crate::report::week::tests::sample_week(), &mut text).unwrap();
        text
    }

    /// Checks all tags: each is closed in order, and its attributes are quoted.
    fn assert_parses(page: &str) {
        let mut open: Vec<&str> = Vec::new();
        let (_, mut rest) = page.split_once("<!doctype html>").expect("a doctype");
        while let Some((text, tag)) = rest.split_once('<') {
            let is_style = open.last() == Some(&"style");
            assert!(is_style || !text.contains('>'), "a stray > before <{}", &tag[..tag.len().min(60)]);
            let (tag, after) = tag.split_once('>').expect("a tag that ends");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            rest = after;
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "closed by </{name}>");
            } else if !tag.ends_with('/') && !["meta", "br"].contains(&name) {
                open.push(name);
            }
        }
        assert_eq!(open, [""; 0], "left open");
    }

    fn assert_asks_for_nothing(page: &str) {
        for forbidden in ["http:", "https:", "//", "src=", "href=", "@import", "url(", "<script", "NaN", "inf"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn pages_are_self_contained_script_free_and_well_formed() {
        for page in [page(&sample_report()), comparison_page(&["old", "new", "<b>newest</b>"])] {
            assert_asks_for_nothing(&page);
            assert_parses(&page);
            assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "content of a log is escaped");
        }
        assert_asks_for_nothing(&week_page());
        assert_parses(&week_page());
    }

    #[test]
    #[should_panic(expected = "closed by </p>")]
    fn a_page_with_tags_out_of_order_does_not_parse() {
        assert_parses("<!doctype html><p><b>x</p></b>");
    }

    #[test]
    fn the_page_shows_curves_timeline_table_and_disclosure() {
        let page = page(&sample_report());
        for expected in [
            "All channels",
            "Channel 1 nasdaq",
            "Stages, by percentile",
            "Wire to wire, over time",
            "Rate, over time",
            "<table>",
            "kernel software",
            "clock source",
            "Effective configuration",
            "debug",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
    }

    #[test]
    fn a_comparison_page_shows_changes_overlays_and_differing_settings() {
        let page = comparison_page(&["yesterday", "today"]);
        for expected in [
            "yesterday</strong>: 2 logs",
            "today against yesterday",
            "+0.0\u{a0}%",
            "Wire to wire, by percentile",
            "by time of day (UTC)",
            "within the spread",
            "Spread: from the lowest",
            "host, clocks, build and settings are the same",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
        assert_eq!(page.matches("<p class=\"notice\">Build: debug").count(), 1, "printed once for all groups");
    }

    #[test]
    fn the_reading_note_is_shown_once_and_omitted_groups_are_counted() {
        let page = comparison_page(&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
        let channels = page.matches("<h2>Channel ").count();
        assert_eq!(page.matches("against 0</p>").count(), 9 * channels);
        assert_eq!(page.matches("▲ slower").count(), channels);
        assert_eq!(page.matches("the first 8 groups; 2 more are in the tables").count(), channels);
        assert_parses(&page);
    }

    #[test]
    fn the_page_of_a_week_has_a_row_for_each_day_and_the_takeovers() {
        let page = week_page();
        for expected in [
            "<p>2019-01-28 to 2019-01-30, days in UTC; latencies are wire to wire</p>",
            "<h2>Channel 1</h2>",
            "<tr><th scope=\"row\">Mon 2019-01-28</th><td>1,000</td><td>100</td><td>0</td>",
            "<td>5.00\u{a0}µs</td>",
            "<tr><th scope=\"row\">Tue 2019-01-29</th><td class=\"text\" colspan=\"13\">no log</td></tr>",
            "<tr><th scope=\"row\">all</th><td>2,000</td>",
            "<td>1.20\u{a0}ms</td><td>4</td><td class=\"text\">process &lt;b&gt;died</td></tr>",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }

    #[test]
    fn days_are_overlaid_in_charts() {
        let page = page(&two_day_report());
        assert!(page.contains("of each day, by time of day (UTC)") && page.contains("</svg>2019-01-31</li>"), "{page}");
        let groups = ["old", "new"].map(|name| Group { name: name.to_owned(), report: two_day_report() });
        let mut text = String::new();
        write_comparison(&Comparison::of(groups.into()), &mut text).unwrap();
        assert!(text.contains("99th percentile, by time of day (UTC)"));
        assert_parses(&text);
    }

    #[test]
    fn an_empty_report_page_states_that_nothing_was_recorded() {
        assert!(page(&Report::of(&[], None)).contains("Nothing was recorded"));
    }
}
