//! One stream in the making: datagrams at their times, services that answer, and the receiver that asks them.

use std::collections::BTreeMap;

use mdgw_feeds::{
    channel::ChannelState,
    frame::{FrameFlags, FrameMeta, StateBody},
    identity::{Epoch, Line, Sequence},
    published::{
        packet::{PacketFlags, PacketMeta, write_packet},
        tag::{TagKey, TagUse},
    },
    time::UnixNs,
};
use mdgw_tests::pair::LogEntry;
use zerocopy::IntoBytes as _;

use crate::{
    replay::ReplayedReceiver,
    text::hex,
    virtual_gateway::{CHANNEL, GROUP, START, VirtualGateway, tagged},
};

/// Nanoseconds of a microsecond and of a millisecond.
pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
/// Send time of packets whose time does not matter.
pub(crate) const START_TIME: UnixNs = START;

/// How long a request takes to its service, and an answer back, ns.
const ONE_WAY_NS: u64 = 500 * US;
/// Time after the last datagram until the stream is finished, ns.
const AFTERWARDS_NS: u64 = 3_000 * MS;
/// Time of the first datagram, ns.
const BEGIN_NS: u64 = 1_000 * MS;

/// Stands for the snapshot group, which is no line.
const SNAPSHOT_GROUP: Line = Line(u8::MAX);

/// What becomes of a packet on its way.
pub(crate) type Damage = Box<dyn FnMut(&mut Vec<u8>)>;

/// A stream in the making.
pub(crate) struct Scenario {
    name: String,
    about: String,
    settings: String,
    datagrams: BTreeMap<u64, Vec<(Line, u8, Vec<u8>)>>,
    services: Vec<(VirtualGateway, bool)>,
    /// Share of answer packets that are lost, by position in the stream.
    pub(crate) loses_answer: Box<dyn FnMut() -> bool>,
    /// Changes a packet of a service's answer before it is sent. One that it empties is lost.
    pub(crate) damage: Damage,
    /// Time from one packet to the next, ns.
    pub(crate) interval: u64,
    /// Key of the packets' tags.
    pub(crate) key: Option<TagKey>,
    next_at: u64,
}

impl Scenario {
    pub(crate) fn new(name: &str, about: &str, settings: &str) -> Self {
        let mut settings = settings.to_owned();
        // The receiver in C takes no service without a random number.
        if settings.contains("services=") && !settings.contains("services=0") && !settings.contains("epoch_nonce=") {
            settings += " epoch_nonce=77777777777";
        }
        Self {
            name: name.to_owned(),
            about: about.to_owned(),
            settings,
            datagrams: BTreeMap::new(),
            services: Vec::new(),
            loses_answer: Box::new(|| false),
            damage: Box::new(|_| {}),
            interval: MS,
            key: None,
            next_at: BEGIN_NS,
        }
    }

    /// Adds a retransmission service.
    pub(crate) fn serve(&mut self, gateway: VirtualGateway) {
        self.services.push((gateway, true));
    }

    /// That service answers nothing.
    pub(crate) fn silence(&mut self, service: usize) {
        self.services[service].1 = false;
    }

    /// Publishes an entry of a log after what was published before.
    pub(crate) fn publish_next(
        &mut self,
        gateway: &VirtualGateway,
        index: usize,
        epoch: Epoch,
        flags: PacketFlags,
        lines: &[u8],
    ) {
        let at = self.take_time() - BEGIN_NS;
        self.publish(at, gateway, index, epoch, flags, lines);
    }

    /// Publishes an entry of a log that many ns after the beginning.
    pub(crate) fn publish(
        &mut self,
        at: u64,
        gateway: &VirtualGateway,
        index: usize,
        epoch: Epoch,
        flags: PacketFlags,
        lines: &[u8],
    ) {
        let packet = gateway.packet(&gateway.entries()[index], epoch, flags, UnixNs(START.0 + at));
        for line in lines {
            self.send(BEGIN_NS + at, *line, packet.clone());
        }
        self.next_at = self.next_at.max(BEGIN_NS + at + self.interval);
    }

    /// Publishes a whole log.
    pub(crate) fn publish_all(&mut self, gateway: &VirtualGateway, epoch: Epoch, flags: PacketFlags, lines: &[u8]) {
        for index in 0..gateway.entries().len() {
            self.publish_next(gateway, index, epoch, flags, lines);
        }
    }

    /// Publishes a whole log on one line, from the beginning and that much later, without the packets that are lost.
    pub(crate) fn publish_lossy(
        &mut self,
        gateway: &VirtualGateway,
        epoch: Epoch,
        line: u8,
        delay: u64,
        is_lost: &dyn Fn(usize) -> bool,
    ) {
        let entries = gateway.entries();
        for (index, entry) in entries.iter().enumerate() {
            let at = index as u64 * self.interval;
            if !is_lost(index) {
                let packet = gateway.packet(entry, epoch, PacketFlags::default(), UnixNs(START.0 + at));
                self.send(BEGIN_NS + at + delay, line, packet);
            }
            self.next_at = self.next_at.max(BEGIN_NS + at + delay + self.interval);
        }
    }

    /// A heartbeat at the end of a log.
    pub(crate) fn heartbeat(&mut self, gateway: &VirtualGateway, epoch: Epoch, lines: &[u8]) {
        self.heartbeat_at(gateway, gateway.entries().len(), epoch, lines);
    }

    /// A heartbeat of a leader that has sent that many entries.
    pub(crate) fn heartbeat_at(&mut self, gateway: &VirtualGateway, count: usize, epoch: Epoch, lines: &[u8]) {
        let last = &gateway.entries()[count - 1];
        let flags = PacketFlags::HEARTBEAT.with(PacketFlags(last.flags.0 & PacketFlags::END_OF_SESSION.0));
        let packet = packet_without_entry(last, last.next, epoch, flags, &[]);
        let at = self.take_time();
        lines.iter().for_each(|line| self.send(at, *line, packet.clone()));
    }

    /// A heartbeat that announces a position far ahead.
    pub(crate) fn far_heartbeat(&mut self, gateway: &VirtualGateway, next: u64, epoch: Epoch) {
        self.heartbeat_of_anybody(gateway, next, epoch, PacketFlags::HEARTBEAT);
    }

    /// A heartbeat that says that the session has ended there.
    pub(crate) fn end_heartbeat(&mut self, gateway: &VirtualGateway, next: u64, epoch: Epoch) {
        self.heartbeat_of_anybody(gateway, next, epoch, PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION));
    }

    fn heartbeat_of_anybody(&mut self, gateway: &VirtualGateway, next: u64, epoch: Epoch, flags: PacketFlags) {
        let packet = packet_without_entry(&gateway.entries()[0], Sequence(next), epoch, flags, &[]);
        let at = self.take_time();
        self.send(at, 0, packet);
    }

    /// The end of an answer that is not the service's, that long after the beginning.
    pub(crate) fn forged_answer_end(&mut self, at: u64, gateway: &VirtualGateway, next: u64, epoch: Epoch) {
        let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::HEARTBEAT);
        let packet = packet_without_entry(&gateway.entries()[0], Sequence(next), epoch, flags, &[]);
        self.send_service(at, 0, packet);
    }

    /// What a channel out of service sends instead of a heartbeat.
    pub(crate) fn failed_heartbeat(&mut self, gateway: &VirtualGateway, epoch: Epoch, lines: &[u8]) {
        let last = gateway.entries().last().unwrap().clone();
        let body = StateBody::of(ChannelState::Failed);
        let mut header = FrameMeta::state(last.next).header(0, body.as_bytes());
        header.flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0;
        let frame = [header.as_bytes(), body.as_bytes()].concat();
        let packet = packet_without_entry(&last, last.next, epoch, PacketFlags::SNAPSHOT, &frame);
        let at = self.take_time();
        lines.iter().for_each(|line| self.send(at, *line, packet.clone()));
    }

    /// An answer about the epoch that is not the service's, that long after the beginning.
    pub(crate) fn forged_epoch_answer(&mut self, at: u64, gateway: &VirtualGateway, number: u64, epoch: Epoch) {
        let entry = LogEntry { first: Sequence(number), ..gateway.entries()[0].clone() };
        let packet = packet_without_entry(&entry, Sequence(number), epoch, PacketFlags::EPOCH_ANSWER, &[]);
        self.send_service(at, 0, packet);
    }

    /// Sends the last datagram again, at the same time.
    pub(crate) fn repeat_last(&mut self) {
        if let Some(mut last) = self.datagrams.last_entry() {
            let again = last.get().last().unwrap().clone();
            last.get_mut().push(again);
        }
    }

    /// Sends a datagram on line 0 after what was published before.
    pub(crate) fn send_next(&mut self, datagram: Vec<u8>) {
        let at = self.take_time();
        self.datagrams.entry(at).or_default().push((Line(0), 0, datagram));
    }

    /// Datagrams of the snapshot group, from that long after the beginning on.
    pub(crate) fn send_group(&mut self, at: u64, packets: impl IntoIterator<Item = Vec<u8>>) {
        for (at, packet) in (BEGIN_NS + at..).step_by(10_000).zip(packets) {
            self.datagrams.entry(at).or_default().push((SNAPSHOT_GROUP, 0, packet));
        }
    }

    /// A datagram from a service's address, that long after the beginning.
    pub(crate) fn send_service(&mut self, at: u64, service: u8, datagram: Vec<u8>) {
        self.datagrams.entry(BEGIN_NS + at).or_default().push((Line::RECOVERY, service, datagram));
    }

    pub(crate) fn send(&mut self, at: u64, line: u8, packet: Vec<u8>) {
        let packet = match &self.key {
            Some(key) => tagged(&packet, key, TagUse::Published),
            None => packet,
        };
        self.datagrams.entry(at).or_default().push((Line(line), 0, packet));
    }

    /// Runs the receiver. Returns the stream as text.
    pub(crate) fn run(mut self) -> String {
        let mut out =
            vec![format!("stream {}", self.name), format!("about {}", self.about), format!("set {}", self.settings)];
        let mut receiver = ReplayedReceiver::new(&self.settings);
        let mut until = 0;
        loop {
            let next = self.datagrams.keys().next().copied();
            until = next.map_or(until, |next| until.max(next + AFTERWARDS_NS));
            let deadline = receiver.next_deadline().filter(|deadline| *deadline < next.unwrap_or(until));
            if let Some(deadline) = deadline {
                let requests = receiver.on_deadline(deadline);
                self.answer(deadline, requests);
                continue;
            }
            out.append(&mut receiver.output);
            let Some((at, datagrams)) = self.datagrams.pop_first() else { break };
            for (line, service, bytes) in datagrams {
                let source = match line {
                    SNAPSHOT_GROUP => "group".to_owned(),
                    Line::RECOVERY => format!("service {service}"),
                    Line(number) => format!("line {number}"),
                };
                out.push(format!("at {at} {source} {}", hex(&bytes)));
                let requests = match line {
                    SNAPSHOT_GROUP => receiver.accept_from_group(at, &bytes),
                    _ => receiver.accept(at, line, service, &bytes),
                };
                out.append(&mut receiver.output);
                self.answer(at, requests);
            }
        }
        out.push(format!("at {until}"));
        let _unanswered = receiver.on_deadline(until);
        out.append(&mut receiver.output);
        out.push("finish".to_owned());
        receiver.finish();
        out.append(&mut receiver.output);
        out.iter().fold(String::new(), |text, line| text + line.trim_end() + "\n")
    }

    fn answer(&mut self, now: u64, requests: Vec<(u8, Vec<u8>)>) {
        for (service, request) in requests {
            let Some((gateway, true)) = self.services.get_mut(usize::from(service)) else { continue };
            let there = now + ONE_WAY_NS;
            let packets = gateway.answer(&request, UnixNs(START.0 + there), self.key.as_ref());
            for (at, mut packet) in (there + ONE_WAY_NS..).step_by(10_000).zip(packets) {
                (self.damage)(&mut packet);
                if !packet.is_empty() && !(self.loses_answer)() {
                    self.datagrams.entry(at).or_default().push((Line::RECOVERY, service, packet));
                }
            }
        }
    }

    fn take_time(&mut self) -> u64 {
        let at = self.next_at;
        self.next_at += self.interval;
        at
    }
}

/// A packet at `next` of the entry's session that is in no log.
fn packet_without_entry(entry: &LogEntry, next: Sequence, epoch: Epoch, flags: PacketFlags, frames: &[u8]) -> Vec<u8> {
    let meta = PacketMeta {
        flags,
        group: GROUP,
        channel: CHANNEL,
        epoch,
        session: entry.session,
        first: next,
        next,
        send_time_ns: START.0,
    };
    let mut datagram = [0; 200];
    let length = write_packet(&meta, frames, &mut datagram).unwrap();
    datagram[..length].to_vec()
}
