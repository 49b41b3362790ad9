//! The report as CSV, one value per row, for spreadsheets and data frames. Times are nanoseconds.

use std::fmt::{self, Write};

use super::{
    ChannelCounts, ChannelReport, Comparison, GapCounts, Report,
    gaps::GapNotes,
    week::{DayValues, TakeoverCosts, Week, WeekChannel},
};

/// Columns. `item` is a stage; in the tables of lines it is a line. `from` and `until` are nanoseconds since 1970 in
/// the tables `timeline`, `gaps`, `standby_gaps` and `lead_by_time` (in `lead_by_time` since midnight UTC if the report has several
/// days). In the table `load` they are rates per second.
pub const HEADER: &str = "group,table,channel,name,item,from,until,statistic,value";

/// Writes one report; `group` is the first column.
///
/// # Errors
/// Errors of `out`.
pub fn write(group: &str, report: &Report, out: &mut impl Write) -> fmt::Result {
    for channel in &report.channels {
        counts(group, channel, out)?;
        for stage in &channel.stages {
            let name = channel.name.as_deref().unwrap_or_default();
            let mut row = |table: &str, span: Option<(u64, u64)>, statistic: &str, value: &dyn fmt::Display| {
                let cells = (field(group), channel.id.0, field(name), stage.stage.name());
                write!(out, "{},{table},{},{},{},", cells.0, cells.1, cells.2, cells.3)?;
                match span {
                    Some((from, until)) => write!(out, "{from},{until},")?,
                    None => write!(out, ",,")?,
                }
                writeln!(out, "{statistic},{value}")
            };
            let statistics = super::LatencyStatistics::of(&stage.histogram);
            row("latency", None, "count", &statistics.count)?;
            for (statistic, value_ns) in statistics.named() {
                row("latency", None, &format!("{statistic}_ns"), &value_ns)?;
            }
            row("latency", None, "negative_count", &stage.negative_count)?;
            for point in &stage.timeline {
                let span = Some((point.start.0, point.end.0));
                row("timeline", span, "count", &point.count)?;
                row("timeline", span, "p50_ns", &point.p50_ns)?;
                row("timeline", span, "p99_ns", &point.p99_ns)?;
                row("timeline", span, "max_ns", &point.max_ns)?;
                row("timeline", span, "per_s_max", &format_args!("{:.1}", point.per_s_max))?;
                row("timeline", span, "is_burst", &u8::from(point.is_burst))?;
            }
            for bucket in &stage.load {
                let span = Some((bucket.from_per_s, bucket.until_per_s));
                row("load", span, "intervals", &bucket.intervals)?;
                row("load", span, "count", &bucket.statistics.count)?;
                for (statistic, value_ns) in bucket.statistics.named() {
                    row("load", span, &format!("{statistic}_ns"), &value_ns)?;
                }
            }
        }
    }
    Ok(())
}

/// Counts of the channel and its lines (tables `channel` and `lines`), leads by time (`lead_by_time`), gaps that consumers saw
/// (`gaps`), and those that a standby alone declared (`standby_gaps`).
fn counts(group: &str, channel: &ChannelReport, out: &mut impl Write) -> fmt::Result {
    let ChannelCounts { datagrams, messages, gaps, gap_messages, drops } = channel.counted;
    let begin = |table: &str| {
        let name = field(channel.name.as_deref().unwrap_or_default());
        format!("{},{table},{},{name}", field(group), channel.id.0)
    };
    let counted = [("datagrams", datagrams), ("messages", messages), ("gaps", gaps), ("gap_messages", gap_messages)];
    if messages > 0 || !channel.lines.is_empty() {
        for (statistic, value) in counted.into_iter().chain([("drops", drops)]) {
            writeln!(out, "{},,,,{statistic},{value}", begin("channel"))?;
        }
    }
    for (table, gaps) in [("gaps", &channel.gaps.seen), ("standby_gaps", &channel.gaps.of_standby)] {
        for gap in gaps {
            for (statistic, value) in [("gaps", gap.counts.gaps), ("messages", gap.counts.messages)] {
                writeln!(out, "{},,{},{},{statistic},{value}", begin(table), gap.start.0, gap.end.0)?;
            }
        }
    }
    for (statistic, value) in gap_rows(channel.gaps.leader_unknown, "leader_unknown") {
        writeln!(out, "{},,,,{statistic},{value}", begin("channel"))?;
    }
    for line in &channel.lines {
        let item = format!("{},{}", begin("lines"), line.line);
        for (statistic, value) in [
            ("packets", line.packets),
            ("won_messages", line.won_messages),
            ("duplicate_messages", line.duplicate_messages),
            ("late_messages", line.late_messages),
            ("lead_count", line.lead.count),
        ] {
            writeln!(out, "{item},,,{statistic},{value}")?;
        }
        for (statistic, value_ns) in line.lead.named() {
            writeln!(out, "{item},,,lead_{statistic}_ns,{value_ns}")?;
        }
        for slice in &line.slices {
            let item = format!("{},{},{},{}", begin("lead_by_time"), line.line, slice.start.0, slice.end.0);
            writeln!(out, "{item},lead_count,{}", slice.lead.count)?;
            for (statistic, value_ns) in slice.lead.named() {
                writeln!(out, "{item},lead_{statistic}_ns,{value_ns}")?;
            }
        }
    }
    Ok(())
}

/// Rows for gaps of that kind; none where there are none.
fn gap_rows(counts: GapCounts, kind: &str) -> Vec<(String, u64)> {
    let rows = [(format!("{kind}_gaps"), counts.gaps), (format!("{kind}_gap_messages"), counts.messages)];
    rows.into_iter().filter(|_| !counts.is_none()).collect()
}

/// Writes all groups of a comparison, and the changes against the first group (table `difference`).
///
/// # Errors
/// Errors of `out`.
pub fn write_comparison(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    for group in &comparison.groups {
        write(&group.name, &group.report, out)?;
    }
    for difference in &comparison.differences {
        let group = comparison.groups.get(difference.group).map_or("", |group| group.name.as_str());
        for change in &difference.changes {
            let begin = format!(
                "{},difference,{},{},{},,",
                field(group),
                difference.channel.0,
                field(difference.name.as_deref().unwrap_or_default()),
                difference.stage.name()
            );
            let name = change.name;
            if let Some(share) = change.share() {
                writeln!(out, "{begin},{name}_change,{share:.6}")?;
            }
            for (statistic, value_ns) in [
                ("base_low_ns", change.base_spread_ns.0),
                ("base_high_ns", change.base_spread_ns.1),
                ("low_ns", change.spread_ns.0),
                ("high_ns", change.spread_ns.1),
            ] {
                writeln!(out, "{begin},{name}_{statistic},{value_ns}")?;
            }
            writeln!(out, "{begin},{name}_verdict,{}", change.verdict.name())?;
        }
    }
    Ok(())
}

/// Writes a week (table `week`). A day is a group, named by its date; the sum of all days is the group `all`.
///
/// # Errors
/// Errors of `out`.
pub fn write_week(week: &Week, out: &mut impl Write) -> fmt::Result {
    for channel in &week.channels {
        for (day, values) in week.days.iter().zip(&channel.days) {
            let Some(values) = values else { continue };
            day_values(&day.date.to_string(), channel, values, out)?;
        }
        day_values("all", channel, &channel.week, out)?;
    }
    Ok(())
}

fn day_values(group: &str, channel: &WeekChannel, values: &DayValues, out: &mut impl Write) -> fmt::Result {
    let begin = format!("{group},week,{},{}", channel.id.0, field(channel.name.as_deref().unwrap_or_default()));
    let ChannelCounts { datagrams, messages, gaps, gap_messages, drops } = values.counted;
    let counted = [("datagrams", datagrams), ("messages", messages), ("gaps", gaps), ("gap_messages", gap_messages)];
    for (statistic, value) in counted.into_iter().chain([("drops", drops)]) {
        writeln!(out, "{begin},,,,{statistic},{value}")?;
    }
    let GapNotes { of_standby, leader_unknown } = values.gap_notes;
    let of_gaps = [(of_standby, "standby"), (leader_unknown, "leader_unknown")];
    for (statistic, value) in of_gaps.into_iter().flat_map(|(counts, kind)| gap_rows(counts, kind)) {
        writeln!(out, "{begin},,,,{statistic},{value}")?;
    }
    if let Some(TakeoverCosts { count, blackout_max_ns, blackout_sum_ns }) = values.takeovers {
        let costs = [("blackout_max_ns", blackout_max_ns), ("blackout_sum_ns", blackout_sum_ns)];
        let known = costs.into_iter().filter_map(|(statistic, ns)| Some((statistic, ns?)));
        for (statistic, value) in [("takeovers", count)].into_iter().chain(known) {
            writeln!(out, "{begin},,,,{statistic},{value}")?;
        }
    }
    writeln!(out, "{begin},,,,per_s_max,{:.1}", values.per_s_max)?;
    writeln!(out, "{begin},wire_to_wire,,,count,{}", values.latency.count)?;
    for (statistic, value_ns) in values.latency.named() {
        writeln!(out, "{begin},wire_to_wire,,,{statistic}_ns,{value_ns}")?;
    }
    if let Some((start, p99_ns)) = values.slowest {
        writeln!(out, "{begin},wire_to_wire,{},,slowest_p99_ns,{p99_ns}", start.0)?;
    }
    Ok(())
}

/// Quotes a value if necessary.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Group, summary::tests::sample_report};

    #[test]
    fn every_row_has_all_columns_and_named_statistics() {
        let groups = ["old", "new, better"].map(|name| Group { name: name.to_owned(), report: sample_report() }).into();
        let comparison = Comparison::of(groups);
        let mut text = String::new();
        write_comparison(&comparison, &mut text).unwrap();
        let columns = HEADER.split(',').count();
        for line in text.lines() {
            let quoted = line.replace("\"new, better\"", "new");
            assert_eq!(quoted.split(',').count(), columns, "{line}");
        }
        assert!(text.contains("\nold,latency,1,nasdaq,wire_to_wire,,,count,20000\n"), "{}", &text[..2_000]);
        for table in ["timeline", "load"] {
            assert!(text.contains(&format!("\n\"new, better\",{table},2,iex-deep,publish,")), "{table}");
        }
        assert!(text.contains("\n\"new, better\",difference,1,nasdaq,wire_to_wire,,,p50_verdict,within_spread\n"));
        assert!(text.contains(",p50_change,0.000000\n"));
    }

    #[test]
    fn a_week_has_the_rows_of_each_day_and_their_sum() {
        let mut text = String::new();
        write_week(&crate::report::week::tests::sample_week(), &mut text).unwrap();
        let columns = HEADER.split(',').count();
        assert!(text.lines().all(|line| line.split(',').count() == columns), "{text}");
        for row in [
            "2019-01-28,week,1,,,,,messages,1000",
            "2019-01-30,week,1,,,,,takeovers,1",
            "2019-01-30,week,1,,wire_to_wire,,,p99_ns,90047",
            "2019-01-30,week,1,,wire_to_wire,1548858605000000000,,slowest_p99_ns,90047",
            "all,week,1,,,,,messages,2000",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        assert!(!text.contains("2019-01-29"), "a day without a log has no row");
    }
}
