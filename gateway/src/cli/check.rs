//! `mdgw check`: what a configuration would run, or what is wrong with it.

use std::{fmt::Write as _, path::PathBuf};

use crate::config::{
    Resolved,
    explain::{Host, explain, headline, warnings},
};

use super::{Outcome, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file.
    config: PathBuf,
    /// Also list every setting in force, defaults included.
    #[arg(long)]
    all: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Resolved::load(&args.config)?;
    let host = Host::this(&config);
    let mut text = headline(&args.config, warnings(&config, &host).len());
    text.push('\n');
    explain(&config, &host, &mut text)?;
    if args.all {
        text.push_str("\nin force:\n");
        for (key, value) in config.settings() {
            writeln!(text, "  {key} = {value}")?;
        }
    }
    print(&text)?;
    Ok(Outcome::Done)
}
