//! Groups logs: as named by the caller, or by the logs' own disclosures.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use mdgw_feeds::time::{TradingDate, UnixNs};

use super::{log::Log, summary::host_of};

/// One argument: `PATH`, or `NAME=PATH`. A path is a log, a directory (all its `*.hlog`), or a name with `*` in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogArgument {
    /// Name of the group, if given.
    pub group: Option<String>,
    /// Location of the logs.
    pub path: PathBuf,
}

impl FromStr for LogArgument {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A file whose name contains `=` is still a file.
        let named = text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/'));
        let is_file = || Path::new(text).exists();
        Ok(match named {
            Some((name, path)) if !is_file() => Self { group: Some(name.to_owned()), path: path.into() },
            _ => Self { group: None, path: text.into() },
        })
    }
}

/// Criterion for groups that the caller did not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareBy {
    /// Each log is a group.
    Log,
    /// The host that the log was written on.
    Host,
    /// The day (UTC) on which the log begins.
    Day,
}

/// Logs with a common name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLogs {
    /// Name of the group; empty for a single unnamed group.
    pub name: String,
    /// Paths of the interval logs of the group.
    pub logs: Vec<PathBuf>,
}

/// Errors of grouping.
#[derive(Debug, thiserror::Error)]
pub enum GroupingError {
    /// A log or directory can't be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// Path of the folder or log that failed.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A directory or a pattern without a log.
    #[error("read {}: contains no latency log (*.hlog)", path.display())]
    NoLog {
        /// The path or pattern.
        path: PathBuf,
    },
    /// A log was given twice, and would count twice.
    #[error("read {}: given twice", path.display())]
    DuplicateLog {
        /// Path of the log.
        path: PathBuf,
    },
    /// Some logs have a group name, others have none.
    #[error("report: {} has no group: name all logs (NAME=PATH) or none", path.display())]
    Unnamed {
        /// A log without group name.
        path: PathBuf,
    },
    /// Names were given, and a criterion too.
    #[error("report: use either NAME=PATH or one of --compare and --week, not both")]
    NamedAndCompared,
    /// There is only one group.
    #[error("report: all logs have the same {what} ({name}): nothing to compare")]
    OneGroup {
        /// What `--compare` names: the property by which the logs should differ.
        what: &'static str,
        /// Name of the only group.
        name: String,
    },
}

/// Finds the logs and groups them: groups in order of first appearance, days in chronological order. What a directory or a pattern has
/// and cannot be read is left out, and added to `unreadable`.
///
/// # Errors
/// See [`GroupingError`].
pub fn groups(
    arguments: &[LogArgument],
    by: Option<CompareBy>,
    unreadable: &mut Vec<GroupingError>,
) -> Result<Vec<NamedLogs>, GroupingError> {
    let is_named = arguments.iter().any(|argument| argument.group.is_some());
    if let Some(unnamed) = arguments.iter().find(|argument| is_named && argument.group.is_none()) {
        return Err(GroupingError::Unnamed { path: unnamed.path.clone() });
    }
    if is_named && by.is_some() {
        return Err(GroupingError::NamedAndCompared);
    }
    let mut groups = logs_by(arguments, by, unreadable)?;
    match (by, groups.as_slice()) {
        (Some(by), [only]) => Err(GroupingError::OneGroup { what: by.text(), name: only.name.clone() }),
        (Some(CompareBy::Day), _) => {
            groups.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(groups)
        }
        _ => Ok(groups),
    }
}

/// The logs of each day (UTC) on which they begin, in order of the days. One day is enough. `unreadable` as in [`groups`].
///
/// # Errors
/// See [`GroupingError`].
pub fn by_day(arguments: &[LogArgument], unreadable: &mut Vec<GroupingError>) -> Result<Vec<NamedLogs>, GroupingError> {
    if arguments.iter().any(|argument| argument.group.is_some()) {
        return Err(GroupingError::NamedAndCompared);
    }
    let mut days = logs_by(arguments, Some(CompareBy::Day), unreadable)?;
    days.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(days)
}

/// Finds the logs, grouped by that property or else by the names that were given, in order of first appearance.
fn logs_by(
    arguments: &[LogArgument],
    by: Option<CompareBy>,
    unreadable: &mut Vec<GroupingError>,
) -> Result<Vec<NamedLogs>, GroupingError> {
    let mut groups: Vec<NamedLogs> = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    for LogArgument { group, path } in arguments {
        for log in logs_at(path, unreadable)? {
            let real = log.canonicalize().map_err(|source| GroupingError::Read { path: log.clone(), source })?;
            if seen.contains(&real) {
                return Err(GroupingError::DuplicateLog { path: log });
            }
            seen.push(real);
            let name = match by {
                Some(by) => by.name_of(&log)?,
                None => group.clone().unwrap_or_default(),
            };
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.logs.push(log),
                None => groups.push(NamedLogs { name, logs: vec![log] }),
            }
        }
    }
    Ok(groups)
}

impl CompareBy {
    fn text(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Host => "host",
            Self::Day => "day",
        }
    }

    fn name_of(self, path: &Path) -> Result<String, GroupingError> {
        if self == Self::Log {
            return Ok(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
        let head = read_header(path).map_err(|source| GroupingError::Read { path: path.to_owned(), source })?;
        let log = Log::read(path, &head);
        Ok(match self {
            Self::Day => log.base.map(|base: UnixNs| TradingDate::in_utc(base).to_string()),
            _ => Some(host_of(&log.disclosure)).filter(|host| !host.is_empty()).map(str::to_owned),
        }
        .unwrap_or_else(|| format!("unknown {}", self.text())))
    }
}

/// The log at a path, all logs of a directory, or those that match a pattern; sorted by name.
fn logs_at(path: &Path, unreadable: &mut Vec<GroupingError>) -> Result<Vec<PathBuf>, GroupingError> {
    let pattern = path.file_name().unwrap_or_default().to_string_lossy();
    let (directory, pattern) = match (path.is_dir(), path.exists(), pattern.contains('*')) {
        (true, ..) => (path, "*.hlog"),
        (_, false, true) => (path.parent().unwrap_or_else(|| Path::new("")), &*pattern),
        _ => return Ok(vec![path.to_owned()]),
    };
    let place = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let failed = |source| GroupingError::Read { path: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(place).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if matches_pattern(pattern, &name.to_string_lossy()) {
            found.push(directory.join(name));
        }
    }
    if found.is_empty() {
        return Err(GroupingError::NoLog { path: path.to_owned() });
    }
    found.sort();
    // A log that was named must be there. Of those that were found, one without permission or a dangling link hides no other.
    found.retain(|log| match read_one_byte(log) {
        Ok(()) => true,
        Err(source) => {
            unreadable.push(GroupingError::Read { path: log.clone(), source });
            false
        }
    });
    Ok(found)
}

/// A directory can be opened, but not read.
fn read_one_byte(path: &Path) -> io::Result<()> {
    File::open(path)?.read(&mut [0]).map(drop)
}

/// Whether `name` matches `pattern`, in which each `*` matches any text.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|rest| matches_pattern(after, rest)))
        }),
    }
}

/// The disclosure at the beginning of a log.
fn read_header(path: &Path) -> io::Result<Vec<u8>> {
    let mut reader = BufReader::new(File::open(path)?.take(HEAD_BYTES_MAX));
    let mut head = Vec::new();
    loop {
        let begin = head.len();
        if reader.read_until(b'\n', &mut head)? == 0 || head[begin..].starts_with(b"Tag=") {
            head.truncate(begin);
            return Ok(head);
        }
    }
}

/// Enough for a disclosure with the settings of some hundred channels.
const HEAD_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::sample_log;

    fn arguments(text: &str) -> LogArgument {
        text.parse().unwrap()
    }

    fn names(groups: &[NamedLogs]) -> Vec<(&str, Vec<String>)> {
        let file = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        groups.iter().map(|group| (group.name.as_str(), group.logs.iter().map(file).collect())).collect()
    }

    #[test]
    fn names_paths_directories_and_patterns_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.hlog", "b.hlog", "c.hgrm", "odd=name.hlog"] {
            fs::write(folder.path().join(name), sample_log("main-0", 1, 1)).unwrap();
        }
        let at = folder.path().display();
        let of = |texts: &[String]| {
            groups(&texts.iter().map(|text| arguments(text)).collect::<Vec<_>>(), None, &mut Vec::new())
        };
        let all = ["a.hlog", "b.hlog", "odd=name.hlog"].map(str::to_owned).to_vec();
        assert_eq!(names(&of(&[format!("{at}")]).unwrap()), [("", all.clone())]);
        assert_eq!(names(&of(&[format!("x={at}")]).unwrap()), [("x", all)]);
        let named = of(&[format!("new={at}/a*"), format!("old={at}/b.hlog"), format!("new={at}/o*.hlog")]).unwrap();
        let expected =
            [("new", vec!["a.hlog".to_owned(), "odd=name.hlog".to_owned()]), ("old", vec!["b.hlog".to_owned()])];
        assert_eq!(names(&named), expected);
        assert_eq!(names(&of(&[format!("{at}/odd=name.hlog")]).unwrap())[0].0, "", "a file, not a group");
        for (wrong, expected) in [
            (vec![format!("{at}/a.hlog"), format!("{at}")], "given twice"),
            (vec![format!("{at}/x*")], "no latency log"),
            (vec![format!("x={at}/a.hlog"), format!("{at}/b.hlog")], "has no group"),
            (vec![format!("{at}/gone.hlog")], "read"),
        ] {
            let error = of(&wrong).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_a_directory_has_and_cannot_be_read_hides_no_other_log() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.hlog"), sample_log("main-0", 1, 1)).unwrap();
        fs::create_dir(folder.path().join("a.hlog")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("gone"), folder.path().join("c.hlog")).unwrap();
        let mut unreadable = Vec::new();
        let found = by_day(&[arguments(&folder.path().display().to_string())], &mut unreadable).unwrap();
        assert_eq!(names(&found), [("2019-01-30", vec!["b.hlog".to_owned()])]);
        let texts: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
        assert!(
            matches!(&texts[..], [a, c] if a.contains("a.hlog: Is a directory") && c.contains("c.hlog: No such file")),
            "{texts:?}"
        );
    }

    #[test]
    fn logs_are_grouped_by_log_host_or_day() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, log: &[u8]| fs::write(folder.path().join(name), log).unwrap();
        let log = String::from_utf8(sample_log("main-0", 1, 1)).unwrap();
        write("1.hlog", log.as_bytes());
        write("0.hlog", log.replace(": 1548858600.000 (", ": 1548945000.000 (").as_bytes());
        let paths = [arguments(&folder.path().display().to_string())];
        let by = |by| groups(&paths, Some(by), &mut Vec::new());
        let one = |name: &str| vec![name.to_owned()];
        assert_eq!(names(&by(CompareBy::Day).unwrap()), [("2019-01-30", one("1.hlog")), ("2019-01-31", one("0.hlog"))]);
        assert_eq!(names(&by(CompareBy::Log).unwrap()), [("0", one("0.hlog")), ("1", one("1.hlog"))]);
        let error = by(CompareBy::Host).unwrap_err().to_string();
        assert!(error.contains("all logs have the same host"), "{error}");
        let named = [arguments(&format!("x={}", folder.path().display()))];
        assert!(matches!(groups(&named, Some(CompareBy::Day), &mut Vec::new()), Err(GroupingError::NamedAndCompared)));
    }
}
