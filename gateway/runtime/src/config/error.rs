//! What is wrong with a configuration, and where.

use std::{fmt, io, path::PathBuf};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read configuration {}: {source}", path.display())]
    Read {
        /// Path of the configuration file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file was read; these are all its problems, in the file's order.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the configuration file.
    pub path: PathBuf,
    /// Line in the file, from 1.
    pub line: usize,
    /// Column in the line, in characters from 1.
    pub column: usize,
    /// Path of the key, such as `channel[1].line[0].group`; empty if the problem concerns the whole file.
    pub key: String,
    /// Text for the operator: the value, and which values are allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.path.display(), self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    match lines.as_slice() {
        [line] => line.clone(),
        lines => format!("{} problems\n{}", lines.len(), lines.join("\n")),
    }
}
