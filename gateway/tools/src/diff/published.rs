//! Published output: from a capture, or from the publication log.

use std::{collections::VecDeque, path::Path};

use mdgw_captures::capture_file::{CaptureError, CaptureFile, OpenOptions};
use mdgw_feeds::{
    drop_reason::DropReason,
    frame::{FrameFlags, FrameHeader, FrameKind},
    identity::Session,
    published::packet::{Frames, parse_packet},
};
use mdgw_publog::Reader;

use super::{
    DiffError,
    compare::{Item, ItemName, Side},
    dbn_records::explain_records,
};

/// A capture of published packets, of one line or several.
#[derive(Debug)]
pub(super) struct PublishedCapture {
    file: CaptureFile,
    queue: VecDeque<Item>,
    damage: Option<CaptureError>,
    damaged_packets: u64,
}

/// A publication log.
#[derive(Debug)]
pub(super) struct PublishedLog {
    reader: Reader,
    channel: u16,
    queue: VecDeque<Item>,
}

impl PublishedCapture {
    pub(super) fn open(path: &Path) -> Result<Self, CaptureError> {
        let file = CaptureFile::open(path, &OpenOptions::default())?;
        Ok(Self { file, queue: VecDeque::new(), damage: None, damaged_packets: 0 })
    }
}

impl Side for PublishedCapture {
    fn next(&mut self) -> Result<Option<Item>, DiffError> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Ok(Some(item));
            }
            let datagram = match self.file.next_datagram() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return Ok(None),
                Err(damage) => {
                    self.damage = Some(damage);
                    return Ok(None);
                }
            };
            match parse_packet(datagram.payload) {
                Ok(packet) => {
                    let session = packet.meta.session.to_bytes();
                    enqueue(&mut self.queue, packet.meta.channel.0, session, packet.frames(), datagram.frame);
                }
                // Requests and other traffic.
                Err(DropReason::HeaderTruncated | DropReason::ProtocolMismatch) => {}
                Err(_) => self.damaged_packets += 1,
            }
        }
    }

    fn name(&self, name: &ItemName) -> String {
        name_of(name)
    }

    fn stream(&self, name: &ItemName) -> String {
        stream_of(name)
    }

    fn place(&self, place: u64) -> String {
        format!("in frame {place}")
    }

    fn may_repeat(&self) -> bool {
        true
    }

    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
        explain(a, b)
    }

    fn damages(&self) -> Vec<String> {
        let path = self.file.path().display();
        let cut = self.damage.iter().map(|damage| format!("{damage}: {}", damage.fault));
        let packets = (self.damaged_packets > 0)
            .then(|| format!("{path}: {} published packets are damaged", self.damaged_packets));
        cut.chain(packets).collect()
    }

    fn file_bytes_read(&self) -> u64 {
        self.file.file_bytes_read()
    }
}

impl PublishedLog {
    pub(super) fn open(path: &Path) -> Result<Self, DiffError> {
        let channel = Reader::channel_of(path)?.ok_or_else(|| DiffError::NoLog { path: path.to_owned() })?;
        Ok(Self { reader: Reader::open(path, channel)?, channel, queue: VecDeque::new() })
    }
}

impl Side for PublishedLog {
    fn next(&mut self) -> Result<Option<Item>, DiffError> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Ok(Some(item));
            }
            let Some(entry) = self.reader.next() else { return Ok(None) };
            enqueue(&mut self.queue, self.channel, entry.session, Frames::of_body(entry.payload), entry.number);
        }
    }

    fn name(&self, name: &ItemName) -> String {
        name_of(name)
    }

    fn stream(&self, name: &ItemName) -> String {
        stream_of(name)
    }

    fn place(&self, place: u64) -> String {
        format!("in entry {place}")
    }

    fn may_repeat(&self) -> bool {
        true
    }

    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
        explain(a, b)
    }

    fn damages(&self) -> Vec<String> {
        let lost = self.reader.lost_entries();
        (lost > 0).then(|| format!("log of channel {}: {lost} entries missing", self.channel)).into_iter().collect()
    }

    fn file_bytes_read(&self) -> u64 {
        0
    }
}

pub(super) fn is_published(payload: &[u8]) -> bool {
    parse_packet(payload).is_ok()
}

/// Compared are messages and gaps. States belong to the gateway, and snapshots may be published at any time.
fn enqueue(queue: &mut VecDeque<Item>, channel: u16, session: [u8; Session::BYTES], frames: Frames<'_>, place: u64) {
    for (header, body) in frames {
        if header.kind != FrameKind::Message as u8 && header.kind != FrameKind::Gap as u8 {
            continue;
        }
        let stream = (u64::from(channel), u128::from_le_bytes(session));
        let index = u64::from(header.kind) << 16 | u64::from(header.part.get());
        let name = ItemName { stream, sequence: header.sequence.get(), index };
        queue.push_back(Item { name, content: content_of(header, body), local: header.ts_recv.get(), place });
    }
}

/// The records and part flags of a frame. The suspect flag may differ between gateways, and receive times are local.
fn content_of(header: &FrameHeader, body: &[u8]) -> Vec<u8> {
    let cut = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    let mut content = Vec::with_capacity(body.len() + HEAD_BYTES);
    content.push(header.kind);
    content.push(header.flags & cut.0);
    content.extend_from_slice(body);
    content
}

fn explain(a: &[u8], b: &[u8]) -> Option<String> {
    let (head_a, body_a) = a.split_at_checked(HEAD_BYTES)?;
    let (head_b, body_b) = b.split_at_checked(HEAD_BYTES)?;
    if head_a != head_b {
        return Some("split into different parts".to_owned());
    }
    if head_a.first() == Some(&(FrameKind::Gap as u8)) {
        return Some("gap of a different length".to_owned());
    }
    explain_records(body_a, body_b)
}

fn name_of(name: &ItemName) -> String {
    let (kind, part) = (name.index >> 16, name.index & 0xffff);
    let what = if kind == FrameKind::Gap as u64 { ", gap" } else { "" };
    let part = if part > 0 { format!(", part {part}") } else { String::new() };
    format!("{}, sequence {}{what}{part}", stream_of(name), name.sequence)
}

fn stream_of(name: &ItemName) -> String {
    let session = Session::from_bytes(name.stream.1.to_le_bytes());
    let session = session.map_or_else(|| "invalid session".to_owned(), |session| session.to_string());
    format!("channel {}, {session}", name.stream.0)
}

/// Frame kind and part flags.
const HEAD_BYTES: usize = 2;
