//! From the file as written to the configuration in force. The resolver records each problem and continues with the
//! next key.

mod admin;
mod backend;
mod channels;
mod election;
mod journal;
mod listeners;
mod live;
mod nats;
mod outputs;
mod pools;

use std::{
    fs::File,
    io::{self, Read as _},
    net::SocketAddrV4,
    ops::Range,
    path::Path,
    str::FromStr,
};

use toml::Spanned;

use super::{
    error::{ConfigError, Problem},
    file::{self, FileValue},
    limits::{self, Bound},
    resolved::{GatewayConfig, Interface, LatencyConfig, LogConfig, LogFormat, LogLevel, Resolved},
    source::{Source, nearest},
};

/// Most bytes of a configuration file.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

impl Resolved {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// When it cannot be read, or with all its problems.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        // A device would have no end.
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text));
        if read.map_err(failed)? as u64 > CONFIG_BYTES_MAX {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        Self::from_text(path, &text)
    }

    /// The commented example, `ops/config/mdgw.toml`.
    #[cfg(test)]
    pub(super) fn shipped() -> Self {
        let text = include_str!("../../../../ops/config/mdgw.toml");
        Self::from_text(Path::new("mdgw.toml"), text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Checks a configuration that is already in memory; `path` is its name in messages.
    ///
    /// # Errors
    /// All problems.
    pub fn from_text(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source { path, text };
        let file = source.parse().map_err(|problem| ConfigError::Invalid(vec![problem]))?;
        let mut resolver = Resolver { source, problems: Vec::new(), warnings: Vec::new() };
        let resolved = resolver.file(&file);
        let Resolver { mut problems, .. } = resolver;
        if problems.is_empty() {
            return Ok(resolved);
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Err(ConfigError::Invalid(problems))
    }
}

/// Turns written values into checked ones. For a wrong value it records a problem and continues with the default, so
/// that the rest can be checked too. The result is used only if there is no problem.
struct Resolver<'a> {
    source: Source<'a>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Resolver<'_> {
    fn file(&mut self, file: &file::File) -> Resolved {
        let gateway = self.gateway(&file.gateway);
        let pools = self.pools(file);
        let channels = self.channels(file, &pools);
        let outputs = self.outputs(file, &channels);
        let retransmission = file.retransmission.as_ref().map(|written| self.retransmission(written));
        let admin = file.admin.as_ref().map(|written| self.admin(written));
        let live = file.live.as_ref().map(|written| self.live(written));
        let journal = file.journal.as_ref().map(|written| self.journal(written));
        let nats = file.nats.as_ref().map(|written| self.nats(written, &channels));
        let mirror_admin = file
            .mirror
            .as_ref()
            .and_then(|written| self.admin_of_program(&written.get_ref().admin_listen, &written.span(), "mirror"));
        if file.election.is_some() && file.gateway.get_ref().node.is_none() {
            self.warnings.push("gateway.node is not set: this gateway takes part in the election as node 0".to_owned());
        }
        let election = file.election.as_ref().and_then(|written| self.election(written, &gateway, &pools));
        let none = file::Latency::default();
        let latency = self.latency(file.latency.as_ref().unwrap_or(&none));
        let none = file::Log::default();
        let written = file.log.as_ref().unwrap_or(&none);
        let log = LogConfig {
            level: self.one_of(written.level.as_ref(), LogLevel::NAMES).unwrap_or_default(),
            format: self.one_of(written.format.as_ref(), LogFormat::NAMES).unwrap_or_default(),
            alarm_interval_ms: self.number(&written.alarm_interval_ms, limits::ALARM_INTERVAL_MS),
        };
        let path = self.source.path.to_owned();
        let mut resolved = Resolved {
            path,
            gateway,
            pools,
            channels,
            outputs,
            retransmission,
            live,
            journal,
            nats,
            mirror_admin,
            admin,
            election,
            latency,
            log,
            warnings: Vec::new(),
        };
        self.check_listeners(file, &resolved);
        resolved.warnings = std::mem::take(&mut self.warnings);
        resolved
    }

    fn gateway(&mut self, written: &Spanned<file::Gateway>) -> GatewayConfig {
        let gateway = written.get_ref();
        let segment_bytes: u64 = self.number(&gateway.segment_bytes, limits::SEGMENT_BYTES);
        let retention_bytes: u64 = self.number(&gateway.retention_bytes, limits::RETENTION_BYTES);
        let retention_seconds: u64 = self.number(&gateway.retention_seconds, limits::RETENTION_SECONDS);
        let span = first_span([&gateway.retention_bytes, &gateway.segment_bytes]).unwrap_or_else(|| written.span());
        if retention_bytes < 2 * segment_bytes || !retention_bytes.is_multiple_of(segment_bytes) {
            self.add_problem(
                &span,
                format!(
                    "retention_bytes = {retention_bytes}: must be at least 2 and a whole number of segments; \
                     it is {:.2} segments of {segment_bytes} bytes",
                    ratio(retention_bytes, segment_bytes)
                ),
            );
        }
        let state_file = self.required(&gateway.state_file, &written.span(), "state_file");
        GatewayConfig {
            node: self.number(&gateway.node, limits::NODE),
            state_file: state_file.map(Into::into).unwrap_or_default(),
            log_dir: text(&gateway.log_dir).unwrap_or("/dev/shm/mdgw").into(),
            log_group: text(&gateway.log_group).map(Into::into),
            audit_file: text(&gateway.audit_file).map(Into::into),
            control_socket: text(&gateway.control_socket).map(Into::into),
            segment_bytes,
            retention_bytes,
            retention_ns: (retention_seconds > 0).then_some(retention_seconds * NS_PER_SECOND),
            lock_memory: gateway.lock_memory.as_ref().is_none_or(|wanted| *wanted.get_ref()),
        }
    }

    fn latency(&mut self, latency: &file::Latency) -> LatencyConfig {
        LatencyConfig {
            directory: text(&latency.directory).map(Into::into),
            interval_ns: self.number::<u64>(&latency.interval_ms, limits::LATENCY_INTERVAL_MS) * NS_PER_MS,
            significant_digits: self.number(&latency.significant_digits, limits::SIGNIFICANT_DIGITS),
        }
    }

    fn add_problem(&mut self, span: &Range<usize>, message: impl AsRef<str>) {
        self.problems.push(self.source.problem(span, message.as_ref()));
    }

    /// A number within its bounds, or its default.
    fn number<T: TryFrom<i64>>(&mut self, written: &FileValue<i64>, bound: Bound) -> T {
        let value = match written {
            None => bound.default,
            Some(value) if (bound.min..=bound.max).contains(value.get_ref()) => *value.get_ref(),
            Some(value) => {
                let Bound { min, max, default, unit } = bound;
                let message = format!("{}: must be between {min} and {max} ({unit})", value.get_ref());
                self.add_problem(&value.span(), message);
                default
            }
        };
        T::try_from(value).unwrap_or_else(|_| unreachable!("every bound fits the type it is resolved to"))
    }

    /// A number without a default; `name` and `table` are for the message when it is missing.
    fn required_number<T: TryFrom<i64>>(
        &mut self,
        written: &FileValue<i64>,
        bound: Bound,
        table: &Range<usize>,
        name: &str,
    ) -> T {
        self.required(written, table, name);
        self.number(written, bound)
    }

    fn required<'w, T>(&mut self, written: &'w FileValue<T>, table: &Range<usize>, name: &str) -> Option<&'w T> {
        if written.is_none() {
            self.add_problem(table, format!("`{name}` is missing"));
        }
        written.as_ref().map(Spanned::get_ref)
    }

    /// A text without a default; `name` and `table` are for the message when it is missing.
    fn required_text<'w>(
        &mut self,
        written: &'w FileValue<String>,
        table: &Range<usize>,
        name: &str,
    ) -> Option<&'w Spanned<String>> {
        self.required(written, table, name);
        written.as_ref()
    }

    /// The value that the written name stands for. An unknown name is recorded as a problem.
    fn one_of<T: Copy>(&mut self, written: Option<&Spanned<String>>, names: &[(T, &'static str)]) -> Option<T> {
        let written = written?;
        let found = names.iter().find(|(_, name)| name == written.get_ref());
        if found.is_none() {
            let known: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
            self.unknown(written, &known);
        }
        found.map(|(value, _)| *value)
    }

    fn unknown(&mut self, written: &Spanned<String>, known: &[&str]) {
        let hint =
            nearest(written.get_ref(), known).map_or_else(String::new, |near| format!("did you mean {near:?}? "));
        let known = known.join(", ");
        self.add_problem(&written.span(), format!("{:?}: {hint}must be one of: {known}", written.get_ref()));
    }

    fn parsed<T: FromStr>(&mut self, written: &Spanned<String>, expected: &str) -> Option<T> {
        let parsed = written.get_ref().parse().ok();
        if parsed.is_none() {
            self.add_problem(&written.span(), format!("{:?}: expected {expected}", written.get_ref()));
        }
        parsed
    }

    /// Names are used in keys, tags and file names, so only plain characters are allowed.
    fn check_plain_name(&mut self, written: &Spanned<String>) {
        let name = written.get_ref();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_plain) {
            self.add_problem(
                &written.span(),
                format!("{name:?}: must be 1 to {NAME_BYTES_MAX} letters, digits, - or _"),
            );
        }
    }

    /// An address with a port other than 0.
    fn address(&mut self, written: &FileValue<String>, table: &Range<usize>, name: &str) -> SocketAddrV4 {
        self.required(written, table, name);
        let address = written
            .as_ref()
            .and_then(|text| self.parsed(text, "IPv4 address and port, such as 233.54.12.111:26477"))
            .unwrap_or(UNREADABLE_ADDRESS);
        if let Some(text) = written
            && address != UNREADABLE_ADDRESS
            && (address.port() == 0 || address.ip().is_broadcast())
        {
            self.add_problem(
                &text.span(),
                format!("{:?}: port must be 1 to 65535; broadcast addresses are not allowed", text.get_ref()),
            );
        }
        address
    }

    /// The address of a listener. `owner` is the configuration key of its table, for the warning about an address that is not
    /// one of this host alone.
    fn listen_address(&mut self, written: &FileValue<String>, table: &Range<usize>, owner: &str) -> SocketAddrV4 {
        let address = self.address(written, table, "listen");
        if address != UNREADABLE_ADDRESS && address.ip().is_unspecified() {
            self.warnings.push(format!(
                "{owner}.listen {address}: every network of this host reaches it; name the address of one network"
            ));
        }
        address
    }

    fn interface(&mut self, written: &FileValue<String>, table: &Range<usize>) -> Interface {
        let name = self.required(written, table, "interface").map_or("", String::as_str);
        if let Ok(address) = name.parse() {
            return Interface::Address(address);
        }
        let fits = (1..=INTERFACE_NAME_BYTES_MAX).contains(&name.len())
            && !name.contains(|c: char| c == '/' || c.is_whitespace());
        if let Some(written) = written
            && !fits
        {
            self.add_problem(
                &written.span(),
                format!("{name:?}: expected the name (1 to {INTERFACE_NAME_BYTES_MAX} bytes) or IPv4 address of an interface"),
            );
        }
        Interface::Name(name.to_owned())
    }
}

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u64 = 1_000_000_000;

const NAME_BYTES_MAX: usize = 32;

/// `IFNAMSIZ` less the terminating zero.
const INTERFACE_NAME_BYTES_MAX: usize = 15;

/// Placeholder for an address that could not be parsed.
const UNREADABLE_ADDRESS: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0);

fn text(written: &FileValue<String>) -> Option<&str> {
    written.as_ref().map(|text| text.get_ref().as_str())
}

fn first_span<const N: usize>(written: [&FileValue<i64>; N]) -> Option<Range<usize>> {
    written.into_iter().flatten().next().map(Spanned::span)
}

#[allow(clippy::cast_precision_loss, reason = "for a message with two decimals")]
fn ratio(bytes: u64, unit_bytes: u64) -> f64 {
    bytes as f64 / unit_bytes as f64
}

#[cfg(test)]
mod tests;
