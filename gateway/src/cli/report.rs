//! `mdgw report`: latency logs as a table, a page, distributions, JSON.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use mdgw_feeds::identity::ChannelId;

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
        report.damage.iter().take(DAMAGE_SHOWN_MAX).for_each(|damage| warn(&damage.to_string()));
        bail!("{} damaged lines; the rest is reported", report.damage.len());
    }
    if let (Some(channel), true) = (args.channel, report.channels.is_empty()) {
        bail!("no log has anything of channel {channel}");
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
