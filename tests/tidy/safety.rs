//! Every check that a document names exists as a function.

use std::collections::BTreeSet;

use super::{SourceFile, assert_none, files, sources};

/// First words of a check's name, as the introduction of SAFETY.md explains them.
const KINDS: [&str; 6] = ["model", "sim", "unit", "loom", "e2e", "sentinel"];

#[test]
fn named_checks_are_functions() {
    let documents: Vec<_> = files(&["md"]).into_iter().filter(|file| file.path != "CHANGELOG.md").collect();
    let known: BTreeSet<_> = sources().iter().flat_map(|file| functions(&file.text).collect::<Vec<_>>()).collect();
    assert!(documents.iter().flat_map(|file| checks(&file.text)).count() > 80);
    let unknown = documents.iter().flat_map(|SourceFile { path, text }| {
        checks(text).filter(|check| !known.contains(last(check))).map(move |check| format!("{path}: {check}"))
    });
    assert_none(unknown);

    let control = "`sim lease::a_gone_check`, `e2e pair takeover::kept_check`, `unit lease::`, `unit x` or `model.rs`";
    let found: Vec<_> = checks(control).collect();
    assert_eq!(found, ["sim lease::a_gone_check", "e2e pair takeover::kept_check"]);
    let known: Vec<_> = functions("fn kept_check() {} // a_gone_check").collect();
    assert_eq!(known, ["kept_check"]);
}

/// Code spans of a document that name a check: a kind, then a name of several words. A prefix of names ends with `::`.
fn checks(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|code| {
        let kind = code.split(' ').next().unwrap_or_default();
        KINDS.contains(&kind) && code.contains(' ') && last(code).contains('_')
    })
}

/// The function's name at the end of a check's name.
fn last(check: &str) -> &str {
    check.rsplit([':', ' ']).next().unwrap_or_default()
}

fn functions(source: &str) -> impl Iterator<Item = String> {
    let names = source.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
    names.map(str::to_owned)
}
