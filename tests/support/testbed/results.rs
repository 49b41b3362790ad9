//! Results of `takeovers`, day by day, in a file: an interrupted run continues where it stopped.
//!
//! JSON lines. The first line names the run: program and options. Each later line holds one played day. A line is synced
//! before the next day begins. An interrupted write leaves a last line without a newline: it is removed, and its day is
//! played again.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    hash::{DefaultHasher, Hasher as _},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use mdgw_sys::file_lock::try_lock;
use serde::{Deserialize, Serialize};

use super::trials::FaultTrials;

/// A run: results of two runs do not belong into one table unless both are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Commit of the checkout when the run began, for the reader of the file. Not compared: the programs are.
    pub commit: String,
    /// Each program of the run, by name: a hash of its file.
    pub programs: BTreeMap<String, String>,
    /// Each option, by name.
    pub options: BTreeMap<String, String>,
}

impl RunIdentity {
    /// The identity of a run of these programs with these options.
    ///
    /// # Errors
    /// When a program cannot be read.
    pub fn new(programs: &[&Path], options: BTreeMap<String, String>) -> io::Result<Self> {
        let hash = |path: &&Path| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&fs::read(path)?);
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, format!("{:016x}", hasher.finish())))
        };
        let programs = programs.iter().map(hash).collect::<io::Result<_>>()?;
        let described = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=40"])
            .output();
        let described = described.ok().filter(|output| output.status.success());
        let commit = described
            .map_or_else(|| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Ok(Self { commit, programs, options })
    }

    /// What differs from the run that a file belongs to; empty if nothing does.
    fn differences(&self, recorded: &Self) -> String {
        let mut text = String::new();
        let mut compare = |here: &BTreeMap<String, String>, there: &BTreeMap<String, String>, prefix: &str| {
            for name in here.keys().chain(there.keys().filter(|name| !here.contains_key(*name))) {
                if here.get(name) != there.get(name) {
                    let shown = |value: Option<&String>| value.cloned().unwrap_or_else(|| "absent".to_owned());
                    // Writing to a string cannot fail.
                    let _ = write!(
                        text,
                        "\n  {prefix}{name}: {} in the file, {} now",
                        shown(there.get(name)),
                        shown(here.get(name))
                    );
                }
            }
        };
        compare(&self.options, &recorded.options, "--");
        compare(&self.programs, &recorded.programs, "program ");
        text
    }
}

/// One line of the file after the first.
#[derive(Debug, Serialize, Deserialize)]
struct PlayedDay {
    kind: String,
    first_trial: u64,
    trials: u64,
    results: FaultTrials,
}

/// Why results cannot be kept or continued.
#[derive(Debug, PartialEq, Eq)]
pub enum ResultsError {
    /// The operating system refused: what, and its error.
    Io(PathBuf, &'static str, String),
    /// Another run writes the file.
    Busy(PathBuf),
    /// The file belongs to a run of another program, or with other options.
    OtherRun(PathBuf, String),
    /// A line of the file is not what this program writes.
    Damaged(PathBuf, usize, String),
}

impl std::fmt::Display for ResultsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(path, act, error) => write!(f, "cannot {act} results file {}: {error}", path.display()),
            Self::Busy(path) => write!(f, "results file {} is in use by another run", path.display()),
            Self::OtherRun(path, differences) => write!(
                f,
                "results file {} belongs to another run:{differences}\nContinue that run with the same program and \
                 options, name another file, or begin anew with --anew (the file is kept as {})",
                path.display(),
                kept_path(path).display()
            ),
            Self::Damaged(path, line, reason) => {
                write!(f, "results file {}: line {line} is damaged: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for ResultsError {}

/// The days played so far, and the file that keeps them.
#[derive(Debug, Default)]
pub struct Results {
    file: Option<(PathBuf, File)>,
    days: Vec<PlayedDay>,
}

impl Results {
    /// Opens the file of a run, or creates it.
    ///
    /// # Errors
    /// When the file cannot be read or written, belongs to another run, or has a line that this program did not write.
    pub fn open(path: &Path, run: &RunIdentity) -> Result<Self, ResultsError> {
        let io = |act| move |error: io::Error| ResultsError::Io(path.to_owned(), act, error.to_string());
        let damaged = |line, reason: String| ResultsError::Damaged(path.to_owned(), line, reason);
        let mut file = File::options().read(true).append(true).create(true).open(path).map_err(io("open"))?;
        if !try_lock(&file).map_err(io("lock"))? {
            return Err(ResultsError::Busy(path.to_owned()));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io("read"))?;
        let whole_bytes = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole_bytes].lines().enumerate();
        let Some((_, first)) = lines.next() else {
            // Only a first line that was interrupted may be replaced: anything else is somebody's file.
            if !to_line(run).starts_with(text.trim_end()) {
                return Err(damaged(1, "it does not name a run".to_owned()));
            }
            file.set_len(0).map_err(io("truncate"))?;
            let mut results = Self { file: Some((path.to_owned(), file)), days: Vec::new() };
            results.append_line(&to_line(run))?;
            return Ok(results);
        };
        let recorded: RunIdentity = serde_json::from_str(first).map_err(|error| damaged(1, error.to_string()))?;
        let differences = run.differences(&recorded);
        if !differences.is_empty() {
            return Err(ResultsError::OtherRun(path.to_owned(), differences));
        }
        let mut results = Self::default();
        for (index, line) in lines {
            let day: PlayedDay = serde_json::from_str(line).map_err(|error| damaged(index + 1, error.to_string()))?;
            let played = results.played_trials(&day.kind);
            if day.first_trial != played {
                return Err(damaged(index + 1, format!("begins with trial {}, expected {played}", day.first_trial)));
            }
            results.days.push(day);
        }
        file.set_len(whole_bytes as u64).map_err(io("truncate"))?;
        results.file = Some((path.to_owned(), file));
        Ok(results)
    }

    /// Gives the file of an earlier run another name, so that the run begins anew. The name is returned, if there was a
    /// file.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn set_aside(path: &Path) -> Result<Option<PathBuf>, ResultsError> {
        let kept = kept_path(path);
        match fs::rename(path, &kept) {
            Ok(()) => Ok(Some(kept)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ResultsError::Io(path.to_owned(), "rename", error.to_string())),
        }
    }

    /// Trials of a kind that were played so far.
    #[must_use]
    pub fn played_trials(&self, kind: &str) -> u64 {
        self.of(kind).map(|day| day.trials).sum()
    }

    /// Plays those trials of a kind that were not played yet, and returns the results of all. `play` is given the first
    /// trial of a day and their number; `None` from it means that this machine cannot play the kind: nothing is recorded.
    ///
    /// # Errors
    /// When a day cannot be written. It counts as not played.
    pub fn play_missing_days(
        &mut self,
        kind: &str,
        trials: u64,
        trials_per_day: u64,
        mut play: impl FnMut(u64, u64) -> Option<FaultTrials>,
    ) -> Result<Option<FaultTrials>, ResultsError> {
        loop {
            let played = self.played_trials(kind);
            if played >= trials {
                break;
            }
            let count = trials_per_day.min(trials - played);
            let Some(results) = play(played, count) else { return Ok(None) };
            let day = PlayedDay { kind: kind.to_owned(), first_trial: played, trials: count, results };
            self.append_line(&to_line(&day))?;
            self.days.push(day);
        }
        let mut all = FaultTrials::default();
        for day in self.of(kind) {
            all.add(&day.results);
        }
        Ok(Some(all))
    }

    fn of(&self, kind: &str) -> impl Iterator<Item = &PlayedDay> {
        self.days.iter().filter(move |day| day.kind == kind)
    }

    fn append_line(&mut self, line: &str) -> Result<(), ResultsError> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|error| ResultsError::Io(path.clone(), "write", error.to_string()))
    }
}

fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| unreachable!("numbers and text")) + "\n"
}

/// Name of a file whose run was begun anew.
fn kept_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".before");
    name.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn run(trials: &str) -> RunIdentity {
        let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        RunIdentity { commit: "c0ffee".to_owned(), programs: map("takeovers", "1"), options: map("trials", trials) }
    }

    /// A day whose results name its trials.
    fn day(first: u64, count: u64) -> FaultTrials {
        let mut trials = FaultTrials::default();
        trials.record_aborted_day(usize::try_from(count).unwrap(), format!("trials from {first}"));
        trials
    }

    fn play_all(results: &mut Results, kind: &str, played: &mut Vec<(u64, u64)>) -> FaultTrials {
        let play = |first, count| {
            played.push((first, count));
            Some(day(first, count))
        };
        results.play_missing_days(kind, 12, 5, play).unwrap().unwrap()
    }

    #[test]
    fn an_interrupted_run_plays_only_the_missing_days_and_reports_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let uninterrupted = play_all(&mut Results::default(), "kill", &mut Vec::new()).report("kill");
        assert!(uninterrupted.contains("12 trials"), "{uninterrupted}");
        for played_before in 0..=3 {
            let path = folder.path().join(format!("{played_before}.jsonl"));
            let mut results = Results::open(&path, &run("12")).unwrap();
            // The run is interrupted in the day after: it ends without a result.
            let mut left = played_before;
            let mut interrupted = |first, count| {
                left -= 1;
                (left >= 0).then(|| day(first, count))
            };
            let end = results.play_missing_days("kill", 12, 5, &mut interrupted).unwrap();
            assert_eq!(end.is_some(), played_before == 3);
            play_all(&mut results, "pause", &mut Vec::new());
            drop(results);

            let mut results = Results::open(&path, &run("12")).unwrap();
            let mut played = Vec::new();
            assert_eq!(play_all(&mut results, "kill", &mut played).report("kill"), uninterrupted);
            let days = [(0, 5), (5, 5), (10, 2)];
            assert_eq!(played, days[usize::try_from(played_before).unwrap()..]);
            assert_eq!(results.played_trials("pause"), 12, "days of other kinds stay");
        }
    }

    #[test]
    fn a_line_interrupted_at_any_byte_is_played_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut results = Results::open(&path, &run("12")).unwrap();
        let one_day = |first, count| (first == 0).then(|| day(first, count));
        assert!(results.play_missing_days("kill", 12, 5, one_day).unwrap().is_none());
        drop(results);
        let whole = fs::read(&path).unwrap();
        let head = to_line(&run("12")).len();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let results = Results::open(&path, &run("12")).unwrap();
            assert_eq!(results.played_trials("kill"), if cut == whole.len() { 5 } else { 0 }, "cut at {cut}");
            drop(results);
            let expected = if cut == whole.len() { whole.len() } else { head };
            assert_eq!(fs::read(&path).unwrap(), whole[..expected], "cut at {cut}");
        }
    }

    #[test]
    fn another_program_or_option_is_refused_by_name_and_a_file_is_set_aside_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        play_all(&mut Results::open(&path, &run("12")).unwrap(), "kill", &mut Vec::new());
        let before = fs::read(&path).unwrap();
        let mut other_program = run("12");
        other_program.programs.insert("takeovers".to_owned(), "2".to_owned());
        let mut other_checkout = run("12");
        other_checkout.commit = "decaf".to_owned();
        for (other, named) in [(run("50"), "--trials: 12 in the file, 50 now"), (other_program, "program takeovers: 1")]
        {
            let error = Results::open(&path, &other).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("--anew"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), before);
        }
        assert_eq!(
            Results::open(&path, &other_checkout).unwrap().played_trials("kill"),
            12,
            "the programs are the same"
        );
        let kept = Results::set_aside(&path).unwrap().unwrap();
        assert_eq!(Results::open(&path, &run("50")).unwrap().played_trials("kill"), 0);
        assert_eq!(fs::read(kept).unwrap(), before);
    }

    #[test]
    fn damaged_lines_other_files_and_a_second_run_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut results = Results::open(&path, &run("12")).unwrap();
        play_all(&mut results, "kill", &mut Vec::new());
        assert_eq!(Results::open(&path, &run("12")).unwrap_err(), ResultsError::Busy(path.clone()));
        drop(results);
        let whole = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        let without_a_day = [lines[0], lines[2], lines[3]].join("\n") + "\n";
        let damaged = whole.replacen("\"first_trial\":5", "\"first_trial\":", 1);
        for (text, line) in [(without_a_day, 2), (damaged, 3), ("# notes\n".to_owned(), 1), ("notes".to_owned(), 1)] {
            fs::write(&path, &text).unwrap();
            let error = Results::open(&path, &run("12")).unwrap_err();
            assert!(matches!(error, ResultsError::Damaged(_, found, _) if found == line), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "a refused file is not changed");
        }
    }
}
