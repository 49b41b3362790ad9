//! `mdgw ha`: queries, controls and verifies the gateways of a pair.

mod control;
mod drill;
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
    /// Verify captures of the published multicast, or receivers' outputs: no duplicates, in order, nothing missing, one
    /// publisher at a time.
    Verify(verify::Args),
    /// Show the leader and epoch of each group, and why a gateway is not eligible.
    #[command(after_help = "Examples:\n  mdgw ha status --socket /run/mdgw/control\n  mdgw ha status --json")]
    Status(control::StatusArgs),
    /// Show the last changes of leadership, from the audit file.
    #[command(after_help = "Examples:\n  mdgw ha history -n 5")]
    History(control::HistoryArgs),
    /// Hand leadership over to another gateway. Nothing is lost; packets in flight may be repeated under the same name.
    #[command(after_help = "Examples:\n  mdgw ha hand-over\n  mdgw ha hand-over --group 2 --to 1")]
    HandOver(control::HandOverArgs),
    /// Pin leadership: no automatic moves. A leader that must step down still does.
    #[command(after_help = "Examples:\n  mdgw ha pin --group 1")]
    Pin(control::GroupArgs),
    /// Allow automatic moves of leadership again.
    #[command(after_help = "Examples:\n  mdgw ha unpin --group 1")]
    Unpin(control::GroupArgs),
    /// Admit a gateway as a candidate that the election record does not list.
    #[command(after_help = "Examples:\n  mdgw ha admit --node 3 --name chicago-b")]
    Admit(control::AdmitArgs),
    /// Hand over to another gateway and back, and report how long each hand-over took.
    #[command(after_help = "Examples:\n  mdgw ha drill\n  mdgw ha drill --group 2 --to 1")]
    Drill(drill::Args),
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    match &args.tool {
        Tool::Verify(args) => verify::run(args),
        Tool::Status(args) => control::status(args),
        Tool::History(args) => control::history(args),
        Tool::HandOver(args) => control::hand_over(args),
        Tool::Pin(args) => control::set_pin(args, true),
        Tool::Unpin(args) => control::set_pin(args, false),
        Tool::Admit(args) => control::admit(args),
        Tool::Drill(args) => drill::run(args),
    }
}
