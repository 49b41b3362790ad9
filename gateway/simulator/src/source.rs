//! Sources of an exchange's packets.

use std::{path::PathBuf, sync::Arc};

use mdgw_captures::capture_file::{CaptureError, CaptureFile, OpenOptions};
use mdgw_feeds::transport::{
    DetectedProtocol, PacketKind, Transport, detect_protocol,
    iextp::{self, SegmentPosition, StreamIdentity},
    moldudp64::{self, MoldUdp64},
};
use mdgw_wire::{
    identity::Sequence,
    time::{TradingDate, UnixNs},
};
use zerocopy::FromBytes;

use super::itch_generator::{ItchDay, ItchGenerator, ItchPackets};

/// Source of the packets.
#[derive(Clone, Debug)]
pub enum FeedSource {
    /// A capture or a day file; every datagram in it belongs to the feed.
    Capture {
        /// Path of the file.
        path: PathBuf,
        /// Trading date of a day file without a date in its name.
        date: Option<TradingDate>,
    },
    /// A synthetic Nasdaq session.
    Itch(ItchDay),
}

/// An open capture or synthetic session, read packet by packet.
#[derive(Debug)]
pub(super) enum Source {
    Capture { file: Box<CaptureFile>, last: Option<FeedPosition> },
    Itch { packets: Box<ItchPackets>, buffer: Vec<u8> },
}

/// One packet as it leaves the exchange.
#[derive(Clone, Debug)]
pub(super) struct SourcePacket {
    pub(super) time_ns: u64,
    pub(super) message_count: u64,
    pub(super) bytes: Arc<[u8]>,
}

/// Position after the last packet, for the heartbeats that follow.
#[derive(Clone, Copy, Debug)]
pub(super) enum FeedPosition {
    Mold { session: moldudp64::MoldSession, next: Sequence },
    Iex { stream: StreamIdentity, position: SegmentPosition },
}

/// Error that ended the source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The capture can't be opened or read further.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The thread that sends the packets panicked.
    #[error("the simulator's sender thread panicked")]
    Panicked,
}

impl Source {
    pub(super) fn open(feed_source: &FeedSource) -> Result<Self, SourceError> {
        Ok(match feed_source {
            FeedSource::Capture { path, date } => {
                let file = CaptureFile::open(path, &OpenOptions { date: *date, ..OpenOptions::default() })?;
                Self::Capture { file: Box::new(file), last: None }
            }
            FeedSource::Itch(day) => {
                let packets = ItchPackets::new(ItchGenerator::new(*day), day.session);
                Self::Itch { packets: Box::new(packets), buffer: Vec::new() }
            }
        })
    }

    pub(super) fn next_packet(&mut self) -> Result<Option<SourcePacket>, SourceError> {
        match self {
            Self::Capture { file, last } => {
                let Some(datagram) = file.next_datagram()? else { return Ok(None) };
                let (message_count, position) = count_and_position(datagram.payload);
                *last = position.or(*last);
                Ok(Some(SourcePacket { time_ns: datagram.time_ns, message_count, bytes: datagram.payload.into() }))
            }
            Self::Itch { packets, buffer } => Ok(packets.next_packet(buffer).map(|info| SourcePacket {
                time_ns: info.time_ns,
                message_count: u64::from(info.count),
                bytes: buffer.as_slice().into(),
            })),
        }
    }

    /// Packet to send after the last one: End of Session for a synthetic session, a heartbeat for a capture.
    pub(super) fn end_packet(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self {
            Self::Itch { packets, .. } => packets.write_end_of_session(&mut out),
            Self::Capture { last, .. } => match last.as_mut()? {
                FeedPosition::Mold { session, next } => moldudp64::write_heartbeat(&mut out, *session, *next),
                FeedPosition::Iex { stream, position } => {
                    position.send_time = UnixNs(position.send_time.0 + 1);
                    iextp::write_heartbeat(&mut out, *stream, *position);
                }
            },
        }
        Some(out)
    }
}

/// Number of messages in a datagram, and the position after it.
fn count_and_position(datagram: &[u8]) -> (u64, Option<FeedPosition>) {
    let is_iex = matches!(detect_protocol(datagram), Some(DetectedProtocol::IexTops | DetectedProtocol::IexDeep));
    if is_iex {
        let Ok((header, _)) = iextp::Header::read_from_prefix(datagram) else { return (0, None) };
        let stream = StreamIdentity {
            message_protocol_id: header.message_protocol_id.get(),
            channel_id: header.channel_id.get(),
            session_id: header.session_id.get(),
        };
        let count = u64::from(header.message_count.get());
        let offset = u64::try_from(header.stream_offset.get()).unwrap_or(0);
        let position = SegmentPosition {
            first: Sequence(header.first_message_sequence_number.get()).plus(count),
            stream_offset: offset + u64::from(header.payload_length.get()),
            send_time: UnixNs(header.send_time.get()),
        };
        return (count, Some(FeedPosition::Iex { stream, position }));
    }
    match MoldUdp64::parse(datagram) {
        Ok(packet) if !packet.unsequenced => {
            let session = moldudp64::session_name(packet.session);
            // An End of Session leaves the position where it was: heartbeats announce the end of the last messages.
            let last =
                (packet.kind != PacketKind::EndOfSession).then(|| FeedPosition::Mold { session, next: packet.next() });
            (u64::from(packet.count), last)
        }
        Ok(packet) => (u64::from(packet.count), None),
        Err(_) => (0, None),
    }
}
