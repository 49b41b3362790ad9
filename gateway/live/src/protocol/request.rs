//! The fields of a client's lines.

use crate::schema::Schemas;

/// What a client says of itself and of the stream that it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRequest {
    /// Answer to the challenge.
    pub auth: String,
    /// The dataset of the session.
    pub dataset: String,
    /// Whether each record carries its send time.
    pub ts_out: bool,
    /// Compression of the binary part.
    pub compression: Compression,
    /// Longest time without a byte from the server, seconds.
    pub heartbeat_interval_s: u32,
    /// Policy of the whole session; `None`: that of its schemas.
    pub slow_reader: Option<SlowReader>,
    /// The client's name for logs, printable.
    pub client: String,
}

/// Compression of the binary part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Plain DBN.
    #[default]
    None,
    /// One Zstandard stream.
    Zstd,
}

/// What happens to a reader that does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReader {
    /// Every record is kept and the client is warned, up to the limit of the queue.
    Warn,
    /// Records are skipped until the reader is current.
    Skip,
}

impl SlowReader {
    /// `warn` or `skip`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Skip => "skip",
        }
    }
}

/// A subscription, from one or several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeRequest {
    /// The client's number of the request, as text.
    pub id: String,
    /// One schema.
    pub schema: Schemas,
    /// Name of the schema.
    pub schema_name: &'static str,
    /// How the symbols are meant.
    pub symbol_type: SymbolType,
    /// Instruments that the request names.
    pub symbols: Symbols,
    /// Replay from this event time on, ns since 1970 UTC; 0: from the oldest. `None`: live only.
    pub start: Option<u64>,
    /// Whether the book's present orders come first.
    pub snapshot: bool,
}

/// The end of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubscribeRequest {
    /// One schema.
    pub schema: Schemas,
    /// Name of the schema.
    pub schema_name: &'static str,
    /// How the symbols are meant.
    pub symbol_type: SymbolType,
    /// Instruments that the request names.
    pub symbols: Symbols,
}

/// How symbols are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SymbolType {
    /// The venue's symbols.
    #[default]
    RawSymbol,
    /// Instrument ids in decimal.
    InstrumentId,
}

/// Instruments of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Every instrument of the dataset.
    All,
    /// These, each once per mention.
    List(Vec<String>),
}

impl Symbols {
    /// Symbols that are named; 0 for every instrument.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::All => 0,
            Self::List(list) => list.len(),
        }
    }
}

/// One line of a request before it is joined with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) id: String,
    pub(super) schema: (Schemas, &'static str),
    pub(super) symbol_type: SymbolType,
    pub(super) symbols: Symbols,
    pub(super) start: Option<u64>,
    pub(super) snapshot: bool,
    pub(super) is_last: bool,
}

/// Heartbeat interval of clients that ask for none, seconds.
const HEARTBEAT_DEFAULT_S: u32 = 30;
/// The clients document 5 to 1,800 seconds. Shorter ones are served, but not shorter than this.
const HEARTBEAT_S: std::ops::RangeInclusive<u32> = 1..=3_600;
/// Longest request number, dataset, client name kept.
const TEXT_BYTES_MAX: usize = 64;
/// Longest symbol: the clients' own limit.
const SYMBOL_BYTES_MAX: usize = 70;

impl AuthRequest {
    /// Reads an authentication line. The error is for the client.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let fields = Fields(line);
        let auth = fields.get("auth").ok_or("auth is missing")?.to_owned();
        let dataset = fields.get("dataset").filter(|dataset| !dataset.is_empty()).ok_or("dataset is missing")?;
        if let Some(encoding) = fields.get("encoding").filter(|encoding| *encoding != "dbn") {
            return Err(format!("Unsupported encoding {}: expected dbn", shown(encoding)));
        }
        let compression = match fields.get("compression") {
            None | Some("" | "none") => Compression::None,
            Some("zstd") => Compression::Zstd,
            Some(other) => return Err(format!("Unknown compression {}: expected none or zstd", shown(other))),
        };
        let slow_reader = match fields.get("slow_reader_behavior") {
            None | Some("") => None,
            Some("warn") => Some(SlowReader::Warn),
            Some("skip" | "drop") => Some(SlowReader::Skip),
            Some(other) => return Err(format!("Unknown slow_reader_behavior {}: expected warn or skip", shown(other))),
        };
        let heartbeat_interval_s = match fields.get("heartbeat_interval_s") {
            None | Some("") => HEARTBEAT_DEFAULT_S,
            Some(text) => {
                let interval = text.parse().ok().filter(|interval| HEARTBEAT_S.contains(interval));
                interval.ok_or_else(|| format!("Invalid heartbeat_interval_s {}", shown(text)))?
            }
        };
        Ok(Self {
            auth,
            dataset: shown(dataset),
            ts_out: flag(fields.get("ts_out")).ok_or("Invalid ts_out: expected 0 or 1")?,
            compression,
            heartbeat_interval_s,
            slow_reader,
            client: shown(fields.get("client").unwrap_or_default()),
        })
    }
}

impl RequestLine {
    /// Reads a line that subscribes or unsubscribes. The error is for the client.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let fields = Fields(line);
        let schema = fields.get("schema").ok_or("schema is missing")?;
        let known = Schemas::NAMES.into_iter().find(|(_, name)| *name == schema);
        let symbols = fields.get("symbols").filter(|symbols| !symbols.is_empty()).ok_or("symbols are missing")?;
        Ok(Self {
            id: shown(fields.get("id").unwrap_or("0")),
            schema: known.ok_or_else(|| format!("Unknown schema {}", shown(schema)))?,
            symbol_type: match fields.get("stype_in") {
                None | Some("" | "raw_symbol") => SymbolType::RawSymbol,
                Some("instrument_id") => SymbolType::InstrumentId,
                Some(other) => {
                    return Err(format!("Unsupported stype_in {}: expected raw_symbol or instrument_id", shown(other)));
                }
            },
            symbols: parse_symbols(symbols)?,
            start: match fields.get("start") {
                None | Some("") => None,
                Some(text) => Some(parse_time(text).ok_or_else(|| format!("Invalid start {}", shown(text)))?),
            },
            snapshot: flag(fields.get("snapshot")).ok_or("Invalid snapshot: expected 0 or 1")?,
            is_last: is_last_line(line),
        })
    }
}

/// Whether a line is the last one of its request.
pub(super) fn is_last_line(line: &str) -> bool {
    Fields(line).get("is_last").is_none_or(|text| text != "0")
}

fn parse_symbols(text: &str) -> Result<Symbols, String> {
    if text == "ALL_SYMBOLS" {
        return Ok(Symbols::All);
    }
    let mut list = Vec::new();
    for symbol in text.split(',').map(str::trim).filter(|symbol| !symbol.is_empty()) {
        let is_possible =
            symbol.len() <= SYMBOL_BYTES_MAX && symbol.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        // No instrument has an impossible symbol: it is reported as not resolved, and the others are served.
        list.push(if is_possible { symbol.to_owned() } else { format!("{}...", shown(symbol)) });
    }
    if list.is_empty() { Err("symbols are missing".to_owned()) } else { Ok(Symbols::List(list)) }
}

/// Nanoseconds since 1970 UTC, or ISO 8601: `2024-03-01`, `2024-03-01T14:30:00`, with a fraction, with `Z`, with an offset such as `-05:00`, or
/// without either: UTC.
fn parse_time(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let (time, offset) = time.find(['+', '-']).map_or((time, "+00:00"), |at| time.split_at(at));
    let date: mdgw_wire::time::TradingDate = date.parse().ok()?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let two = |part: Option<&str>| part.filter(|part| part.len() == 2)?.parse::<u64>().ok();
    let mut parts = clock.split(':');
    let (hours, minutes) = (two(parts.next())?, two(parts.next())?);
    let seconds = parts.next().map_or(Some(0), |part| two(Some(part)))?;
    let is_digits = fraction.len() <= 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if parts.next().is_some() || hours > 23 || minutes > 59 || seconds > 59 || !is_digits {
        return None;
    }
    let ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    let local = date.midnight_utc().0.checked_add(((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + ns)?;
    let (sign, ahead) = offset.split_at(1);
    let (ahead_hours, ahead_minutes) = ahead.split_once(':')?;
    let (ahead_hours, ahead_minutes) = (two(Some(ahead_hours))?, two(Some(ahead_minutes))?);
    if ahead_hours > 23 || ahead_minutes > 59 {
        return None;
    }
    let ahead_ns = (ahead_hours * 60 + ahead_minutes) * 60 * 1_000_000_000;
    if sign == "+" { local.checked_sub(ahead_ns) } else { local.checked_add(ahead_ns) }
}

fn flag(text: Option<&str>) -> Option<bool> {
    match text {
        None | Some("" | "0" | "false") => Some(false),
        Some("1" | "true") => Some(true),
        Some(_) => None,
    }
}

/// Text of a client for logs and answers: printable, without the protocol's separators, bounded.
fn shown(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii() && !c.is_ascii_control() && *c != '|').take(TEXT_BYTES_MAX).collect()
}

/// The fields of a line: `name=value`, separated by `|`. The first of equal names counts.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .split('|')
            .filter_map(|field| field.split_once('='))
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_nanoseconds_or_iso_8601() {
        let second = 1_000_000_000;
        for (text, expected) in [
            ("0", Some(0)),
            ("1573570800000000001", Some(1_573_570_800_000_000_001)),
            ("1970-01-02", Some(86_400 * second)),
            ("1970-01-01T00:01:02", Some(62 * second)),
            ("1970-01-01T00:01:02Z", Some(62 * second)),
            ("1970-01-01 00:01:02.5", Some(62 * second + second / 2)),
            ("1970-01-01T00:01:02.000000001+00:00", Some(62 * second + 1)),
            ("1970-01-01T00:01-05:00", Some((5 * 3_600 + 60) * second)),
            ("1970-01-02T01:00:00.25+01:30", Some((86_400 - 1_800) * second + second / 4)),
            ("1970-01-01T00:30+01:00", None),
            ("1970-01-01T00:30+1:00", None),
            ("1970-01-01T00:30-05", None),
            ("1970-01-01T24:00:00", None),
            ("1970-01-01T00:60", None),
            ("1970-13-01", None),
            ("now", None),
            ("-1", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(parse_time(text), expected, "{text}");
        }
    }
}
