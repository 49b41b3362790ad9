//! What an examination found.

use serde::Serialize;

/// How an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As a gateway needs it, or of no importance to this configuration.
    Ok,
    /// It could not be read, or depends on a configuration that was not given.
    Unknown,
    /// The gateway runs, but slower or less safely than it could.
    Warn,
    /// The gateway does not run, or loses packets or its pair.
    Fail,
}

impl Status {
    /// As printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// Part of the host that an item belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Kernel and processor cores.
    Cores,
    /// Memory and the limits of a process.
    Memory,
    /// Network cards and the kernel's network stack.
    Network,
    /// Clocks and their synchronisation.
    Clock,
    /// Disks, store and peers, and the configuration itself.
    Services,
}

impl Group {
    /// As printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Clock => "clock",
            Self::Services => "services",
        }
    }
}

/// One thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Part of the host.
    pub group: Group,
    /// What was examined; a stable name.
    pub name: &'static str,
    /// Interface, address or folder, where there are several.
    pub subject: Option<String>,
    /// How it is.
    pub status: Status,
    /// What was read, or why nothing could be read.
    pub read: String,
    /// What happens if it is not as it should be.
    pub why: &'static str,
    /// Commands that mend it, to be run as root; empty if nothing is to be mended.
    pub commands: Vec<String>,
}

/// An item without its result.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    group: Group,
    name: &'static str,
    subject: Option<String>,
    why: &'static str,
}

impl Check {
    pub(crate) fn new(group: Group, name: &'static str, why: &'static str) -> Self {
        Self { group, name, subject: None, why }
    }

    pub(crate) fn of(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    pub(crate) fn ok(self, read: impl Into<String>) -> Item {
        self.item(Status::Ok, read, Vec::new())
    }

    pub(crate) fn unknown(self, reason: impl Into<String>) -> Item {
        self.item(Status::Unknown, reason, Vec::new())
    }

    pub(crate) fn warn<const N: usize>(self, read: impl Into<String>, commands: [String; N]) -> Item {
        self.item(Status::Warn, read, commands.into())
    }

    pub(crate) fn fail<const N: usize>(self, read: impl Into<String>, commands: [String; N]) -> Item {
        self.item(Status::Fail, read, commands.into())
    }

    /// A warning with commands of which each mends it.
    pub(crate) fn warn_any(self, read: impl Into<String>, commands: impl Iterator<Item = String>) -> Item {
        self.item(Status::Warn, read, commands.collect())
    }

    /// `Ok`, or a warning with one command.
    pub(crate) fn ok_if(self, is_ok: bool, read: impl Into<String>, command: impl FnOnce() -> String) -> Item {
        if is_ok { self.ok(read) } else { self.warn(read, [command()]) }
    }

    fn item(self, status: Status, read: impl Into<String>, commands: Vec<String>) -> Item {
        let Self { group, name, subject, why } = self;
        Item { group, name, subject, status, read: read.into(), why, commands }
    }
}

/// Number of items by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Items as they should be.
    pub ok: usize,
    /// Items that make the gateway slower or less safe.
    pub warn: usize,
    /// Items that keep the gateway from working.
    pub fail: usize,
    /// Items that could not be read.
    pub unknown: usize,
}

/// All items of an examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst of all items; an unknown one counts as `Ok`.
    pub worst: Status,
    /// Number of items by status.
    pub counts: Counts,
    /// In the order of the groups.
    pub items: Vec<Item>,
}

impl Report {
    pub(crate) fn new(items: Vec<Item>) -> Self {
        let mut counts = Counts::default();
        for item in &items {
            *match item.status {
                Status::Ok => &mut counts.ok,
                Status::Unknown => &mut counts.unknown,
                Status::Warn => &mut counts.warn,
                Status::Fail => &mut counts.fail,
            } += 1;
        }
        let known = items.iter().map(|item| item.status).filter(|status| *status != Status::Unknown);
        Self { worst: known.max().unwrap_or(Status::Ok), counts, items }
    }
}
