//! The commit for `mdgw --version`: it distinguishes builds of one version.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=MDGW_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    // A path that does not exist would run this again at every build.
    for path in ["../../.git/HEAD", "../../.git/logs/HEAD"].into_iter().filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
    // Without a repository, as in an archive of the sources, the builder may name the commit.
    let commit = env::var("MDGW_COMMIT").ok().or_else(|| {
        let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    });
    let version = env!("CARGO_PKG_VERSION");
    let version = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=MDGW_VERSION={version}");
}
