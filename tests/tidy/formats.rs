//! `tests/data/formats/previous` has the versions of the formats as the sources have them. So a change of a version also changes
//! the commit there, which `tests/mixed_versions` builds.

use super::{assert_none, read};

const RECORD: &str = "tests/data/formats/previous";

#[test]
fn the_record_of_the_previous_formats_has_the_versions_of_the_sources() {
    let record = read(RECORD);
    let commits: Vec<_> = record.lines().filter_map(|line| line.strip_prefix("commit: ")).collect();
    let is_commit = |name: &str| name.len() == 40 && name.chars().all(|digit| digit.is_ascii_hexdigit());
    assert!(matches!(commits[..], [commit] if is_commit(commit)), "{commits:?}");
    assert!(versions(&record).count() > 10);
    assert_none(changed(&record, read));

    let control = "# a comment: x\ncommit: 0123\n\na.rs: VERSION = 1;\nb.rs: VERSION = 2;";
    let source = |_: &str| "const VERSION = 1;".to_owned();
    assert_eq!(
        changed(control, source).collect::<Vec<_>>(),
        ["b.rs has no `VERSION = 2;`: change tests/data/formats/previous"]
    );
}

/// Each file with a version, and the text that it must have.
fn versions(record: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = record.lines().filter(|line| !line.starts_with('#') && !line.starts_with("commit: "));
    lines.filter_map(|line| line.split_once(": "))
}

fn changed(record: &str, source: impl Fn(&str) -> String) -> impl Iterator<Item = String> {
    let differs = move |(path, text): &(&str, &str)| !source(path).contains(text);
    versions(record).filter(differs).map(|(path, text)| format!("{path} has no `{text}`: change {RECORD}"))
}
