//! `mdgw doctor`: examines this host for a gateway. Changes nothing.

use std::path::PathBuf;

use mdgw_doctor::{CheckResult, Report, Status};
use mdgw_runtime::config::{
    Resolved,
    host_needs::{examine_bare_host, examine_host},
};
use serde::Serialize;

use super::{Outcome, check::secret_errors, print, protect_secrets};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw doctor
  mdgw doctor gateway.toml
  mdgw doctor gateway.toml --json

Exit codes: 0 nothing found; 1 a warning is the worst; 2 a failure is the worst, or the configuration is not valid.
Items that could not be read do not count.")]
pub(super) struct Args {
    /// Configuration file. Without it, items that depend on a configuration are unknown.
    config: Option<PathBuf>,
    /// Also say why the items matter that are as they should be.
    #[arg(long)]
    all: bool,
    /// Print one line of JSON.
    #[arg(long, conflicts_with = "all")]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    config: Option<&'a std::path::Path>,
    #[serde(flatten)]
    report: &'a Report,
}

/// What is wrong with the secrets of the programs beside the gateway.
fn of_secrets(config: &Resolved) -> CheckResult {
    let mut found = CheckResult::default();
    for (lacks_rights, text) in secret_errors(config) {
        let list = if lacks_rights { &mut found.not_permitted } else { &mut found.warnings };
        list.push(text);
    }
    found
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = args.config.as_deref().map(Resolved::load).transpose()?;
    protect_secrets()?;
    let report = config.as_ref().map_or_else(examine_bare_host, |config| examine_host(config, of_secrets(config)));
    if args.json {
        let json = Json { version: 1, config: args.config.as_deref(), report: &report };
        print(&format!("{}\n", serde_json::to_string(&json)?))?;
    } else {
        print(&report.text(args.all))?;
    }
    Ok(match report.worst {
        Status::Ok | Status::Unknown => Outcome::Done,
        Status::Warn => Outcome::No,
        Status::Fail => Outcome::Failed,
    })
}
