//! `mdgw report`: latency logs as a table, a page, distributions, JSON.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use mdgw_feeds::{identity::ChannelId, time::UnixNs};

use super::{Outcome, print, warn};
use crate::report::{Report, hgrm, html, json, table};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Interval logs (`*.hlog`); several are merged.
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// Write one self-contained HTML page with curves and timeline.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write one percentile distribution (.hgrm) for each channel and stage.
    #[arg(long, value_name = "DIRECTORY")]
    hgrm: Option<PathBuf>,
    /// Print one line of JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Only this channel, by number.
    #[arg(long, value_name = "NUMBER")]
    channel: Option<u16>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let report = Report::of(&read(&args.logs)?, args.channel.map(ChannelId));
    report.damage.iter().take(DAMAGE_SHOWN_MAX).for_each(|damage| warn(&damage.to_string()));
    if report.end == UnixNs(0) {
        // Without an interval there is no time that a report could be of.
        let channel = args.channel.map_or_else(String::new, |channel| format!(" of channel {channel}"));
        let logs: Vec<String> = args.logs.iter().map(|path| path.display().to_string()).collect();
        bail!("report: no interval{channel} in {}", logs.join(", "));
    }
    let mut text = String::new();
    if args.json {
        text = json::value(&report).to_string();
        text.push('\n');
    } else {
        table::write(&report, &mut text)?;
    }
    print(&text)?;
    if let Some(path) = &args.html {
        let mut page = String::new();
        html::write(&report, &mut page)?;
        fs::write(path, page).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(directory) = &args.hgrm {
        hgrm::write_all(&report, directory).with_context(|| format!("write to {}", directory.display()))?;
    }
    if !report.damage.is_empty() {
        let lines = if report.damage.len() == 1 { "line" } else { "lines" };
        bail!("report: {} damaged {lines}; the rest is reported", report.damage.len());
    }
    Ok(Outcome::Done)
}

const DAMAGE_SHOWN_MAX: usize = 10;

/// Content of the logs. One given twice would count twice, so it is refused.
fn read(logs: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut read = |path: &Path| {
        let real = path.canonicalize().with_context(|| format!("read {}", path.display()))?;
        if seen.contains(&real) {
            bail!("read {}: given twice", path.display());
        }
        seen.push(real);
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        Ok((path.to_owned(), bytes))
    };
    logs.iter().map(|path| read(path)).collect()
}
