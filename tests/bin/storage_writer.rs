//! Writes to one persisted file until it is killed. Started by `tests/e2e/storage.rs`.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use clap::Parser;
use mdgw_tests::storage::StoredFile;

/// Writes to one persisted file until it is killed, and reports each promise on standard output as eight bytes.
#[derive(Debug, Parser)]
#[command(name = "storage_writer")]
struct StorageWriterArgs {
    /// The kind of file: log, votes, state or audit.
    #[arg(value_name = "FILE", value_parser = parse_file)]
    file: StoredFile,
    /// Directory of the file.
    directory: PathBuf,
    /// Seed of what is written.
    seed: u64,
    /// Report before the commit, so that the test has something to find.
    #[arg(long)]
    early: bool,
}

fn parse_file(name: &str) -> Result<StoredFile, String> {
    StoredFile::from_name(name).ok_or_else(|| "must be log, votes, state or audit".to_owned())
}

fn main() -> ExitCode {
    let args = StorageWriterArgs::parse();
    if let Err(error) = args.file.write_until_killed(&args.directory, args.seed, args.early) {
        let _ignored = writeln!(std::io::stderr(), "storage_writer: {error}");
    }
    ExitCode::from(2)
}
