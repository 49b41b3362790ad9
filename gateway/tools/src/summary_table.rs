//! The table of two columns in which commands print their summaries: names and values.

use std::fmt::{Display, Write as _};

use mdgw_status::quantity::Count;

/// A table of two columns.
#[derive(Debug)]
pub(crate) struct SummaryTable {
    pub(crate) text: String,
    /// Width of the column of names, characters.
    name_width: usize,
}

impl Default for SummaryTable {
    fn default() -> Self {
        Self::with_name_width(26)
    }
}

impl SummaryTable {
    pub(crate) fn with_name_width(name_width: usize) -> Self {
        Self { text: String::new(), name_width }
    }

    pub(crate) fn row(&mut self, name: &str, value: impl Display) {
        let width = self.name_width;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}", format!("{name:<width$} {value}").trim_end());
    }

    /// One row for each count above 0.
    pub(crate) fn rows_above_zero<'n>(&mut self, counts: impl IntoIterator<Item = (&'n str, u64)>) {
        for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            self.row(name, Count(count));
        }
    }

    pub(crate) fn blank_line(&mut self) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }
}
