//! Files of the kernel below a root folder: bounded, never blocking.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use crate::core_set::CoreSet;

/// Reads below a root folder. Errors are texts for a reader: the file, then the cause.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

/// The longest file is `/proc/interrupts` of a host with many cores. The rest of a longer one is not read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// More entries of a folder are not read.
const ENTRIES_MAX: usize = 65_536;

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Content of a file, its ends trimmed.
    pub(crate) fn text(&self, path: &str) -> Result<String, String> {
        let mut bytes = Vec::new();
        // Without waiting for a writer, if the file is a pipe.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(self.path(path));
        let read = opened.and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) => Err(format!("{path}: {}", cause(&error))),
        }
    }

    pub(crate) fn number(&self, path: &str) -> Result<i64, String> {
        let text = self.text(path)?;
        text.parse().map_err(|_| format!("{path}: not a number: {}", shortened(&text)))
    }

    pub(crate) fn cores(&self, path: &str) -> Result<CoreSet, String> {
        let text = self.text(path)?;
        CoreSet::parse(&text).ok_or_else(|| format!("{path}: not a list of cores: {}", shortened(&text)))
    }

    /// Names in a folder, in order.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, String> {
        let entries = fs::read_dir(self.path(path)).map_err(|error| format!("{path}: {}", cause(&error)))?;
        let names = entries.take(ENTRIES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names of all processes that can be seen.
    pub(crate) fn processes(&self) -> Result<Vec<String>, String> {
        Ok(self.process_numbers()?.filter_map(|number| self.text(&format!("/proc/{number}/comm")).ok()).collect())
    }

    fn process_numbers(&self) -> Result<impl Iterator<Item = String>, String> {
        let names = self.names("/proc")?;
        Ok(names.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())))
    }

    /// Number of the process that runs `mdgw run` with that configuration; without a configuration, of the only gateway.
    pub(crate) fn gateway(&self, config: Option<&str>) -> Option<String> {
        let arguments = |number: &str| self.text(&format!("/proc/{number}/cmdline")).unwrap_or_default();
        let mut gateways = self.process_numbers().ok()?.filter(|number| {
            let arguments = arguments(number);
            let mut arguments = arguments.split('\0');
            let program = arguments.next().unwrap_or_default();
            program.rsplit('/').next() == Some("mdgw") && arguments.next() == Some("run")
        });
        match config {
            Some(config) => gateways.find(|number| {
                arguments(number).split('\0').skip(2).any(|argument| self.is_file_of(number, argument, config))
            }),
            None => gateways.next().filter(|_| gateways.next().is_none()),
        }
    }

    /// Whether the argument of a process names that file: as it was written, or the same path from the process's folder.
    fn is_file_of(&self, process: &str, argument: &str, config: &str) -> bool {
        let same_path = || {
            // Only the process's user may read it; an absolute path does without.
            let folder = fs::read_link(self.path(&format!("/proc/{process}/cwd"))).unwrap_or_default();
            let named = self.path(folder.join(argument).to_str()?);
            Some(fs::canonicalize(named).ok()? == fs::canonicalize(config).ok()?)
        };
        argument == config || !argument.is_empty() && same_path().unwrap_or(false)
    }

    /// Whether a path, as a file of the host has it, names that file.
    pub(crate) fn is_same_file(&self, path: &str, file: &str) -> bool {
        let same_path = || Some(fs::canonicalize(self.path(path)).ok()? == fs::canonicalize(file).ok()?);
        path == file || path.starts_with('/') && same_path().unwrap_or(false)
    }

    /// Whether the processes of the host can be seen. Not so in a container, whatever runs it, and where `/proc` hides the
    /// processes of other users: the kernel's own process 2 is there on every host, and in no namespace of a container.
    pub(crate) fn shows_processes_of_host(&self) -> bool {
        self.text("/proc/2/comm").is_ok_and(|name| name == "kthreadd")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// An error without its number.
pub(crate) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The begin of a text, for a message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(40).filter(|letter| !letter.is_control()).collect()
}
