//! Files of `tests/data/output`: written with `UPDATE=1`, compared otherwise.

use std::{env, fs, path::PathBuf};

/// Path of a file of test vectors.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/output").join(name)
}

/// Path of a file of the repository.
pub(crate) fn repository_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// The text of a file of test vectors.
pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Asserts that a file of test vectors has this content; with `UPDATE=1` it is written.
pub(crate) fn assert_current(name: &str, content: &[u8]) {
    assert!(!name.ends_with(".txt") || content.is_ascii(), "{name} is ASCII");
    if env::var_os("UPDATE").is_some() {
        fs::write(path(name), content).unwrap();
    }
    assert!(
        fs::read(path(name)).unwrap_or_default() == content,
        "tests/data/output/{name} is not current: UPDATE=1 cargo test -p mdgw-tests --test consumers"
    );
}

/// Asserts that two texts are equal, and shows the first line that differs.
#[track_caller]
pub(crate) fn assert_same_text(what: &str, found: &str, expected: &str) {
    let mut place = "";
    let mut expected_lines = expected.lines();
    for (number, line) in (1..).zip(found.lines()) {
        let wanted = expected_lines.next();
        if !line.starts_with(['>', ' ']) {
            place = line;
        }
        assert!(
            Some(line) == wanted,
            "{what}: line {number}, after {place:.120}\nfound    {line}\nexpected {wanted:?}"
        );
    }
    assert_eq!(expected_lines.next(), None, "{what}: ends early");
}
