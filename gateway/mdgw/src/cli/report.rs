//! `mdgw report`: latency logs as table, HTML page, percentile distributions, CSV or JSON; comparison of groups of logs.

use std::{collections::BTreeSet, fmt, fs, path::PathBuf};

use anyhow::{Context as _, bail};
use mdgw_feeds::{
    identity::ChannelId,
    time::{TradingDate, UnixNs},
};
use mdgw_sys::clock::unix_now;
use mdgw_tools::report::{
    Comparison, Group, Leadership, LogDamage, Report, csv,
    grouping::{self, CompareBy, LogArgument, NamedLogs},
    hgrm, html, json, table,
    takeovers::{self, Takeover},
    week::{DAYS, Week},
};

use super::{Outcome, print, warn};

/// Report latency logs, or compare groups of logs.
///
/// Groups are runs, hosts or days: either named (NAME=LOG, the name may be repeated), or formed by --compare. The first
/// group is the baseline. Without groups, logs of both gateways of a pair are one day: each message counts once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdgw report /var/log/mdgw/*.hlog --html latency.html
  mdgw report old='/var/log/mdgw/*0129T*' new='/var/log/mdgw/*0130T*' --html difference.html
  mdgw report /var/log/mdgw --compare day --csv > latency.csv
  mdgw report gw1/*.hlog gw2/*.hlog --audit gw1/audit --audit gw2/audit --html day.html
  mdgw report /var/log/mdgw --week --audit /var/lib/mdgw/audit --html week.html")]
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
    /// Print a row for each day and channel: the last seven days (UTC) up to the last log.
    #[arg(long, conflicts_with_all = ["compare", "hgrm"])]
    week: bool,
    /// Last day of the week (YYYY-MM-DD). Without it logs that begin after today are skipped: their clock was wrong.
    #[arg(long, value_name = "DATE", requires = "week")]
    until: Option<TradingDate>,
    /// Audit file of a gateway (`gateway.audit_file`); repeat it for the other gateways of the pair. Its takeovers
    /// are listed, and marked in the page's timelines. It also says whose declared gaps consumers saw.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    audit: Vec<PathBuf>,
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
    let Audit { takeovers, leadership, damage_count } = read_audit(&args.audit)?;
    let mut skipped = Skipped { lines: damage_count, logs: 0 };
    if args.week {
        let takeovers = (!args.audit.is_empty()).then_some(takeovers.as_slice());
        return week(args, takeovers, &leadership, skipped);
    }
    let mut groups = Vec::new();
    let mut problems = Vec::new();
    let mut unreadable = Vec::new();
    let found = grouping::groups(&args.logs, args.compare.map(CompareBy::from), &mut unreadable)?;
    skipped.add_logs(&unreadable);
    for named in found {
        let mut report = read_report(&named, args, &leadership)?;
        if let Some(foreign) = report.foreign_channel() {
            bail!("report: {foreign}");
        }
        if report.end == UnixNs(0) {
            // Without an interval the report has no time span.
            let channel = args.channel.map_or_else(String::new, |channel| format!(" of channel {channel}"));
            let logs: Vec<String> = report.logs.iter().map(|path| path.display().to_string()).collect();
            let problem = format!("no interval{channel} in {}", logs.join(", "));
            // Logs that nobody named may be those of a crash or of a full disk.
            if args.compare.is_none() {
                bail!("report: {problem}");
            }
            problems.push(problem);
            continue;
        }
        report.mark_takeovers(&takeovers);
        groups.push(Group { name: named.name, report });
    }
    if groups.is_empty() {
        bail!("report: {}", if problems.is_empty() { "no log can be read".to_owned() } else { problems.join("; ") });
    }
    skipped.add_logs(&problems);
    skipped.lines += groups.iter().map(|group| group.report.damage.len()).sum::<usize>();
    match groups.len() {
        1 => groups.iter().try_for_each(|group| show(args, group))?,
        _ => show_comparison(args, &Comparison::of(groups))?,
    }
    skipped.outcome()
}

/// Prints the last seven days.
fn week(
    args: &Args,
    takeovers: Option<&[Takeover]>,
    leadership: &Leadership,
    mut skipped: Skipped,
) -> anyhow::Result<Outcome> {
    let mut reports = Vec::new();
    let mut unreadable = Vec::new();
    let found = grouping::by_day(&args.logs, &mut unreadable)?;
    skipped.add_logs(&unreadable);
    let today = TradingDate::in_utc(unix_now());
    // The days that the week shows are known before the logs are read.
    let mut days: Vec<(TradingDate, NamedLogs)> = Vec::new();
    for named in found {
        match named.name.parse::<TradingDate>() {
            Ok(date) if date <= args.until.unwrap_or(today) => days.push((date, named)),
            // As asked for.
            Ok(_) if args.until.is_some() => {}
            Ok(date) => {
                skipped.add_all(&named, format!("it begins on {date}, after today (--until {date} includes it)"));
            }
            Err(_) => skipped.add_all(&named, "no time in it says of which day it is"),
        }
    }
    for (date, named) in &days[days.len().saturating_sub(DAYS)..] {
        let report = read_report(named, args, leadership)?;
        match report.foreign_channel() {
            Some(foreign) => skipped.add_all(named, format!("of {date}, when {foreign}")),
            None => reports.push((*date, report)),
        }
    }
    let week = Week::of(reports, takeovers);
    if week.is_empty() {
        bail!("report: no interval in the logs of these days");
    }
    let mut text = String::new();
    if args.json {
        text = format!("{}\n", week.json());
    } else if args.csv {
        text = format!("{}\n", csv::HEADER);
        csv::write_week(&week, &mut text)?;
    } else {
        week.write(&mut text)?;
    }
    write_page(args, |page| html::write_week(&week, page))?;
    print(&text)?;
    skipped.lines += week.damage().len();
    skipped.outcome()
}

fn read_report(named: &NamedLogs, args: &Args, leadership: &Leadership) -> anyhow::Result<Report> {
    let mut files = Vec::new();
    for path in &named.logs {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        files.push((path.clone(), bytes));
    }
    let report = Report::with_leadership(&files, args.channel.map(ChannelId), leadership);
    warn_of(&report.damage);
    Ok(report)
}

/// Content of the audit files.
#[derive(Default)]
struct Audit {
    takeovers: Vec<Takeover>,
    leadership: Leadership,
    /// Number of damaged lines.
    damage_count: usize,
}

/// Reads the audit files. A file that is named twice counts once.
fn read_audit(paths: &[PathBuf]) -> anyhow::Result<Audit> {
    let mut audit = Audit::default();
    let mut files = BTreeSet::new();
    for path in paths {
        if !files.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            continue;
        }
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let (takeovers, damage) = takeovers::read(path, &bytes);
        warn_of(&damage);
        audit.damage_count += damage.len();
        audit.takeovers.extend(takeovers);
        audit.leadership.add(&bytes);
    }
    takeovers::complete(&mut audit.takeovers);
    Ok(audit)
}

fn warn_of(damage: &[LogDamage]) {
    damage.iter().take(DAMAGE_SHOWN_MAX).for_each(|damage| warn(&damage.to_string()));
}

/// What the report lacks.
struct Skipped {
    lines: usize,
    logs: usize,
}

impl Skipped {
    /// Adds logs, each with its reason.
    fn add_logs(&mut self, reasons: &[impl fmt::Display]) {
        reasons.iter().for_each(|reason| warn(&format!("{reason}: skipped")));
        self.logs += reasons.len();
    }

    /// Adds these logs, all for that reason.
    fn add_all(&mut self, named: &NamedLogs, reason: impl fmt::Display) {
        let reasons: Vec<String> = named.logs.iter().map(|log| format!("{}: {reason}", log.display())).collect();
        self.add_logs(&reasons);
    }

    /// What could be read was printed; the exit code says that it was not all.
    fn outcome(&self) -> anyhow::Result<Outcome> {
        let count = |count: usize, one: &str, many: &str| {
            (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
        };
        let parts = [count(self.lines, "damaged line", "damaged lines"), count(self.logs, "log", "logs")]
            .map(Option::into_iter);
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            bail!("report: {} skipped", parts.join(" and "));
        }
        Ok(Outcome::Done)
    }
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
