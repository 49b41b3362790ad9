//! `mdgw check`: prints what a configuration would run, or its errors. Exit code 1 if it cannot run on this host.

use std::{fmt::Write as _, path::PathBuf};

use mdgw_live::keys::ClientKeys;
use mdgw_runtime::config::{
    Resolved,
    explain::{explain, verdict_line},
    host::{Findings, Host},
    resolved::NatsSettings,
};

use super::{Outcome, print, protect_secrets};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw check gateway.toml
  mdgw check gateway.toml --all")]
pub(super) struct Args {
    /// Configuration file.
    config: PathBuf,
    /// Also list every setting in force, defaults included.
    #[arg(long)]
    all: bool,
}

/// Why `mdgw live` cannot read its clients' keys, or `mdgw nats` its login, and whether only this user cannot.
pub(super) fn secret_errors(config: &Resolved) -> impl Iterator<Item = (bool, String)> {
    let live = config.live.as_ref().and_then(|live| ClientKeys::load(&live.key_file).err());
    let nats = config.nats.as_ref().and_then(NatsSettings::secret_error);
    [("mdgw live", live), ("mdgw nats", nats)]
        .into_iter()
        .filter_map(|(program, error)| Some((program, error?)))
        .map(|(program, error)| (error.lacks_rights(), format!("`{program}` will not start: {error}")))
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Resolved::load(&args.config)?;
    protect_secrets()?;
    let host = Host::this(&config);
    let mut findings = host.findings(&config);
    // The gateway itself runs without these files, and this check precedes its start: no fault.
    findings.warnings.extend(secret_errors(&config).map(|(_, text)| text));
    let mut text = verdict_line(&args.config, &findings);
    text.push('\n');
    explain(&config, &mut text)?;
    let cold_cores: Vec<String> = host.cold_cores(&config).iter().map(usize::to_string).collect();
    writeln!(text, "\ncold threads on cores {}", cold_cores.join(", "))?;
    if args.all {
        text.push_str("\nsettings in force:\n");
        for (key, value) in config.settings() {
            writeln!(text, "  {key} = {value}")?;
        }
    }
    if findings != Findings::default() {
        write!(text, "\n{findings}")?;
    }
    print(&text)?;
    Ok(if findings.faults.is_empty() { Outcome::Done } else { Outcome::No })
}
