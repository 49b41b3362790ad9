//! What does a packet's tag cost? Times the making and the check of a tag for three packet sizes, beside what every packet costs:
//! its hand-over to the kernel, in batches over loopback. All measurements of a round alternate. Reports medians of all rounds.
//!
//! `cargo bench -p mdgw-bench --bench tag`
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

mod rounds;

use std::{
    hint::black_box,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Instant,
};

use mdgw_feeds::published::{
    packet::{PACKET_HEADER_BYTES, PACKET_MAGIC, PACKET_VERSION, PacketFlags, PacketHeader},
    tag::{TAG_BYTES, TagKey, TagPolicy, TagUse},
};
use mdgw_sys::batch::{Output, OutputIndex, Outputs, SendBuffers};
use zerocopy::{FromZeros as _, IntoBytes as _};

use self::rounds::{ns_each, spread};

const ROUNDS: usize = 101;
/// Packets per measurement: few, so that most end before the scheduler preempts the thread.
const PACKETS: u32 = 1_000;
/// Packets of one hand-over.
const BATCH: u32 = 20;
/// Sizes on the wire, tag included: one record, a few, and the largest.
const SIZES: [usize; 3] = [192, 512, 1_472];

fn main() {
    let key = TagKey::new(&[7; 32]);
    let policy = TagPolicy { keys: vec![key.clone()], accepts_untagged: false };
    println!("ns per packet, median (first quartile, third quartile) of {ROUNDS} interleaved rounds of {PACKETS}");
    println!("{:<12}{:>28}{:>28}{:>28}", "bytes", "make a tag", "check a tag", "send without a tag");
    for size in SIZES {
        let packet = tagged_packet(&key, size);
        let (header, rest) = packet.split_first_chunk::<PACKET_HEADER_BYTES>().expect("a header");
        let frames = &rest[..rest.len() - TAG_BYTES];
        let make = || u64::from(key.tag(TagUse::Published, black_box(header), black_box(frames))[0]);
        let check = || u64::from(policy.check(TagUse::Published, black_box(&packet)).is_ok());
        let mut loopback = Loopback::new();
        assert_eq!(check(), 1, "the tag is valid");
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(ns_each(PACKETS, make));
            times[1].push(ns_each(PACKETS, check));
            times[2].push(loopback.ns_each_sent(header, frames));
        }
        let [made, checked, sent] = times.map(|mut times| spread(&mut times, 0));
        println!("{size:<12}{made:>28}{checked:>28}{sent:>28}");
    }
}

fn tagged_packet(key: &TagKey, size: usize) -> Vec<u8> {
    let mut header = PacketHeader::new_zeroed();
    header.magic.set(PACKET_MAGIC);
    header.version = PACKET_VERSION;
    header.flags = PacketFlags::TAGGED.0;
    let header: &[u8; PACKET_HEADER_BYTES] = header.as_bytes().first_chunk().expect("a header");
    let frames = vec![0x5a; size - PACKET_HEADER_BYTES - TAG_BYTES];
    [&header[..], &frames, &key.tag(TagUse::Published, header, &frames)].concat()
}

/// An output, and its receiver.
struct Loopback {
    buffers: SendBuffers,
    receiver: UdpSocket,
}

impl Loopback {
    fn new() -> Self {
        let [receiver, sender] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").expect("loopback has ports"));
        receiver.set_nonblocking(true).expect("a socket can be non-blocking");
        let SocketAddr::V4(destination) = receiver.local_addr().expect("it is bound") else { unreachable!() };
        let output = Output { socket: Arc::new(sender.into()), destination: Some(destination) };
        Self { buffers: SendBuffers::new(Outputs::new(vec![output])), receiver }
    }

    fn ns_each_sent(&mut self, header: &[u8; PACKET_HEADER_BYTES], frames: &[u8]) -> f64 {
        let mut taken_s = 0.0;
        for _ in 0..PACKETS / BATCH {
            let started = Instant::now();
            let mut batch = self.buffers.begin();
            for _ in 0..BATCH {
                batch.push(black_box(header), black_box(frames), None, OutputIndex(0)).expect("room");
            }
            assert_eq!(batch.send_many().expect("loopback takes packets"), BATCH as usize);
            taken_s += started.elapsed().as_secs_f64();
            while self.receiver.recv(&mut [0; 2_048]).is_ok() {}
        }
        taken_s * 1e9 / f64::from(PACKETS)
    }
}
