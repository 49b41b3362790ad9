//! The program `mdgw`. It parses the command line, runs a subcommand and sets the exit code.

#![forbid(unsafe_code)]

mod cli;
mod demo;
mod top;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
