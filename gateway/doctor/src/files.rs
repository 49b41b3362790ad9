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

    /// Number of the process that runs `mdgw run` with that configuration, or of the only one that runs `mdgw run` at all.
    pub(crate) fn gateway(&self, config: Option<&str>) -> Option<String> {
        let arguments = |number: &str| self.text(&format!("/proc/{number}/cmdline")).unwrap_or_default();
        let gateways: Vec<_> = self
            .process_numbers()
            .ok()?
            .filter(|number| {
                let arguments = arguments(number);
                let mut arguments = arguments.split('\0');
                let program = arguments.next().unwrap_or_default();
                program.rsplit('/').next() == Some("mdgw") && arguments.next() == Some("run")
            })
            .collect();
        let has_config = |number: &&String| {
            config.is_some_and(|config| arguments(number).split('\0').any(|argument| argument == config))
        };
        match &gateways[..] {
            [only] => Some(only.clone()),
            several => several.iter().find(has_config).cloned(),
        }
    }

    /// Whether this is a container, which does not see the processes of its host.
    pub(crate) fn is_container(&self) -> bool {
        ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"].iter().any(|path| self.exists(path))
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
