//! A query for a snapshot: which service is asked for which chunks, and when to do without.

use crate::{
    drop_reason::DropReason,
    frame::FrameHeader,
    identity::Sequence,
    published::{
        packet::{Packet, PacketFlags},
        snapshot::{ChunkName, ChunkOutcome, SnapshotAssembly, SnapshotChunk},
    },
    time::MonoNs,
};

use super::service_query::ServiceQuery;

/// The snapshot of one session, from the service that first offered an acceptable one.
#[derive(Debug)]
pub(super) struct SnapshotQuery {
    purpose: Purpose,
    assembly: SnapshotAssembly,
    /// The service that the chunks so far are from.
    service: Option<u8>,
    service_count: u16,
    /// How often an image was begun, and how often a service asked for patience.
    attempts: u16,
    waits: u16,
    /// Images with suspect books that were left for another service's.
    suspect_images: u16,
    /// The answer to the last request is such an image.
    leaves_image: bool,
    /// Whether a chunk arrived since the last request.
    has_progress: bool,
}

/// What the snapshot is for, which decides which images are good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The start: any image, if no other service has one without suspect books.
    Start,
    /// Suspect books of a receiver that runs: an image without suspect books, at this position or later.
    Rebuild {
        /// First message that the receiver can deliver again behind the image.
        from: Sequence,
    },
}

/// What the receiver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotProgress {
    /// Goes on with the query.
    Continue,
    /// All chunks are there.
    Complete,
}

/// Chunks in one request: with the kernel's overhead they fit the receive buffer of a host whose limits nobody has raised.
const CHUNKS_PER_REQUEST: u32 = 128;
/// Images that are begun, over all services, before the receiver does without.
const IMAGES_MAX: u16 = 8;
/// How often a service may answer that it still takes the snapshot. With the default timeout this is 10 s.
const WAITS_MAX: u16 = 200;

impl SnapshotQuery {
    pub(super) fn new(bytes_max: u64, service_count: u8) -> Self {
        Self {
            purpose: Purpose::Start,
            assembly: SnapshotAssembly::new(bytes_max),
            service: None,
            service_count: service_count.into(),
            attempts: 0,
            waits: 0,
            suspect_images: 0,
            leaves_image: false,
            has_progress: false,
        }
    }

    /// For the next session.
    pub(super) fn reset(&mut self) {
        self.restart();
        (self.attempts, self.waits, self.suspect_images) = (0, 0, 0);
    }

    /// Discards everything, and changes what the next image is for.
    pub(super) fn begin(&mut self, purpose: Purpose) {
        self.reset();
        self.purpose = purpose;
    }

    /// The chunks to request. A receiver that runs asks for one chunk first, since that says whether the image is good enough.
    pub(super) fn request(&mut self) -> (Sequence, Sequence) {
        (self.has_progress, self.leaves_image) = (false, false);
        let is_probe = self.purpose != Purpose::Start && self.assembly.image().is_none();
        let (first, next) = self.assembly.missing(if is_probe { 1 } else { CHUNKS_PER_REQUEST });
        (first.to_sequence(), next.to_sequence())
    }

    /// No answer came in time. Returns whether the query goes on: the chunks of a service that no longer answers are discarded, and
    /// any service is asked for an image.
    pub(super) fn give_up_image(&mut self) -> bool {
        let had_image = self.assembly.image().is_some();
        self.restart();
        had_image && self.attempts < IMAGES_MAX
    }

    /// Processes a packet of an answer.
    pub(super) fn accept(
        &mut self,
        packet: &Packet<'_>,
        service: u8,
        query: &mut ServiceQuery,
        now: MonoNs,
    ) -> Result<SnapshotProgress, DropReason> {
        if self.service.is_some_and(|asked| asked != service) || !packet.meta.flags.contains(PacketFlags::SNAPSHOT) {
            return Err(DropReason::AnswerUnrequested);
        }
        if packet.meta.flags.contains(PacketFlags::HEARTBEAT) {
            self.accept_end(packet, query, now);
            return Ok(SnapshotProgress::Continue);
        }
        let chunk = SnapshotChunk::from_packet(packet)?;
        if self.service.is_none() {
            self.begin_image(&chunk)?;
            self.service = Some(service);
            self.attempts += 1;
        }
        let outcome = self.assembly.add(&chunk);
        if self.assembly.image().is_none() && outcome.is_err() {
            // Too large for this receiver: perhaps another service's is not.
            self.restart();
        }
        match outcome? {
            ChunkOutcome::Added => {
                self.has_progress = true;
                query.on_progress(true, now);
                Ok(SnapshotProgress::Continue)
            }
            ChunkOutcome::Complete => Ok(SnapshotProgress::Complete),
            ChunkOutcome::Damaged => {
                self.restart();
                if self.attempts < IMAGES_MAX {
                    query.request_next_piece(now);
                }
                Err(DropReason::FieldInvalid)
            }
        }
    }

    /// Each service is asked for a snapshot without suspect books first.
    fn begin_image(&mut self, chunk: &SnapshotChunk<'_>) -> Result<(), DropReason> {
        let is_another_worth_asking = self.leaves_image || self.suspect_images < self.service_count.saturating_sub(1);
        let is_left = match self.purpose {
            Purpose::Start => chunk.image.is_suspect && is_another_worth_asking,
            Purpose::Rebuild { from } => chunk.image.is_suspect || chunk.image.next < from,
        };
        if is_left {
            // Once per answer: its other chunks are refused too.
            self.suspect_images += u16::from(!self.leaves_image);
            self.leaves_image = true;
            return Err(DropReason::AnswerUnrequested);
        }
        Ok(())
    }

    fn accept_end(&mut self, packet: &Packet<'_>, query: &mut ServiceQuery, now: MonoNs) {
        let has_more = packet.meta.first < packet.meta.next;
        match self.assembly.image() {
            // Everything that was asked for was sent, or a limit shortened the answer: the missing chunks are requested at once.
            // Without any progress the deadline decides.
            Some(_) if self.has_progress => query.request_next_piece(now),
            // The service has lost the image, as after a restart.
            Some(_) if !has_more && packet.meta.next == Sequence(0) => {
                self.restart();
                if self.attempts < IMAGES_MAX {
                    query.request_next_piece(now);
                }
            }
            // Not a chunk was sent: the service is about to take the snapshot.
            None if has_more && packet.meta.first == Sequence(0) && self.waits < WAITS_MAX => {
                self.waits += 1;
                query.on_progress(true, now);
            }
            _ => {}
        }
    }

    /// The frames of the snapshot.
    pub(super) fn frames(&self) -> impl Iterator<Item = (FrameHeader, &[u8])> {
        self.assembly.frames()
    }

    /// Where the stream continues behind the image.
    pub(super) fn next(&self) -> Option<Sequence> {
        self.assembly.image().map(|image| image.next)
    }

    /// Whether the image has suspect books.
    pub(super) fn is_suspect(&self) -> bool {
        self.assembly.image().is_some_and(|image| image.is_suspect)
    }

    fn restart(&mut self) {
        self.assembly.clear();
        (self.service, self.has_progress) = (None, false);
    }
}

/// Whether a request asks any service for an image, and not one of them for the rest of its own.
#[must_use]
pub fn asks_any_service(first: Sequence) -> bool {
    ChunkName::from_sequence(first).image == 0
}
