//! `mdgw ha`: tools for the hot-standby pair.

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
    /// Judge captures of published multicast, or receivers' outputs: each name once, in order, by one publisher at a time.
    Verify(verify::Args),
    /// Who leads, under which epoch, what stands in the way.
    #[command(after_help = "Examples:\n  mdgw ha status --socket /run/mdgw/control\n  mdgw ha status --json")]
    Status(control::Socket),
    /// The last changes of leadership, from the audit.
    #[command(after_help = "Examples:\n  mdgw ha history -n 5")]
    History(control::HistoryArgs),
    /// Let another gateway lead; nothing is lost or said twice.
    #[command(after_help = "Examples:\n  mdgw ha hand-over\n  mdgw ha hand-over --group 2 --to 1")]
    HandOver(control::HandOverArgs),
    /// Let leadership move no more by itself. A leader still ends its own lease where it must.
    #[command(after_help = "Examples:\n  mdgw ha pin --group 1")]
    Pin(control::GroupArgs),
    /// Let leadership move by itself again.
    #[command(after_help = "Examples:\n  mdgw ha unpin --group 1")]
    Unpin(control::GroupArgs),
    /// Let a gateway stand that the record doesn't name.
    #[command(after_help = "Examples:\n  mdgw ha admit --node 3 --name chicago-b")]
    Admit(control::AdmitArgs),
    /// Hand over to another gateway, have it hand back, and tell how long each took.
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
