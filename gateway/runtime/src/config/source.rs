//! The text of a configuration file: from a position to line, column and key.

use std::{ops::Range, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{error::Problem, file::File};

/// A configuration file's text with its name.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Reads the keys of the text; invalid TOML, an unknown key or a wrong type is a problem.
    pub(super) fn parse(&self) -> Result<File, Problem> {
        if let (_, errors) = DeTable::parse_recoverable(self.text)
            && let Some(error) = errors.first()
        {
            return Err(self.not_toml(error));
        }
        toml::from_str(self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let key = self.key_at(&span);
            self.problem(&span, &readable_message(error.message(), &key))
        })
    }

    /// A problem at `span`.
    pub(super) fn problem(&self, span: &Range<usize>, message: &str) -> Problem {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Problem {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            key: self.key_at(span),
            message: message.to_owned(),
        }
    }

    /// The problem of a file that is not TOML. It names no key, since those of invalid TOML are not reliable, and shows nothing of
    /// the file, which may be a key file that was given by mistake.
    fn not_toml(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or(0..0);
        let message = readable_message(error.message(), "");
        Problem { key: String::new(), ..self.problem(&span, &format!("TOML syntax error: {message}")) }
    }

    /// Path of the innermost key or value that covers `span`.
    fn key_at(&self, span: &Range<usize>) -> String {
        if *span == (0..0) {
            return String::new();
        }
        let (document, _) = DeTable::parse_recoverable(self.text);
        let mut path = String::new();
        descend(document.get_ref(), span, &mut path);
        path
    }
}

fn descend(table: &DeTable<'_>, wanted: &Range<usize>, path: &mut String) {
    // The span of a table covers its header only, not its keys. So every branch is searched.
    for (key, value) in table.iter() {
        let length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key.get_ref());
        if covers(&key.span(), wanted) && !value.get_ref().is_array() || descend_value(value, wanted, path) {
            return;
        }
        path.truncate(length);
    }
}

/// Whether `wanted` was found at or below `value`. If so, its path has been appended to `path`.
fn descend_value(value: &Spanned<DeValue<'_>>, wanted: &Range<usize>, path: &mut String) -> bool {
    let length = path.len();
    match value.get_ref() {
        DeValue::Table(table) => {
            descend(table, wanted, path);
            path.len() > length || covers(&value.span(), wanted)
        }
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                if descend_value(item, wanted, path) {
                    return true;
                }
                path.truncate(length);
            }
            covers(&value.span(), wanted)
        }
        _ => covers(&value.span(), wanted),
    }
}

fn covers(span: &Range<usize>, wanted: &Range<usize>) -> bool {
    span.start <= wanted.start && wanted.end <= span.end && span.start < span.end
}

/// The deserializer's message, reworded for the author of a configuration file.
fn readable_message(message: &str, key: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field")
        && let [unknown, known @ ..] = quoted.as_slice()
    {
        let hint = nearest(unknown, known).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        return format!("unknown key `{unknown}`; {hint}known keys: {}", known.join(", "));
    }
    if message.starts_with("missing field")
        && let [missing] = quoted.as_slice()
    {
        return format!("`{missing}` is missing");
    }
    if message.contains("invalid type: map, expected a sequence") {
        return format!("expected an array of tables: write [[{key}]]");
    }
    let words = [
        ("expected i64", "expected a whole number"),
        ("expected a string", "expected text in quotes"),
        ("expected a sequence", "expected a list in brackets"),
        ("expected a boolean", "expected true or false"),
    ];
    words.into_iter().fold(message.trim_end().to_owned(), |text, (from, to)| text.replace(from, to)).replace('\n', "; ")
}

/// The known word that `word` was probably meant to be.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(1);
    known
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits between two words: insertions, deletions, changed letters, and neighbours swapped, each counted once.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_suggests_for_typos_and_nothing_for_unrelated_words() {
        let known = ["window_packets", "gap_timeout_us", "line", "date"];
        assert_eq!(nearest("window_packet", &known), Some("window_packets"));
        assert_eq!(nearest("gap_tiemout_us", &known), Some("gap_timeout_us"));
        assert_eq!(nearest("lines", &known), Some("line"));
        assert_eq!(nearest("colour", &known), None);
    }

    #[test]
    fn distance_counts_a_swap_once() {
        assert_eq!(distance("wiat", "wait"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
