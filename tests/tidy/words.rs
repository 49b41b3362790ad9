//! Identifiers that were retired for the field's words do not come back, and documentation says more than the name below it.

use proc_macro2::{TokenStream, TokenTree};

use super::{SourceFile, assert_none, sources};

/// One retired identifier per line, and its replacement.
const RETIRED: &str = include_str!("retired_identifiers.txt");

/// Exceptions: files in which a retired identifier is the field's own word, or names something else.
const EXCEPTIONS: [(&str, &str); 0] = [];

#[test]
fn retired_identifiers_stay_retired() {
    let retired: Vec<_> = RETIRED.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(retired.len() > 100, "only {} retired identifiers", retired.len());
    for SourceFile { path, text } in sources() {
        let found = retired_in(&text, &retired);
        let found = found.filter(|(old, _)| !EXCEPTIONS.contains(&(path.as_str(), old)));
        assert_none(found.map(|(old, new)| format!("{path}: {old}, now {new}")));
    }

    let control = "fn f(vigil: Vigil) { /* omens */ g(\"heir\") } // giver";
    let found: Vec<_> =
        retired_in(control, &[("vigil", "sentinel"), ("omens", ""), ("heir", ""), ("giver", "")]).collect();
    assert_eq!(found, [("vigil", "sentinel")], "identifiers alone, and whole");
}

/// `/// The file.` above `path` takes a line and says nothing: meaning, unit, range or who sets the value is missing.
#[test]
fn documentation_says_more_than_a_name() {
    for SourceFile { path, text } in sources() {
        assert_none(text.lines().filter(|line| repeats_name(line)).map(|line| format!("{path}: {}", line.trim())));
    }

    assert!(["/// The file.", "    /// Their address.", "/// Its present count."].into_iter().all(repeats_name));
    let meaningful = ["/// The file, as configured.", "/// The oldest entry kept.", "// The file.", "/// The file"];
    assert!(!meaningful.into_iter().any(repeats_name));
}

/// Whether a line of documentation is an article and one or two lower-case words.
fn repeats_name(line: &str) -> bool {
    let text = line.trim_start().strip_prefix("/// ").and_then(|text| text.strip_suffix('.'));
    let words: Vec<_> = text.into_iter().flat_map(|text| text.split(' ')).collect();
    let is_plain = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    matches!(words.as_slice(), ["The" | "Its" | "Their", rest @ ..] if (1..=2).contains(&rest.len()) && rest.iter().all(is_plain))
}

fn retired_in<'r>(text: &str, retired: &[(&'r str, &'r str)]) -> impl Iterator<Item = (&'r str, &'r str)> {
    let tokens: TokenStream = text.parse().expect("a source file is Rust");
    let mut identifiers = Vec::new();
    collect(tokens, &mut identifiers);
    let found: Vec<_> = retired.iter().filter(|(old, _)| identifiers.iter().any(|name| name == old)).copied().collect();
    found.into_iter()
}

fn collect(tokens: TokenStream, identifiers: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect(group.stream(), identifiers),
            TokenTree::Ident(identifier) => identifiers.push(identifier.to_string()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}
