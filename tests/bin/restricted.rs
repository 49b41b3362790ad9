//! Installs filters of system calls and becomes a program, as systemd does last when it starts a unit. Started by
//! `tests/e2e/service_units.rs`.

use std::{
    ffi::OsString,
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use clap::Parser;
use mdgw_tests::service_unit::compile_filters;

/// Runs a program under filters of system calls.
#[derive(Debug, Parser)]
#[command(name = "restricted")]
struct RestrictedArgs {
    /// The filters: a JSON object of seccompiler.
    filters: String,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let args = RestrictedArgs::parse();
    let installed = compile_filters(&args.filters)
        .and_then(|programs| programs.iter().try_for_each(|program| seccompiler::apply_filter(program)));
    let failure = match installed {
        // Returns only if the program can't be executed.
        Ok(()) => Command::new(&args.command[0]).args(&args.command[1..]).exec().to_string(),
        Err(error) => error.to_string(),
    };
    let _ignored = writeln!(std::io::stderr(), "restricted: {failure}");
    ExitCode::from(2)
}
