//! A start by snapshot: the state, then every message behind it, once.

use super::*;
use crate::published::snapshot::{ChunkName, SnapshotImage, checksum, chunk_frames};

/// The snapshot is the state before this message.
const NEXT: u64 = 8;
/// Messages published so far are those before this one.
const PUBLISHED: u64 = 14;
pub(super) const CHUNKS: u32 = 3;

/// A service that loses some of its packets.
pub(super) struct Service {
    pub(super) image: u32,
    /// The image is the state before this message.
    pub(super) next: u64,
    pub(super) is_suspect: bool,
    /// Messages that its log has.
    pub(super) log: Range<u64>,
    /// Answers to requests for an image with "being taken", before it sends chunks.
    pub(super) waits: u32,
    /// Every n-th packet of an answer is lost.
    pub(super) loss: usize,
    /// It sends the first chunk of an image only.
    pub(super) withholds_rest: bool,
    pub(super) sent: usize,
    pub(super) requests: Vec<String>,
}

impl Service {
    pub(super) fn new() -> Self {
        let (next, log) = (NEXT, 1..PUBLISHED);
        Self {
            image: 5,
            next,
            is_suspect: false,
            log,
            waits: 1,
            loss: 3,
            withholds_rest: false,
            sent: 0,
            requests: Vec::new(),
        }
    }

    fn image(&self) -> (SnapshotImage, Vec<Vec<u8>>) {
        let chunks: Vec<_> =
            (0..CHUNKS).map(|chunk| records(u64::from(self.image) * 100 + u64::from(chunk), 2)).collect();
        let all = chunks.concat();
        let image = SnapshotImage {
            image: self.image,
            next: Sequence(self.next),
            chunk_count: CHUNKS,
            checksum: checksum(&all),
            record_count: 2 * u64::from(CHUNKS),
            record_bytes: all.len() as u64,
            order_count: 1,
            instrument_count: 1,
            is_suspect: self.is_suspect,
        };
        (image, chunks)
    }

    pub(super) fn answer(&mut self, request: &ServiceRequest) -> Vec<Vec<u8>> {
        let (session, epoch) = (request.session.unwrap(), Epoch::new(1, 1));
        let flags = PacketFlags::RETRANSMISSION;
        let snapshot = flags.with(PacketFlags::SNAPSHOT);
        let end = |flags: PacketFlags, range| datagram(flags.with(PacketFlags::HEARTBEAT), session, epoch, range, &[]);
        let (mut out, last) = match request.kind {
            RequestKind::Epoch => {
                let range = (request.first.0, request.next.0);
                return vec![datagram(PacketFlags::EPOCH_ANSWER, session, epoch, range, &[])];
            }
            RequestKind::Sessions => (Vec::new(), end(flags, (0, 0))),
            RequestKind::Definitions => (Vec::new(), end(snapshot, (0, 0))),
            RequestKind::Range => {
                let wanted = self.log.clone().filter(|sequence| (request.first.0..request.next.0).contains(sequence));
                let packets = wanted.map(|sequence| {
                    let body = frame(sequence, FrameKind::Message, WHOLE, &records(sequence, 1));
                    datagram(flags, session, epoch, (sequence, sequence + 1), &body)
                });
                (packets.collect(), end(flags, (self.log.start, self.log.end)))
            }
            RequestKind::Snapshot => {
                let [first, next] = [request.first, request.next].map(ChunkName::from_sequence);
                self.requests.push(format!("{}:{}..{}", first.image, first.chunk, next.chunk));
                let (image, chunks) = self.image();
                if self.withholds_rest && first.chunk > 0 {
                    return Vec::new();
                } else if first.image != 0 && first.image != self.image {
                    (Vec::new(), end(snapshot, (0, 0)))
                } else if self.waits > 0 {
                    self.waits -= 1;
                    (Vec::new(), end(snapshot, (0, 1)))
                } else {
                    let packets = (first.chunk..next.chunk.min(CHUNKS)).map(|chunk| {
                        let body = chunk_frames(&image, chunk, 9, 2, &chunks[chunk as usize]);
                        datagram(snapshot, session, epoch, (chunk.into(), u64::from(chunk) + 1), &body)
                    });
                    (packets.collect(), end(snapshot, (next.chunk.min(CHUNKS).into(), CHUNKS.into())))
                }
            }
        };
        out.push(last);
        out.retain(|_| {
            self.sent += 1;
            !self.sent.is_multiple_of(self.loss)
        });
        out
    }
}

pub(super) fn text(output: &Output<'_>) -> String {
    match output.item {
        Item::Session => "session".to_owned(),
        Item::Message { header, .. } => format!("m{}", header.sequence.get()),
        Item::Snapshot { header, body } => {
            let number = u64::from_le_bytes(body[16..24].try_into().unwrap());
            format!("s{} {number} {:02b}", header.sequence.get(), header.flags)
        }
        Item::Repeated { header, .. } => format!("r{}", header.sequence.get()),
        Item::Books(state) => format!("{state:?}"),
        Item::Lost(gap) => format!("lost {}..{}", gap.first().0, gap.next().0),
        other => format!("{other:?}"),
    }
}

/// A receiver that starts while message 10 is published. `change`: what happens after each round of requests.
fn run(services: &mut [Service], change: impl Fn(usize, &mut [Service])) -> (Vec<String>, Receiver) {
    let service_config = ServiceConfig { service_count: services.len() as u8, ..service() };
    let start = StartFrom::Snapshot;
    let mut receiver = Receiver::new(ReceiverConfig { start, packet_bytes_max: 1_472, ..config(Some(service_config)) });
    let mut items = Vec::new();
    let mut now = MonoNs(1_000_000_000);
    let mut turn = 0;
    for round in 0..400_usize {
        let live = if round == 0 { 10 } else { PUBLISHED - 1 };
        if round % 20 == 0 {
            let body = frame(live, FrameKind::Message, WHOLE, &records(live, 1));
            let bytes = datagram(PacketFlags::default(), session(0), Epoch::new(1, 1), (live, live + 1), &body);
            let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &bytes, ts_recv: UnixNs(1) };
            let _counted = receiver.accept(datagram, now, &mut |output| items.push(text(&output)));
        }
        while let Some(request) = receiver.poll_request() {
            let is_continued = request.kind == RequestKind::Snapshot && !asks_any_service(request.first);
            turn += usize::from(!is_continued);
            let index = turn % services.len();
            for bytes in services[index].answer(&request) {
                let datagram =
                    PublishedDatagram { line: Line::RECOVERY, service: index as u8, bytes: &bytes, ts_recv: UnixNs(1) };
                let _counted = receiver.accept(datagram, now, &mut |output| items.push(text(&output)));
            }
        }
        change(round, services);
        now = now.plus(1_000_000);
        receiver.on_deadline(now, &mut |output| items.push(text(&output)));
    }
    (items, receiver)
}

fn expected(image: u64) -> Vec<String> {
    let state = (0..3).zip(["01", "00", "10"]).map(|(chunk, flags)| format!("s{NEXT} {} {flags}", image * 100 + chunk));
    let messages = (NEXT..PUBLISHED).map(|sequence| format!("m{sequence}"));
    ["session".to_owned()].into_iter().chain(state).chain(messages).collect()
}

#[test]
fn the_state_is_followed_by_every_message_behind_it_whatever_is_lost() {
    for loss in [usize::MAX, 2, 3, 4, 5, 7] {
        let mut services = [Service { loss, ..Service::new() }];
        let (items, receiver) = run(&mut services, |_, _| {});
        assert_eq!(items, expected(5), "loss {loss}: {:?}", services[0].requests);
        assert_eq!(receiver.channels().next().unwrap().statistics().snapshots, 1);
    }
}

/// The gateway restarts while its image is requested, as in a failover.
#[test]
fn a_lost_image_is_replaced_by_another_one_as_a_whole() {
    let mut services = [Service { loss: 3, waits: 0, ..Service::new() }];
    let (items, _) = run(&mut services, |_, services| {
        if services[0].requests.len() == 1 {
            services[0].image = 6;
        }
    });
    assert!(items == expected(6) || items == expected(5), "{items:?}");
    assert!(services[0].requests.iter().any(|request| request.starts_with("0:0..")), "{:?}", services[0].requests);
}

#[test]
fn a_suspect_image_is_left_for_another_services_image() {
    let whole = |image, is_suspect| Service { image, is_suspect, waits: 0, loss: usize::MAX, ..Service::new() };
    let mut services = [whole(5, true), whole(7, false)];
    assert_eq!(run(&mut services, |_, _| {}).0, expected(7));
    let mut services = [whole(5, true), whole(7, true)];
    let (items, _) = run(&mut services, |_, _| {});
    assert!(items == expected(5) || items == expected(7), "the others are no better: {items:?}");
}

#[test]
fn without_a_snapshot_the_session_comes_from_the_log() {
    let mut services = [Service { waits: u32::MAX, loss: usize::MAX, ..Service::new() }];
    let start = ["session".to_owned()].into_iter().chain((1..PUBLISHED).map(|sequence| format!("m{sequence}")));
    let (items, receiver) = run(&mut services, |round, services| {
        // The service is taken away.
        services[0].loss = if (5..38).contains(&round) { 1 } else { usize::MAX };
    });
    assert_eq!(items, start.collect::<Vec<_>>());
    assert_eq!(receiver.channels().next().unwrap().statistics().snapshots_unavailable, 1);
}
