//! Source files and example configurations.

use std::path::Path;

use mdgw_runtime::config::Resolved;

use super::{SourceFile, assert_none, files, sources};

/// Most lines of a source file.
const LINES_MAX: usize = 1_000;

/// Words in comments that mean "not finished". They are written in two halves, so that this file does not contain them.
/// Clippy refuses the macros of that meaning.
const REMINDERS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

#[test]
fn source_files_stay_below_the_length_limit() {
    let long = |file: &SourceFile| file.text.lines().count() > LINES_MAX;
    assert!(long(&SourceFile { path: "x.rs".to_owned(), text: "\n".repeat(LINES_MAX + 1) }));
    assert_none(sources().into_iter().filter(long).map(|file| file.path));
}

#[test]
fn no_reminder_is_left() {
    for SourceFile { path, text } in sources() {
        assert_none(reminders(&text).map(|what| format!("{path}: {what}")));
    }
    let control = format!("fn f() {{}} // {}: later", REMINDERS[0]);
    assert_eq!(reminders(&control).collect::<Vec<_>>(), [REMINDERS[0]]);
}

fn reminders(text: &str) -> impl Iterator<Item = &'static str> {
    let is_word_char = |character: char| character.is_alphanumeric() || character == '_';
    REMINDERS
        .into_iter()
        .filter(move |wanted| text.split(|character| !is_word_char(character)).any(|word| word == *wanted))
}

#[test]
fn example_configurations_are_valid() {
    let examples: Vec<_> = files(&["toml"]).into_iter().filter(|file| file.path.starts_with("ops/config/")).collect();
    assert!(examples.len() >= 2, "mdgw.toml and loopback.toml");
    for SourceFile { path, text } in &examples {
        assert_none(Resolved::from_text(Path::new(path), text).err().map(|error| error.to_string()));
    }
    let control = format!("{}\nno_such_key = 1\n", examples[0].text);
    assert!(Resolved::from_text(Path::new("control.toml"), &control).is_err());
}
