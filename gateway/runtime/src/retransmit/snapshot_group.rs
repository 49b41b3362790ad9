//! Snapshots that are sent unasked: the leader sends them to its output's snapshot group, for receivers that have no path for requests.
//!
//! ```text
//!  round    │ channel 1: image 7, pass 1, pass 2 │ channel 2: image 8, pass 1, pass 2 │ pause      │ channel 1: image 9 …
//!           └── interval ──────────────────────────────────────────────────────────────────────────┘
//! ```
//! The packets are those of an answer about a snapshot, with the tag of a published packet, under the epoch of the fence. The fence is
//! checked before each of them, as for every published packet: a standby sends none. What a gateway sends that was delayed after the
//! check carries the old epoch, and receivers drop it.
//!
//! Suspect books are not sent: no receiver of the group could use them.

use std::{
    io::{self, IoSlice},
    time::Duration,
};

use mdgw_engine::publish::packet_header;
use mdgw_feeds::{
    identity::{ChannelId, GroupId},
    published::{
        packet::{PacketFlags, count_frames},
        tag::TagUse,
    },
    time::MonoNs,
};
use mdgw_publog::{Entry, Position};
use mdgw_sys::{
    alarm::Alarm,
    batch::Output,
    clock::{mono_now, unix_now},
};
use mdgw_telemetry::{
    counter_block,
    counters::{CounterWriter, Registry},
};
use socket2::{SockAddr, SockRef};

use super::{ServedChannel, snapshots::Image};
use crate::config::resolved::OutputSnapshots;

counter_block! {
    /// Snapshots of one channel that were sent to its snapshot group; the snapshot thread counts.
    pub(crate) struct SnapshotsSent, key SnapshotSent {
        snapshot_group_images: Counter, None, "snapshots sent to the snapshot group, in all their passes";
        snapshot_group_chunks: Counter, Packets, "chunks sent to the snapshot group; each pass counts";
        snapshot_group_bytes: Counter, Bytes, "bytes of these chunks, headers included";
        snapshot_group_suspect: Counter, None, "snapshots not sent to the snapshot group since their books are suspect";
        snapshot_group_early: Counter, None, "rounds of the snapshot group without the channel, since the snapshot thread had not read its log to the end";
        snapshot_group_cut: Counter, None, "snapshots sent to the snapshot group in part, since the fence closed or the kernel took no more";
        snapshot_group_refused: Counter, Packets, "chunks that the kernel refused; they are tried again";
    }
}

/// Sends images of an output's channels, one after the other. Owned by the snapshot thread.
#[derive(Debug)]
pub(crate) struct SnapshotGroup {
    groups: Vec<GroupId>,
    output: Output,
    interval_ns: u64,
    passes: u32,
    channels: Vec<SentChannel>,
    pace: Pace,
    /// Index of the channel that is next in the round; `None`: between two rounds.
    next_channel: Option<usize>,
    next_round: MonoNs,
    sending: Option<Sending>,
}

#[derive(Debug)]
struct SentChannel {
    served: ServedChannel,
    counts: SnapshotsSent,
    counters: CounterWriter<SnapshotsSent>,
    /// The kernel refused the last image's packets until the image was given up.
    is_failing: bool,
}

/// An image on its way.
#[derive(Debug)]
struct Sending {
    channel: ChannelId,
    image: Image,
    pass: u32,
    chunk: u32,
    /// Since when the kernel takes nothing.
    refused_since: Option<MonoNs>,
}

/// What there is of a channel.
#[derive(Debug)]
pub(super) enum Taken {
    Image(Image),
    /// The log was not read to its end, or nothing is in it.
    Early,
}

impl SnapshotGroup {
    /// Sends by `output` the images of channels of these groups.
    pub(crate) fn new(config: &OutputSnapshots, groups: Vec<GroupId>, output: Output) -> Self {
        Self {
            groups,
            output,
            interval_ns: config.interval_ns,
            passes: config.passes,
            channels: Vec::new(),
            pace: Pace::new(config.bytes_per_second),
            next_channel: None,
            next_round: MonoNs(0),
            sending: None,
        }
    }

    /// Sends images of that channel from now on, if it is of one of the groups.
    pub(super) fn add(&mut self, served: &ServedChannel, registry: &Registry) {
        if self.groups.contains(&served.group) {
            let (counts, counters) = (SnapshotsSent::default(), registry.register(&served.name));
            self.channels.push(SentChannel { served: served.clone(), counts, counters, is_failing: false });
        }
    }

    pub(super) fn remove(&mut self, channel: ChannelId) {
        let Some(index) = self.channels.iter().position(|other| other.served.channel == channel) else { return };
        self.channels.remove(index);
        // The round goes on with the same channel.
        self.next_channel = self.next_channel.map(|next| next - usize::from(index < next));
    }

    /// Whether an image is on its way.
    pub(super) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Sends what the rate allows. At most one image is taken, since each may take long.
    pub(super) fn turn(&mut self, now: MonoNs, take: &mut dyn FnMut(ChannelId) -> Taken) {
        self.pace.refill(now);
        if self.sending.is_none() {
            self.begin_image(now, take);
        }
        let Some(sending) = &mut self.sending else { return };
        let Some(channel) = self.channels.iter_mut().find(|other| other.served.channel == sending.channel) else {
            return self.sending = None;
        };
        if channel.send(sending, self.passes, &self.output, &mut self.pace, now) {
            self.sending = None;
        }
        channel.counters.publish(&channel.counts);
    }

    fn begin_image(&mut self, now: MonoNs, take: &mut dyn FnMut(ChannelId) -> Taken) {
        if self.next_channel.is_none() {
            if !self.channels.iter().any(|channel| channel.served.fence.is_open_at(mono_now())) {
                // A new leader begins at once.
                self.next_round = now;
                return;
            }
            if now < self.next_round {
                return;
            }
            self.next_round = now.plus(self.interval_ns);
        }
        let first = self.next_channel.unwrap_or(0);
        for (index, channel) in self.channels.iter_mut().enumerate().skip(first) {
            self.next_channel = Some(index + 1);
            if !channel.served.fence.is_open_at(mono_now()) {
                continue;
            }
            match take(channel.served.channel) {
                Taken::Image(image) if !image.is_suspect() => {
                    let channel = channel.served.channel;
                    self.sending = Some(Sending { channel, image, pass: 0, chunk: 0, refused_since: None });
                }
                Taken::Image(_) => channel.counts.snapshot_group_suspect += 1,
                Taken::Early => channel.counts.snapshot_group_early += 1,
            }
            channel.counters.publish(&channel.counts);
            return;
        }
        self.next_channel = None;
    }
}

impl SentChannel {
    /// Sends chunks as long as the rate, the kernel and the fence allow it. Returns whether the image is done with.
    fn send(&mut self, sending: &mut Sending, passes: u32, output: &Output, pace: &mut Pace, now: MonoNs) -> bool {
        loop {
            let Some(frames) = sending.image.frames(sending.chunk) else {
                (sending.pass, sending.chunk) = (sending.pass + 1, 0);
                if sending.pass >= passes {
                    self.counts.snapshot_group_images += 1;
                    if std::mem::take(&mut self.is_failing) {
                        let (ends, channel) = (Alarm::OutputFailing.name(), &*self.served.name);
                        tracing::info!(ends, channel, "the snapshot group is sent again");
                    }
                    return true;
                }
                continue;
            };
            let bytes = self.served.packet_bytes(frames.len());
            if !pace.allows(bytes) {
                return false;
            }
            match self.send_chunk(sending, &frames, output) {
                Ok(true) => {
                    pace.consume(bytes);
                    self.counts.snapshot_group_chunks += 1;
                    self.counts.snapshot_group_bytes += bytes;
                    sending.refused_since = None;
                    sending.chunk += 1;
                }
                // The fence is closed.
                Ok(false) => {
                    self.counts.snapshot_group_cut += 1;
                    return true;
                }
                Err(error) => {
                    self.counts.snapshot_group_refused += 1;
                    let since = *sending.refused_since.get_or_insert(now);
                    let is_given_up = now.since(since) >= REFUSED_NS_MAX;
                    if is_given_up {
                        self.counts.snapshot_group_cut += 1;
                        self.is_failing = true;
                        let (alarm, channel) = (Alarm::OutputFailing.name(), &*self.served.name);
                        tracing::error!(alarm, channel, %error, "the kernel sends packets of the snapshot group no more");
                    }
                    return is_given_up;
                }
            }
        }
    }

    /// Returns `false` if the fence is closed.
    fn send_chunk(&self, sending: &Sending, frames: &[u8], output: &Output) -> io::Result<bool> {
        let ServedChannel { group, channel, tag_key, fence, .. } = &self.served;
        let Some(epoch) = fence.epoch_if_open(mono_now()) else { return Ok(false) };
        let entry = Entry {
            position: Position::default(),
            end: Position::default(),
            number: 0,
            session: sending.image.session(),
            first: sending.chunk.into(),
            next: u64::from(sending.chunk) + 1,
            ts_commit: 0,
            frame_count: count_frames(frames).unwrap_or(0),
            flags: 0,
            payload: frames,
        };
        let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT);
        let flags = if tag_key.is_some() { flags.with(PacketFlags::TAGGED) } else { flags };
        let header = packet_header(*group, *channel, epoch, unix_now(), &entry, flags);
        let tag = tag_key.as_ref().map(|key| key.tag(TagUse::Published, &header, frames));
        let parts: [&[u8]; 3] = [&header, frames, tag.as_ref().map_or(&[], |tag| tag)];
        // Once more, since the tag takes a while: directly before the hand-over to the kernel.
        match fence.epoch_if_open(mono_now()) {
            None => return Ok(false),
            // Raised in between: the next try is under the new epoch.
            Some(raised) if raised != epoch => return Err(io::ErrorKind::Interrupted.into()),
            Some(_) => {}
        }
        let socket = SockRef::from(&output.socket);
        let parts = parts.map(IoSlice::new);
        match output.destination {
            Some(destination) => socket.send_to_vectored(&parts, &SockAddr::from(destination)),
            None => socket.send_vectored(&parts),
        }
        .map(|_| true)
    }
}

/// The rate of one group: a bucket of [`BURST_NS`].
#[derive(Clone, Copy, Debug)]
struct Pace {
    bytes_per_second: u64,
    allowed_bytes: u64,
    refilled: Option<MonoNs>,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, allowed_bytes: 0, refilled: None }
    }

    fn bytes_in(&self, ns: u64) -> u64 {
        let bytes = u128::from(self.bytes_per_second) * u128::from(ns) / u128::from(NS_PER_S);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn refill(&mut self, now: MonoNs) {
        // One packet of the largest size always fits.
        let bytes_max = self.bytes_in(BURST_NS).max(PACKET_BYTES_MAX);
        let since = self.refilled.map_or(BURST_NS, |refilled| now.since(refilled));
        let more = self.bytes_in(since.min(NS_PER_S));
        // Less would round the rate down.
        if more >= REFILL_BYTES_MIN {
            self.refilled = Some(now);
            self.allowed_bytes = self.allowed_bytes.saturating_add(more).min(bytes_max);
        }
    }

    fn allows(&self, bytes: u64) -> bool {
        bytes <= self.allowed_bytes
    }

    fn consume(&mut self, bytes: u64) {
        self.allowed_bytes = self.allowed_bytes.saturating_sub(bytes);
    }
}

/// Pause of the snapshot thread while an image is on its way: chunks leave in small bursts.
pub(super) const SENDING_INTERVAL: Duration = Duration::from_millis(1);
/// An image of which the kernel has taken nothing for this long is given up: by then it is old.
const REFUSED_NS_MAX: u64 = 1_000_000_000;
/// A rate's fraction of a byte is then less than two percent.
const REFILL_BYTES_MIN: u64 = 64;
/// What a late turn may catch up.
const BURST_NS: u64 = 10_000_000;
/// The largest packet that can be configured.
const PACKET_BYTES_MAX: u64 = crate::config::PUBLISHED_BYTES_MAX.unsigned_abs();
const NS_PER_S: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
