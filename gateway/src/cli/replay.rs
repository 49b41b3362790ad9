//! `mdgw replay`: plays captures and day files.

use std::path::PathBuf;

use super::Outcome;

/// What to play and where to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Captures (pcap, pcapng) or Nasdaq day files, plain, gzip or zstd.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs `mdgw replay`.
pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    for path in &args.files {
        let mut file = crate::capture_file::CaptureFile::open(path, &crate::capture_file::OpenOptions::default())?;
        while file.advance()? {}
        super::print(&format!("{}: {:?}\n", path.display(), file.counts()))?;
    }
    Ok(Outcome::Done)
}
