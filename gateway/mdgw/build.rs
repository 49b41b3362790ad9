//! The commit for `mdgw --version` and for metrics: it distinguishes builds of one version.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=MDGW_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("rev-parse").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // A path that does not exist would run this again at every build.
    for path in ["HEAD", "logs/HEAD"].into_iter().filter_map(|name| git(&["--git-path", name])) {
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    // The commit of these sources, and not of a repository that they were unpacked in.
    let is_own = git(&["--show-prefix"]).is_some_and(|prefix| prefix == "gateway/mdgw/");
    // Without a repository, as in an archive of the sources, the builder may name the commit.
    let commit = env::var("MDGW_COMMIT").ok().or_else(|| git(&["--short=12", "HEAD"]).filter(|_| is_own));
    let version = env!("CARGO_PKG_VERSION");
    println!("cargo:rustc-env=MDGW_BUILT_FROM={}", commit.as_deref().unwrap_or_default());
    let version = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=MDGW_VERSION={version}");
}
