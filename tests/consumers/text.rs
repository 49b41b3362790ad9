//! The text form of packets, items and requests, the same in all languages.

use mdgw_feeds::{
    drop_reason::DropReason,
    frame::{FrameHeader, FrameKind, GapBody, StateBody},
    published::{packet::parse_packet, request::ServiceRequest},
};
use mdgw_subscriber::{Item, Output};
use zerocopy::FromBytes as _;

/// Hexadecimal digits; `-` for nothing.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
    if text.is_empty() { "-".to_owned() } else { text }
}

/// The bytes of hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    if text == "-" { Vec::new() } else { text.as_bytes().chunks(2).map(byte).collect() }
}

/// One line for an item.
pub(crate) fn item(output: &Output<'_>) -> String {
    let channel = output.channel.0;
    let records = |name: &str, header: &FrameHeader, body: &[u8]| {
        let FrameHeader { sequence, ts_recv, ts_in_delta_ns, record_count, flags, .. } = header;
        let body = hex(body);
        format!(
            "{name} channel={channel} sequence={sequence} flags={flags} ts_recv={ts_recv} ts_in_delta={ts_in_delta_ns} \
             records={record_count} body={body}"
        )
    };
    match output.item {
        Item::Session => {
            let session = output.session;
            let (feed, date, restart) = (session.feed as u16, session.date.yyyymmdd(), session.restart);
            format!("session channel={channel} feed={feed} date={date} restart={restart}")
        }
        Item::Message { header, body } => records("message", header, body),
        Item::Definition { header, body } => records("definition", header, body),
        Item::Snapshot { header, body } => records("snapshot", header, body),
        Item::Repeated { header, body } => records("repeated", header, body),
        Item::Books(state) => format!("books channel={channel} state={}", format!("{state:?}").to_lowercase()),
        Item::State(state) => format!("state channel={channel} state={}", state as u8),
        Item::Gap(gap) => format!("gap channel={channel} first={} next={}", gap.first().0, gap.next().0),
        Item::Lost(gap) => format!("lost channel={channel} first={} next={}", gap.first().0, gap.next().0),
        Item::EndOfSession => format!("end channel={channel}"),
    }
}

/// A line for the header of a packet or of a request and one for each frame, or the reason why it is refused.
pub(crate) fn datagram(bytes: &[u8]) -> Vec<String> {
    let described = if bytes.starts_with(b"MDGR") { request(bytes) } else { packet(bytes) };
    described.unwrap_or_else(|reason| vec![format!("> refused {}", reason.name())])
}

fn request(bytes: &[u8]) -> Result<Vec<String>, DropReason> {
    let ServiceRequest { kind, group, channel, session, first, next, nonce } = ServiceRequest::parse(bytes)?;
    let session = session.map_or_else(
        || "feed=0 date=0 restart=0".to_owned(),
        |session| format!("feed={} date={} restart={}", session.feed as u16, session.date.yyyymmdd(), session.restart),
    );
    Ok(vec![format!(
        "> request kind={} group={} channel={} {session} first={} next={} nonce={nonce}",
        kind as u8, group.0, channel.0, first.0, next.0
    )])
}

fn packet(bytes: &[u8]) -> Result<Vec<String>, DropReason> {
    let packet = parse_packet(bytes)?;
    let (meta, session) = (packet.meta, packet.meta.session);
    let mut lines = vec![format!(
        "> packet flags={} tagged={} group={} channel={} epoch={} feed={} date={} restart={} first={} next={} \
         send_time_ns={} frames={}",
        meta.flags.0,
        u8::from(packet.is_tagged),
        meta.group.0,
        meta.channel.0,
        meta.epoch.0,
        session.feed as u16,
        session.date.yyyymmdd(),
        session.restart,
        meta.first.0,
        meta.next.0,
        meta.send_time_ns,
        packet.frame_count
    )];
    for (header, body) in packet.frames() {
        let FrameHeader { sequence, ts_recv, ts_in_delta_ns, record_count, kind, flags, part, .. } = header;
        let content = match FrameKind::from_number(*kind) {
            Some(FrameKind::Gap) => {
                let gap = GapBody::ref_from_bytes(body).unwrap();
                format!("gap_first={} gap_next={}", gap.first, gap.next)
            }
            Some(FrameKind::State) => format!("state={}", StateBody::ref_from_bytes(body).unwrap().state),
            _ => format!("body={}", hex(body)),
        };
        lines.push(format!(
            "> frame kind={kind} sequence={sequence} part={part} flags={flags} ts_recv={ts_recv} \
             ts_in_delta={ts_in_delta_ns} records={record_count} {content}"
        ));
    }
    Ok(lines)
}

/// The value of a setting in a line of `name=value` words.
pub(crate) fn setting<'t>(line: &'t str, name: &str) -> Option<&'t str> {
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// As [`setting`], as a number.
pub(crate) fn number(line: &str, name: &str) -> Option<u64> {
    setting(line, name).map(|value| value.parse().unwrap())
}
