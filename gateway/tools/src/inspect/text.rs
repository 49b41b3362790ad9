//! Packets as text: one line for each, its messages below, columns aligned, prices and times formatted.

use std::fmt::{self, Write};

use mdgw_captures::capture_file::CaptureKind;
use mdgw_feeds::{
    drop_reason::DropReason,
    published::{packet::PacketFlags, request::RequestKind},
    time::{TradingDate, UnixNs},
    transport::{DetectedProtocol, PacketKind},
    venue::wire::{FieldList as _, FieldValue, TimeScale},
};

use super::{
    dissect::{Framing, MessageView, PacketView},
    protocol::AnyMessage,
    published::PublishedDatagram,
};

/// Writes packets one after the other, and the date when it changes.
#[derive(Debug)]
pub struct Text {
    paint: Paint,
    date: Option<TradingDate>,
}

impl Text {
    /// `is_coloured`: for a terminal.
    #[must_use]
    pub fn new(is_coloured: bool) -> Self {
        Self { paint: Paint(is_coloured), date: None }
    }

    /// Writes one packet.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn packet(&mut self, packet: &PacketView<'_>, out: &mut impl Write) -> fmt::Result {
        let date = TradingDate::in_utc(UnixNs(packet.datagram.time_ns));
        if self.date.replace(date) != Some(date) {
            writeln!(out, "{}", self.paint.dim(&format!("{date} UTC")))?;
        }
        self.write_packet_line(packet, out)?;
        packet.messages.iter().try_for_each(|message| self.message(message, date, out))
    }

    fn write_packet_line(&self, packet: &PacketView<'_>, out: &mut impl Write) -> fmt::Result {
        let Self { paint, .. } = self;
        let datagram = &packet.datagram;
        write!(out, "{}  {}", paint.bold(&format!("{:>8}", datagram.frame)), ClockNs(datagram.time_ns))?;
        if packet.kind == CaptureKind::Packets {
            write!(out, "  {:<21}", datagram.dst.to_string())?;
        }
        match packet.framing {
            Framing::Packet(protocol, transport) => {
                write!(out, "  {:<9}  {}", protocol_label(protocol), SessionLabel::of(packet))?;
                match transport.kind {
                    PacketKind::Heartbeat => write!(out, "  heartbeat, next {}", transport.first.0)?,
                    PacketKind::EndOfSession => write!(out, "  end of session, next {}", transport.first.0)?,
                    PacketKind::Messages if transport.unsequenced => write!(out, "  unsequenced")?,
                    PacketKind::Messages => {
                        let last = transport.next().0.saturating_sub(1);
                        write!(out, "  {}", transport.first.0)?;
                        if last > transport.first.0 {
                            write!(out, "-{last}")?;
                        }
                    }
                }
            }
            Framing::UnidentifiedMold(transport) => {
                write!(
                    out,
                    "  {:<9}  {}  no messages, next {}",
                    "MoldUDP64",
                    SessionLabel::of(packet),
                    transport.first.0
                )?;
            }
            Framing::Broken(protocol, reason) => {
                write!(
                    out,
                    "  {:<9}  {}",
                    protocol_label(protocol),
                    paint.red(&format!("refused: {}", reason.name()))
                )?;
            }
            Framing::Published(datagram) => {
                write!(out, "  {:<9}  {}  {}", OWN_LABEL, SessionLabel::of(packet), DatagramLabel(datagram))?;
            }
            Framing::BrokenPublished(reason) => {
                write!(out, "  {:<9}  {}", OWN_LABEL, paint.red(&format!("refused: {}", reason.name())))?;
            }
            Framing::Unrecognised => write!(out, "  {}", paint.dim("not a known feed"))?,
        }
        let undecoded = packet.undecoded_bytes();
        if undecoded > 0 {
            write!(out, "  {}", paint.red(&format!("{undecoded} of {} bytes undecoded", datagram.payload.len())))?;
        }
        writeln!(out)
    }

    fn message(&self, view: &MessageView<'_>, date: TradingDate, out: &mut impl Write) -> fmt::Result {
        let Self { paint, .. } = self;
        match view.sequence {
            Some(sequence) => write!(out, "  {:>14}  ", sequence.0)?,
            None => write!(out, "  {:>14}  ", "")?,
        }
        let code = view.bytes.first().copied().unwrap_or(b'?');
        let mut code = if code.is_ascii_graphic() { char::from(code) } else { '?' };
        let message = match view.message {
            Ok(message) => message,
            Err(reason) => return self.refused(code, reason, view.bytes, out),
        };
        if let AnyMessage::Published(item) = message {
            code = item.code();
        }
        write!(out, "{code} {}", paint.cyan(&format!("{:<25}", message.name())))?;
        let symbol = view.symbol.unwrap_or_default();
        write!(out, " {}", paint.yellow(&format!("{:<8}", String::from_utf8_lossy(symbol.as_bytes()))))?;
        let mut rest = String::new();
        let mut outcome = Ok(());
        message.fields(&mut |name, value| {
            let step = match (name, value) {
                ("timestamp", FieldValue::Time { .. }) => write!(out, "  {:<21}", DisplayValue { value, date }),
                (_, FieldValue::Symbol(_)) => Ok(()),
                _ => write!(rest, "  {}{}", paint.dim(&format!("{name}=")), DisplayValue { value, date }),
            };
            outcome = outcome.and(step);
        });
        outcome?;
        writeln!(out, "{rest}")
    }

    fn refused(&self, code: char, reason: DropReason, bytes: &[u8], out: &mut impl Write) -> fmt::Result {
        let what = format!("refused: {}, {} bytes", reason.name(), bytes.len());
        writeln!(out, "{code} {}", self.paint.red(&what))
    }
}

/// The venue's name of a packet's session.
struct SessionLabel(String);

impl SessionLabel {
    fn of(packet: &PacketView<'_>) -> Self {
        let mut heading = String::new();
        packet.header(&mut |name, value| match (name, value) {
            ("session", FieldValue::Text(text)) => heading = String::from_utf8_lossy(text).into_owned(),
            ("channel_id", FieldValue::Number(channel)) => heading = format!("channel {channel}"),
            ("session_id", FieldValue::Number(session)) => heading = format!("{session} {heading}"),
            _ => {}
        });
        Self(heading)
    }
}

impl fmt::Display for SessionLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if self.0.is_empty() { "(no session)" } else { &self.0 })
    }
}

/// A datagram of the output protocol in a few words.
struct DatagramLabel<'a>(PublishedDatagram<'a>);

impl fmt::Display for DatagramLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PublishedDatagram::Request(request) => {
                let kind = match request.kind {
                    RequestKind::Range => "range",
                    RequestKind::Definitions => "definitions",
                    RequestKind::Sessions => "sessions",
                    RequestKind::Epoch => "epoch",
                    RequestKind::Snapshot => "snapshot",
                };
                write!(f, "channel {}  request {kind} [{}, {})", request.channel.0, request.first.0, request.next.0)
            }
            PublishedDatagram::Packet(packet) => {
                let meta = packet.meta;
                let (channel, epoch) = (meta.channel.0, meta.epoch);
                write!(f, "channel {channel}  epoch {} of node {}  ", epoch.count(), epoch.node())?;
                write!(f, "[{}, {})", meta.first.0, meta.next.0)?;
                let names = [
                    (PacketFlags::HEARTBEAT, "heartbeat"),
                    (PacketFlags::RETRANSMISSION, "retransmission"),
                    (PacketFlags::SNAPSHOT, "snapshot"),
                    (PacketFlags::END_OF_SESSION, "end of session"),
                ];
                names
                    .iter()
                    .filter(|(flag, _)| meta.flags.contains(*flag))
                    .try_for_each(|(_, name)| write!(f, "  {name}"))?;
                if packet.is_tagged { write!(f, "  tagged") } else { Ok(()) }
            }
        }
    }
}

/// A field's value as text. `date` is the current day, which is not repeated.
struct DisplayValue<'a> {
    value: FieldValue<'a>,
    date: TradingDate,
}

impl fmt::Display for DisplayValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.value {
            FieldValue::Price { raw, decimals } => decimal(raw, decimals),
            FieldValue::Time { raw, scale } => time(raw, scale, self.date),
            FieldValue::Code(code) if code.is_ascii_graphic() => char::from(code).to_string(),
            FieldValue::Code(b' ') => "-".to_owned(),
            FieldValue::Text(text) if text.iter().all(u8::is_ascii_graphic) && !text.is_empty() => {
                String::from_utf8_lossy(text).into_owned()
            }
            FieldValue::Text(b"") => "-".to_owned(),
            other => other.to_string(),
        };
        f.pad(&text)
    }
}

/// A number with this many decimals.
pub(crate) fn decimal(raw: i128, decimals: u8) -> String {
    let unit = 10_u128.pow(u32::from(decimals));
    let (sign, size) = (if raw < 0 { "-" } else { "" }, raw.unsigned_abs());
    format!("{sign}{}.{:0width$}", size / unit, size % unit, width = usize::from(decimals))
}

/// A venue's time. Times since midnight are New York time.
fn time(raw: i128, scale: TimeScale, date: TradingDate) -> String {
    let Ok(number) = u64::try_from(raw) else { return raw.to_string() };
    let ns = match scale {
        TimeScale::UnixNs | TimeScale::MidnightNs => Some(number),
        TimeScale::UnixS | TimeScale::MidnightS => number.checked_mul(NS_PER_SECOND),
    };
    match (ns, scale) {
        (Some(ns), TimeScale::UnixNs | TimeScale::UnixS) => {
            let day = TradingDate::in_utc(UnixNs(ns));
            let clock = ClockNs(ns);
            if day == date { clock.to_string() } else { format!("{day} {clock}") }
        }
        (Some(ns), TimeScale::MidnightNs | TimeScale::MidnightS) if ns < NS_PER_DAY => format!("{} ET", ClockNs(ns)),
        _ => raw.to_string(),
    }
}

/// Time of day from nanoseconds since midnight.
pub(crate) struct ClockNs(pub(crate) u64);

impl fmt::Display for ClockNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (second, ns) = (self.0 / NS_PER_SECOND % 86_400, self.0 % NS_PER_SECOND);
        write!(f, "{:02}:{:02}:{:02}.{ns:09}", second / 3_600, second / 60 % 60, second % 60)
    }
}

fn protocol_label(protocol: DetectedProtocol) -> &'static str {
    match protocol {
        DetectedProtocol::Itch50 => "ITCH 5.0",
        DetectedProtocol::IexTops => "IEX TOPS",
        DetectedProtocol::IexDeep => "IEX DEEP",
    }
}

/// Colours, if enabled.
#[derive(Clone, Copy, Debug)]
struct Paint(bool);

impl Paint {
    fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }

    fn paint(self, style: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Label of the gateway's own packets.
const OWN_LABEL: &str = "mdgw";

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_DAY: u64 = 86_400 * NS_PER_SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_have_all_their_decimals() {
        for (raw, decimals, text) in [
            (2_027_700, 4, "202.7700"),
            (0, 4, "0.0000"),
            (5, 4, "0.0005"),
            (-15_000, 4, "-1.5000"),
            (123, 8, "0.00000123"),
        ] {
            assert_eq!(decimal(raw, decimals), text);
        }
    }

    #[test]
    fn times_show_the_day_where_it_differs_and_mark_new_york_time() {
        let date = TradingDate::from_yyyymmdd(20_170_425).unwrap();
        let at = 1_493_132_599_996_490_001;
        assert_eq!(time(at, TimeScale::UnixNs, date), "15:03:19.996490001");
        assert_eq!(time(at, TimeScale::UnixNs, TradingDate::default()), "2017-04-25 15:03:19.996490001");
        assert_eq!(time(34_200_000_000_001, TimeScale::MidnightNs, date), "09:30:00.000000001 ET");
        assert_eq!(time(34_200, TimeScale::MidnightS, date), "09:30:00.000000000 ET");
        assert_eq!(time(i128::from(u64::MAX), TimeScale::MidnightNs, date), u64::MAX.to_string());
        assert_eq!(time(-1, TimeScale::UnixNs, date), "-1");
    }
}
