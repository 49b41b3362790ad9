//! Rules of the repository that neither Cargo nor clippy enforces: which package may use which, modules without cycles,
//! documents that point to what exists, quoted messages and checks that exist, a runbook for each alarm, short files,
//! licences. Each rule has a control that it must catch.

mod alarms;
mod alert_rules;
mod documents;
mod files;
mod formats;
mod hot_logging;
mod licences;
mod modules;
mod packages;
mod quotes;
mod reliability;
mod safety;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A file of the repository, by its path from the root.
#[derive(Debug)]
struct SourceFile {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

fn sources() -> Vec<SourceFile> {
    let found = files(&["rs"]);
    assert!(found.len() > 100, "only {} source files", found.len());
    found
}

/// All files with these endings, except build output and hidden files.
fn files(endings: &[&str]) -> Vec<SourceFile> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("the repository can be listed") {
            let entry = entry.expect("the repository can be listed");
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let path = folder.join(&name);
            if entry.file_type().expect("the repository can be listed").is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted)) {
                let path = path.into_os_string().into_string().expect("names are UTF-8");
                found.push(SourceFile { text: read(&path), path });
            }
        }
    }
    found
}

#[track_caller]
fn assert_none<T: ToString>(findings: impl IntoIterator<Item = T>) {
    let findings: Vec<_> = findings.into_iter().map(|complaint| complaint.to_string()).collect();
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}
