//! `mdgw ha`: tools for the hot-standby pair.

mod verify;

use super::Outcome;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    tool: Tool,
}

/// One variant, one file.
#[derive(Debug, clap::Subcommand)]
enum Tool {
    /// Judge captures of published multicast, or receivers' outputs: each name once, in order, by one publisher at a time.
    Verify(verify::Args),
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    match &args.tool {
        Tool::Verify(args) => verify::run(args),
    }
}
