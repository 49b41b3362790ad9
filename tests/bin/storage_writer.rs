//! Writes to one persisted file until it is killed: `storage_writer log|votes|state|audit DIRECTORY SEED [early]`. Started by
//! `tests/e2e/storage.rs`. `early`: it reports before it commits, so that the test has something to find.

use std::{env, io::Write as _, path::Path, process::ExitCode};

use mdgw_tests::storage::StoredFile;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args[..] {
        [name, directory, seed, ref rest @ ..] => match (StoredFile::from_name(name), seed.parse()) {
            (Some(file), Ok(seed)) => file.write_until_killed(Path::new(directory), seed, rest == ["early"]),
            _ => Err("unknown file, or the seed is not a number".to_owned()),
        },
        _ => Err("usage: storage_writer log|votes|state|audit DIRECTORY SEED [early]".to_owned()),
    };
    if let Err(error) = ended {
        let _ignored = writeln!(std::io::stderr(), "storage_writer: {error}");
    }
    ExitCode::from(2)
}
