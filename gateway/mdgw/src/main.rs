//! `mdgw`: parse, run, exit code.

mod cli;
mod demo;
mod top;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
