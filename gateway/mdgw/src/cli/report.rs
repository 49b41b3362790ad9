//! `mdgw report`: latency logs as table, HTML page, percentile distributions, CSV or JSON; comparison of groups of logs.

use std::{fmt, fs, path::PathBuf};

use anyhow::{Context as _, bail};
use mdgw_feeds::{identity::ChannelId, time::UnixNs};
use mdgw_tools::report::{
    Comparison, Group, Report, csv,
    grouping::{self, CompareBy, LogArgument},
    hgrm, html, json, table,
};

use super::{Outcome, print, warn};

/// Report latency logs, or compare groups of logs.
///
/// Groups are runs, hosts or days: either named (NAME=LOG, the name may be repeated), or formed by --compare. The first
/// group is the baseline.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdgw report /var/log/mdgw/*.hlog --html latency.html
  mdgw report old='/var/log/mdgw/*0129T*' new='/var/log/mdgw/*0130T*' --html difference.html
  mdgw report /var/log/mdgw --compare day --csv > latency.csv")]
pub(super) struct Args {
    /// Interval logs (`*.hlog`), or directories of them; NAME=LOG assigns them to a group.
    #[arg(required = true, value_name = "[NAME=]LOG")]
    logs: Vec<LogArgument>,
    /// Group the logs by this property and compare each group with the first.
    #[arg(long, value_enum, value_name = "WHAT")]
    compare: Option<Compare>,
    /// Write one self-contained HTML page with curves and timelines.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a percentile distribution (.hgrm) per channel and stage; one directory per group.
    #[arg(long, value_name = "DIRECTORY")]
    hgrm: Option<PathBuf>,
    /// Print one line of JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Print CSV instead of the table, one value per row.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Only this channel, by number.
    #[arg(long, value_name = "NUMBER")]
    channel: Option<u16>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Compare {
    /// Each log is a group.
    Log,
    /// One group for each host.
    Host,
    /// One group for each day (UTC) on which logs begin.
    Day,
}

impl From<Compare> for CompareBy {
    fn from(compare: Compare) -> Self {
        match compare {
            Compare::Log => Self::Log,
            Compare::Host => Self::Host,
            Compare::Day => Self::Day,
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut groups = Vec::new();
    for named in grouping::groups(&args.logs, args.compare.map(CompareBy::from))? {
        let mut files = Vec::new();
        for path in named.logs {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            files.push((path, bytes));
        }
        let report = Report::of(&files, args.channel.map(ChannelId));
        report.damage.iter().take(DAMAGE_SHOWN_MAX).for_each(|damage| warn(&damage.to_string()));
        if report.end == UnixNs(0) {
            // Without an interval the report has no time span.
            let channel = args.channel.map_or_else(String::new, |channel| format!(" of channel {channel}"));
            let logs: Vec<String> = report.logs.iter().map(|path| path.display().to_string()).collect();
            bail!("report: no interval{channel} in {}", logs.join(", "));
        }
        groups.push(Group { name: named.name, report });
    }
    let damage_count: usize = groups.iter().map(|group| group.report.damage.len()).sum();
    match groups.len() {
        1 => groups.iter().try_for_each(|group| show(args, group))?,
        _ => show_comparison(args, &Comparison::of(groups))?,
    }
    if damage_count > 0 {
        let lines = if damage_count == 1 { "line" } else { "lines" };
        bail!("report: {damage_count} damaged {lines} skipped");
    }
    Ok(Outcome::Done)
}

fn show(args: &Args, Group { name, report }: &Group) -> anyhow::Result<()> {
    let mut text = String::new();
    if args.json {
        text = format!("{}\n", json::value(report));
    } else if args.csv {
        text = format!("{}\n", csv::HEADER);
        csv::write(name, report, &mut text)?;
    } else {
        table::write(report, &mut text)?;
    }
    // Files first: printing may end early on a closed pipe.
    write_page(args, |page| html::write(report, page))?;
    if let Some(directory) = &args.hgrm {
        hgrm::write_all(report, directory).with_context(|| format!("write to {}", directory.display()))?;
    }
    print(&text)
}

fn show_comparison(args: &Args, comparison: &Comparison) -> anyhow::Result<()> {
    let mut text = String::new();
    if args.json {
        text = format!("{}\n", json::comparison(comparison));
    } else if args.csv {
        text = format!("{}\n", csv::HEADER);
        csv::write_comparison(comparison, &mut text)?;
    } else {
        table::write_comparison(comparison, &mut text)?;
    }
    write_page(args, |page| html::write_comparison(comparison, page))?;
    for Group { name, report } in &comparison.groups {
        let Some(directory) = &args.hgrm else { break };
        // A host name comes from a log; a slash in it could lead outside the directory.
        let directory = directory.join(format!("group-{}", name.replace('/', "_")));
        hgrm::write_all(report, &directory).with_context(|| format!("write to {}", directory.display()))?;
    }
    print(&text)
}

fn write_page(args: &Args, write: impl FnOnce(&mut String) -> fmt::Result) -> anyhow::Result<()> {
    let Some(path) = &args.html else { return Ok(()) };
    let mut page = String::new();
    write(&mut page)?;
    fs::write(path, page).with_context(|| format!("write {}", path.display()))
}

const DAMAGE_SHOWN_MAX: usize = 10;
