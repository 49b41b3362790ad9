//! What one run is: load, feed and settings.

use std::fmt;

/// One point of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Input packets per second on each line, over all channels.
    pub(super) packets_per_s: u64,
    pub(super) burst: u64,
    pub(super) messages_per_packet: usize,
    pub(super) lines: usize,
    pub(super) skew_us: u64,
    pub(super) threads: usize,
    pub(super) channels: usize,
    pub(super) log_readers: usize,
    pub(super) election: Election,
    pub(super) latency_log: LatencyLog,
}

impl Case {
    /// One of the many, whose values options replace.
    pub(super) const EXAMPLE: Self = Self {
        packets_per_s: 10_000,
        burst: 1,
        messages_per_packet: 3,
        lines: 1,
        skew_us: 0,
        threads: 1,
        channels: 1,
        log_readers: 0,
        election: Election::None,
        latency_log: LatencyLog::Off,
    };
}

/// What keeps the fence open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Election {
    /// No election: the fence is open from the start.
    None,
    /// A lease in a file, renewed every 20 ms.
    File,
}

/// Whether the gateway writes latency logs. It records stages in memory in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LatencyLog {
    On,
    Off,
}

/// What asks the gateway's admin listener during the run, once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum AdminUse {
    /// Nobody; the listener is open.
    None,
    /// A monitoring system: `/metrics`.
    Scrape,
    /// An open page: `/status.json`.
    Page,
}

impl AdminUse {
    /// The path that is asked for.
    pub(super) fn path(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Scrape => Some("/metrics"),
            Self::Page => Some("/status.json"),
        }
    }

    /// What distinguishes the name of a gateway that is asked.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Scrape => "-scrape",
            Self::Page => "-page",
        }
    }

    /// Index of the same gateway, not asked by anybody, if this one is asked.
    pub(super) fn unasked(names: &[String], subject: usize) -> Option<usize> {
        let name = [Self::Scrape, Self::Page].iter().find_map(|admin| names[subject].strip_suffix(admin.suffix()))?;
        names.iter().position(|other| other == name)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s, {}", self.packets_per_s, Setting(self))
    }
}

/// A case without its rate.
pub(super) struct Setting<'a>(pub(super) &'a Case);

impl fmt::Display for Setting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { burst, messages_per_packet, lines, threads, channels, log_readers, .. } = self.0;
        match burst {
            1 => write!(f, "one by one")?,
            burst => write!(f, "bursts of {burst}")?,
        }
        write!(f, ", {messages_per_packet} messages a packet")?;
        if *lines > 1 {
            write!(f, ", {lines} lines {} us apart", self.0.skew_us)?;
        }
        if *threads > 1 {
            write!(f, ", {threads} threads")?;
        }
        if *channels > 1 {
            write!(f, ", {channels} channels")?;
        }
        if *log_readers > 0 {
            write!(f, ", {log_readers} log readers")?;
        }
        if self.0.election == Election::File {
            write!(f, ", fence renewed")?;
        }
        if self.0.latency_log == LatencyLog::On {
            write!(f, ", latency log")?;
        }
        Ok(())
    }
}
