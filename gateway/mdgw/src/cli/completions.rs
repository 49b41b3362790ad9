//! `mdgw completions`: shell completions, generated from the definitions of the commands.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap_complete::Shell;

use super::{Outcome, WRITE_STDOUT};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw completions bash > /etc/bash_completion.d/mdgw
  mdgw completions zsh > ~/.zfunc/_mdgw
  mdgw completions fish > ~/.config/fish/completions/mdgw.fish")]
pub(super) struct Args {
    /// Shell that is to read the completions.
    shell: Shell,
}

pub(super) fn run(args: &Args, command: clap::Command) -> anyhow::Result<Outcome> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(&script(args.shell, command)).and_then(|()| stdout.flush()).context(WRITE_STDOUT)?;
    Ok(Outcome::Done)
}

/// Completions of all commands and options, in the shell's own language.
pub(super) fn script(shell: Shell, mut command: clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "mdgw", &mut script);
    script
}
