//! A report as text for a terminal of 80 columns. Commands are not broken, so that they can be copied.

use std::fmt;

use crate::report::{Counts, Item, Report, Status};

/// An amount of memory or space.
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Columns of a line.
const WIDTH: usize = 80;
/// Columns before an item's text: the status.
const INDENT: usize = 10;

impl Report {
    /// The report, grouped, with a summary in the last line. `explain`: also why the items matter that are as they should be.
    #[must_use]
    pub fn text(&self, explain: bool) -> String {
        let mut text = String::new();
        let mut group = None;
        for item in &self.items {
            if group.replace(item.group) != Some(item.group) {
                let separator = if text.is_empty() { "" } else { "\n" };
                text.push_str(&format!("{separator}{}\n", item.group.name()));
            }
            write_item(&mut text, item, explain);
        }
        text.push_str(&format!("\n{}\n", self.counts));
        text
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ok, warn, fail, unknown } = self;
        write!(f, "{fail} fail, {warn} warn, {unknown} unknown, {ok} ok")
    }
}

fn write_item(text: &mut String, item: &Item, explain: bool) {
    let subject = item.subject.as_deref().map(|subject| format!(" {subject}")).unwrap_or_default();
    let head = format!("{}{subject}: {}", item.name, item.read);
    write_wrapped(text, &format!("  {:<width$}", item.status.name(), width = INDENT - 2), &head);
    let is_explained = explain || matches!(item.status, Status::Warn | Status::Fail);
    if is_explained {
        write_wrapped(text, &" ".repeat(INDENT + 2), item.why);
    }
    for command in &item.commands {
        text.push_str(&format!("{}$ {command}\n", " ".repeat(INDENT + 2)));
    }
}

/// Words after `prefix`; further lines are indented by as much.
fn write_wrapped(text: &mut String, prefix: &str, words: &str) {
    let mut line = prefix.to_owned();
    let mut is_empty = true;
    for word in words.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = " ".repeat(prefix.chars().count());
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    text.push_str(&line);
    text.push('\n');
}
