//! `mdgw`: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    mdgw::cli::run()
}
