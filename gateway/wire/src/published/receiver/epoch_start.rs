//! Which epoch a receiver believes when it starts.
//!
//! ```text
//!        first packet, with a service                a service names the epoch
//!  idle ───────────────────────────────▶ asking ────────────────────────────────▶ vouched (a jump: asks again)
//!    │                                   │    ▲ │
//!    │ first packet,          no answer, │    │ │ no answer, but rivals
//!    │ no service             no rivals  │    │ └──────────────────────────────▶ failed
//!    │                                   ▼    │ rivals, with a service             ▲
//!    └────────────────────────────────▶ watching ─────────────────────────────────┘ rivals, no service
//! ```
//! Anybody on the network can send to a multicast group. A forged packet with a very high epoch, believed as the first
//! one, would make the receiver drop everything that the gateways publish. Forged packets can continue each other as
//! well as honest ones do, so no agreement among packets tells them apart. Only a source outside the group decides: the
//! retransmission service, whose answer repeats a number that the receiver drew at random.
//!
//! Two epochs are **rivals** if their counts differ by more than the largest believed jump. An epoch within the jump is
//! none: the gateways accept it as a receiver does, and their leader goes above it.
//!
//! - **With a service** the receiver asks at its first packet. It holds packets until the answer, so it loses nothing and
//!   delivers nothing of an epoch that is refused afterwards. Without an answer it starts with what it has, unless it
//!   sees rivals: then it asks on, and fails when the attempts are used up.
//!   A service that contradicts what was accepted without an answer ends the receiver, too.
//! - **Without a service** the receiver starts at once. Waiting would cost each start its delay and could not decide
//!   either: rivals end the receiver whether they were delivered or not. It watches for rivals through the start window,
//!   and after it whenever the accepted epoch has been silent for as long as the window. So a receiver that believed a
//!   forged packet fails at the first packet of the gateway instead of dropping all of them. At any other time a rival is
//!   dropped, since one forged packet must not end a receiver that works.

use crate::{
    drop_reason::DropReason,
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    published::{
        packet::PacketMeta,
        request::{RequestKind, ServiceRequest},
    },
    time::{MonoNs, UnixNs},
};

use super::{PublishedDatagram, ReceiverConfig, ServiceConfig, epoch_filter::EpochFilter, service_query::ServiceQuery};

#[derive(Debug)]
pub(super) struct EpochStart {
    filter: EpochFilter,
    service: Option<ServiceConfig>,
    window_ns: u64,
    held_bytes_max: usize,
    /// Position in queries and answers, which proves that the answer was asked for.
    nonce: Sequence,
    phase: Phase,
    /// Held packets that the failure discarded and nobody counted yet.
    discarded: u64,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Asking {
        query: EpochQuery,
        held: HeldPackets,
    },
    Watching {
        until: MonoNs,
        last_accepted: MonoNs,
    },
    Vouched {
        /// The query after an epoch that was refused as a jump.
        query: Option<EpochQuery>,
        asked_at: MonoNs,
    },
    Failed(RivalEpochs),
}

/// Epochs of which a receiver can believe only one, while nothing decides between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RivalEpochs {
    /// Lowest epoch among those that packets or a service have shown.
    pub lowest: Epoch,
    /// Highest epoch among those that packets or a service have shown: further above `lowest` than takeovers explain.
    pub highest: Epoch,
    /// Whether a service names the one after the receiver had accepted the other.
    pub is_contradicted: bool,
}

/// A query to the services, and the channel and session that it names.
#[derive(Clone, Copy, Debug)]
struct EpochQuery {
    query: ServiceQuery,
    channel: ChannelId,
    session: Session,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Accepted,
    Held,
}

impl EpochStart {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        Self {
            filter: EpochFilter::new(config.epoch_jump_max),
            service: config.service,
            window_ns: config.start_window_ns,
            held_bytes_max: config.start_bytes_max,
            nonce: Sequence(config.epoch_nonce >> (u64::BITS - NONCE_BITS)),
            phase: Phase::Idle,
            discarded: 0,
        }
    }

    pub(super) fn highest(&self) -> Option<Epoch> {
        self.filter.highest()
    }

    pub(super) fn failure(&self) -> Option<RivalEpochs> {
        match self.phase {
            Phase::Failed(rivals) => Some(rivals),
            _ => None,
        }
    }

    /// A packet of the published lines. A held packet comes back from [`Self::release`] once the epoch is decided.
    pub(super) fn admit(
        &mut self,
        meta: &PacketMeta,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
    ) -> Result<Admission, DropReason> {
        let Self { filter, service, window_ns, held_bytes_max, .. } = self;
        match &mut self.phase {
            Phase::Idle if service.is_none() => {
                self.phase = Phase::Watching { until: now.plus(*window_ns), last_accepted: now };
                filter.accept(meta.epoch).map(|()| Admission::Accepted)
            }
            Phase::Idle => self.ask_and_hold(meta, datagram, now),
            Phase::Asking { held, .. } => {
                held.push(meta.epoch, datagram, now, *held_bytes_max).map(|()| Admission::Held)
            }
            Phase::Watching { until, last_accepted } => {
                let Err(reason) = filter.accept(meta.epoch) else {
                    *last_accepted = now;
                    return Ok(Admission::Accepted);
                };
                let accepted = filter.highest().filter(|accepted| filter.are_rivals(*accepted, meta.epoch));
                let Some(accepted) = accepted.filter(|_| now <= *until || now.since(*last_accepted) >= *window_ns)
                else {
                    return Err(reason);
                };
                if service.is_some() {
                    return self.ask_and_hold(meta, datagram, now);
                }
                let (lowest, highest) = (accepted.min(meta.epoch), accepted.max(meta.epoch));
                self.fail(RivalEpochs { lowest, highest, is_contradicted: false });
                Err(DropReason::EpochUnconfirmed)
            }
            Phase::Vouched { query, asked_at } => {
                let outcome = filter.accept(meta.epoch);
                // The receiver may have been cut off for many terms.
                if outcome == Err(DropReason::EpochJump)
                    && let Some(service) = service
                    && query.is_none()
                    && now.since(*asked_at) >= QUERY_INTERVAL_NS
                {
                    (*query, *asked_at) = (Some(EpochQuery::new(*service, meta, now)), now);
                }
                outcome.map(|()| Admission::Accepted)
            }
            Phase::Failed(_) => Err(DropReason::EpochUnconfirmed),
        }
    }

    /// A packet that is not held until the epoch is decided: an answer of a service, other than the one about the epoch.
    pub(super) fn admit_unheld(&mut self, epoch: Epoch) -> Result<(), DropReason> {
        self.check_group_chunk(epoch)?;
        self.filter.accept(epoch)
    }

    /// A chunk of the snapshot group decides nothing about epochs: packets of the former leader may still wait in the sockets of the
    /// lines.
    pub(super) fn check_group_chunk(&self, epoch: Epoch) -> Result<(), DropReason> {
        match self.phase {
            Phase::Watching { .. } | Phase::Vouched { .. } => self.filter.check(epoch),
            Phase::Idle | Phase::Asking { .. } | Phase::Failed(_) => Err(DropReason::EpochUnconfirmed),
        }
    }

    /// A service names the highest epoch that it knows.
    pub(super) fn on_epoch_answer(&mut self, meta: &PacketMeta, now: MonoNs) -> Result<(), DropReason> {
        let was_asked_for = meta.first == self.nonce && meta.next == self.nonce;
        if !was_asked_for || meta.epoch == Epoch::default() {
            return Err(DropReason::FieldInvalid);
        }
        match (&self.phase, self.filter.highest()) {
            (Phase::Idle | Phase::Failed(_), _) => return Err(DropReason::FieldInvalid),
            (Phase::Asking { .. } | Phase::Watching { .. }, Some(accepted))
                if self.filter.are_rivals(accepted, meta.epoch) =>
            {
                let (lowest, highest) = (accepted.min(meta.epoch), accepted.max(meta.epoch));
                self.fail(RivalEpochs { lowest, highest, is_contradicted: true });
                return Err(DropReason::EpochUnconfirmed);
            }
            _ => {}
        }
        self.filter.vouch(meta.epoch);
        if let Phase::Asking { held, .. } = &mut self.phase {
            held.is_released = true;
        } else {
            self.phase = Phase::Vouched { query: None, asked_at: now };
        }
        Ok(())
    }

    pub(super) fn next_deadline(&self) -> Option<MonoNs> {
        match &self.phase {
            Phase::Asking { query, .. } | Phase::Vouched { query: Some(query), .. } => Some(query.query.deadline()),
            _ => None,
        }
    }

    pub(super) fn on_deadline(&mut self, now: MonoNs) {
        match &mut self.phase {
            Phase::Asking { query, held } if query.query.deadline() <= now => {
                let is_given_up = !query.query.on_deadline(now);
                match held.rivals(&self.filter) {
                    Some(rivals) if is_given_up => self.fail(rivals),
                    Some(_) => {}
                    None => held.is_released = is_given_up || query.query.has_asked_enough(),
                }
            }
            Phase::Vouched { query, .. } => {
                let _given_up = query.take_if(|query| !query.query.on_deadline(now));
            }
            _ => {}
        }
    }

    /// No more packets: held packets are decided upon as they are. Returns when the last of them arrived.
    pub(super) fn finish(&mut self) -> Option<MonoNs> {
        let Phase::Asking { held, .. } = &mut self.phase else { return None };
        let last_arrival = held.last_arrival;
        match held.rivals(&self.filter) {
            Some(rivals) => self.fail(rivals),
            None => held.is_released = true,
        }
        Some(last_arrival)
    }

    /// Held packets that were discarded since the last call, because the receiver failed.
    pub(super) fn take_discarded(&mut self) -> u64 {
        core::mem::take(&mut self.discarded)
    }

    fn fail(&mut self, rivals: RivalEpochs) {
        if let Phase::Asking { held, .. } = &self.phase {
            self.discarded += held.packets.len() as u64;
        }
        self.phase = Phase::Failed(rivals);
    }

    /// The held packets, once the epoch is decided.
    pub(super) fn release(&mut self, now: MonoNs) -> Option<HeldPackets> {
        let Phase::Asking { held, .. } = &mut self.phase else { return None };
        if !held.is_released {
            return None;
        }
        let held = core::mem::take(held);
        self.phase = if self.filter.is_vouched() {
            Phase::Vouched { query: None, asked_at: now }
        } else {
            Phase::Watching { until: now.plus(self.window_ns), last_accepted: now }
        };
        Some(held)
    }

    /// The query that is due; the caller sets group and nonce.
    pub(super) fn poll_request(&mut self) -> Option<ServiceRequest> {
        let (Phase::Asking { query, .. } | Phase::Vouched { query: Some(query), .. }) = &mut self.phase else {
            return None;
        };
        let position = self.nonce;
        query.query.take_due().then_some(ServiceRequest {
            kind: RequestKind::Epoch,
            group: GroupId(0),
            channel: query.channel,
            session: Some(query.session),
            first: position,
            next: position,
            nonce: 0,
        })
    }

    fn ask_and_hold(
        &mut self,
        meta: &PacketMeta,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
    ) -> Result<Admission, DropReason> {
        let query = EpochQuery::new(self.service.unwrap_or_default(), meta, now);
        let mut held = HeldPackets::default();
        let outcome = held.push(meta.epoch, datagram, now, self.held_bytes_max);
        self.phase = Phase::Asking { query, held };
        outcome.map(|()| Admission::Held)
    }
}

impl EpochQuery {
    fn new(service: ServiceConfig, meta: &PacketMeta, now: MonoNs) -> Self {
        Self { query: ServiceQuery::new(service, now), channel: meta.channel, session: meta.session }
    }
}

/// Packets that wait for the decision, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct HeldPackets {
    packets: Vec<HeldPacket>,
    bytes: Vec<u8>,
    /// Lowest and highest epoch, also of packets for which there was no room.
    span: Option<(Epoch, Epoch)>,
    last_arrival: MonoNs,
    is_released: bool,
}

#[derive(Clone, Copy, Debug)]
struct HeldPacket {
    line: Line,
    ts_recv: UnixNs,
    length: usize,
}

impl HeldPackets {
    /// Without room the packet is refused. The service has it: it is requested like any missing packet.
    fn push(
        &mut self,
        epoch: Epoch,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
        bytes_max: usize,
    ) -> Result<(), DropReason> {
        self.last_arrival = now;
        let (lowest, highest) = self.span.unwrap_or((epoch, epoch));
        self.span = Some((lowest.min(epoch), highest.max(epoch)));
        let length = datagram.bytes.len();
        if self.bytes.len() + length > bytes_max {
            return Err(DropReason::WindowFull);
        }
        self.bytes.extend_from_slice(datagram.bytes);
        self.packets.push(HeldPacket { line: datagram.line, ts_recv: datagram.ts_recv, length });
        Ok(())
    }

    fn rivals(&self, filter: &EpochFilter) -> Option<RivalEpochs> {
        let (lowest, highest) = self.span?;
        let accepted = filter.highest().unwrap_or(lowest);
        let (lowest, highest) = (lowest.min(accepted), highest.max(accepted));
        filter.are_rivals(lowest, highest).then_some(RivalEpochs { lowest, highest, is_contradicted: false })
    }

    pub(super) fn datagrams(&self) -> impl Iterator<Item = PublishedDatagram<'_>> {
        let mut rest = self.bytes.as_slice();
        self.packets.iter().map(move |packet| {
            let (bytes, after) = rest.split_at_checked(packet.length).unwrap_or_default();
            rest = after;
            PublishedDatagram { line: packet.line, service: 0, bytes, ts_recv: packet.ts_recv }
        })
    }
}

/// Random bits of a query: positions end at 2^47.
const NONCE_BITS: u32 = 46;

/// Shortest time between two queries after refused epochs, ns. Forged packets must not make a receiver flood the
/// services.
const QUERY_INTERVAL_NS: u64 = 1_000_000_000;
