//! An unknown sender on the output network forges packets with epochs above the leader's: the leader's output continues.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use mdgw_captures::random::Random;
use mdgw_feeds::{
    identity::{Epoch, Sequence},
    published::{
        packet::{PacketFlags, PacketMeta, parse_packet, write_packet},
        tag::{TAG_BYTES, TagKey, TagPolicy, TagUse},
    },
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_tests::{
    captures::print_to_stderr,
    feeds::{self, MIDNIGHT_NS, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, write_key},
    pair::{VenueSender, with_tag},
    process::{self, MdgwProcess, Signal},
};
use socket2::{Domain, Protocol, Socket, Type};

/// J, as in the product.
const JUMP_MAX: u64 = 1_000;
const FORGE_EVERY: Duration = Duration::from_millis(10);
const FORGED_FOR: Duration = Duration::from_secs(4);
const PACKET_BYTES_MAX: usize = 65_536;
/// Place of the flags in a packet's header.
const FLAGS_AT: usize = 5;

/// A receiver on the output group that forges packets there too. It believes epochs as receivers do.
struct Forger {
    socket: UdpSocket,
    gateway: u8,
    output: SocketAddrV4,
    known: Option<KnownEpochs>,
    /// Which packets this receiver believes.
    tags: TagPolicy,
    /// Packets that this receiver has refused for their tag.
    tags_refused: u64,
    /// The gateway's newest packet, as received.
    recorded: Vec<u8>,
    /// The newest packet of the gateway with records, and the newest of any kind.
    records: Option<(PacketMeta, Vec<u8>)>,
    newest: Option<PacketMeta>,
    /// Packets that the gateway has published again.
    republished: u64,
    accepted: u64,
    refused: u64,
    accepted_at: Instant,
    longest_silence: Duration,
}

impl Forger {
    fn join(fixture: &GatewayFixture) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
        socket.set_reuse_address(true).expect("the address is shared");
        socket.bind(&fixture.output.into()).expect("the group's port");
        socket.join_multicast_v4(fixture.output.ip(), &Ipv4Addr::LOCALHOST).expect("the group is joined");
        socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("loopback is an interface");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a time-out");
        Self {
            socket: socket.into(),
            gateway: fixture.node,
            output: fixture.output,
            known: None,
            tags: TagPolicy::default(),
            tags_refused: 0,
            recorded: Vec::new(),
            records: None,
            newest: None,
            republished: 0,
            accepted: 0,
            refused: 0,
            accepted_at: Instant::now(),
            longest_silence: Duration::ZERO,
        }
    }

    /// From where its packets come.
    fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.output.port())
    }

    /// Receives one packet, if one comes in time.
    fn receive(&mut self) {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let Ok(length) = self.socket.recv(&mut bytes) else { return };
        if self.tags.check(TagUse::Published, &bytes[..length]).is_err() {
            self.tags_refused += 1;
            return;
        }
        let Ok(packet) = parse_packet(&bytes[..length]) else { return };
        let meta = packet.meta;
        let known = self.known.get_or_insert_with(|| KnownEpochs::new(meta.epoch, JUMP_MAX));
        let is_accepted = known.observe(meta.epoch).is_ok();
        if meta.epoch.node() != self.gateway {
            return;
        }
        if !meta.flags.contains(PacketFlags::HEARTBEAT) {
            self.records = Some((meta, packet.body.to_vec()));
        }
        self.newest = Some(meta);
        self.recorded = bytes[..length].to_vec();
        self.republished += u64::from(meta.flags.contains(PacketFlags::RETRANSMISSION) && packet.frame_count > 0);
        if is_accepted {
            self.longest_silence = self.longest_silence.max(self.accepted_at.elapsed());
            self.accepted_at = Instant::now();
            self.accepted += 1;
        } else {
            self.refused += 1;
        }
    }

    /// Receives until `count` more of the gateway's packets were accepted.
    fn receive_accepted(&mut self, count: u64) {
        let before = self.accepted;
        process::wait_until("the gateway's packets are accepted", || {
            self.receive();
            self.accepted >= before + count
        });
    }

    fn highest(&self) -> Epoch {
        self.known.as_ref().map(KnownEpochs::highest).expect("a packet was received")
    }

    /// Sends a packet every 10 ms, heartbeats and records in turn, under the epochs that `next_epoch` returns. The heartbeats are at
    /// that position, or at the present one.
    fn send_packets(&mut self, position: Option<Sequence>, mut next_epoch: impl FnMut(Epoch) -> Epoch) {
        let (started, mut sent) = (Instant::now(), 0_u32);
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        while started.elapsed() < FORGED_FOR {
            self.receive();
            if started.elapsed() < sent * FORGE_EVERY {
                continue;
            }
            sent += 1;
            let epoch = next_epoch(self.highest());
            let heartbeat = self.newest.map(|meta| (PacketMeta { flags: PacketFlags::HEARTBEAT, ..meta }, Vec::new()));
            let template = if sent.is_multiple_of(2) { self.records.clone() } else { None };
            let (meta, body) = template.or(heartbeat).expect("a packet was received");
            let (first, next) = match position.filter(|_| body.is_empty()) {
                Some(position) => (position, position),
                None if body.is_empty() => (meta.next, meta.next),
                None => (meta.first, meta.next),
            };
            let length = write_packet(&PacketMeta { epoch, first, next, ..meta }, &body, &mut bytes).expect("it fits");
            let mut forged = vec![bytes[..length].to_vec()];
            if !self.tags.keys.is_empty() {
                // The same under a key of the sender's own, under the tag of another packet, and a packet sent again as it is.
                forged.push(with_tag(&forged[0], &TagKey::new(&[8; 32])));
                let (_, tag) = self.recorded.split_last_chunk::<TAG_BYTES>().expect("a packet was received");
                let mut with_old_tag = [&forged[0][..], tag].concat();
                with_old_tag[FLAGS_AT] |= PacketFlags::TAGGED.0;
                forged.extend([with_old_tag, self.recorded.clone()]);
            }
            for packet in forged {
                self.socket.send_to(&packet, self.output).expect("loopback takes a datagram");
            }
        }
    }
}

fn start_with(fixture: &GatewayFixture, options: &GatewayOptions, backend: &str, keys: &str) -> MdgwProcess {
    let election = format!("\n[election]\nbackend = \"{backend}\"\nprofile = \"calm\"\nname = \"gw1\"\n\n{keys}\n");
    let (path, audit) = (fixture.path("gateway.toml"), fixture.path("audit.jsonl"));
    let audit_file = format!("[gateway]\naudit_file = \"{}\"\n", audit.display());
    let config = fixture.config_text(options).replacen("[gateway]\n", &audit_file, 1);
    fs::write(&path, config + &election).expect("the configuration can be written");
    process::start([Path::new("run"), &path])
}

/// Each line of the alarm names the address from which the forger sends.
fn assert_names_sender(log: &str, alarm: &str, forger: &Forger) {
    let (alarm, from) = (format!("alarm=\"{alarm}\""), format!(" from={} ", forger.address()));
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&alarm)).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&from)), "{lines:#?}");
}

fn assert_output_goes_on(what: &str, fixture: &GatewayFixture, gateway: &MdgwProcess) {
    gateway.wait_for_stderr("gateway running");
    gateway.wait_for_stderr("INFO leads ");
    let mut forger = Forger::join(fixture);
    let day = feeds::itch_packets(feeds::itch_day(400, 1), SESSION, MIDNIGHT_NS);
    VenueSender::default().send(fixture.lines[0], &day);
    process::wait_until("the gateway publishes records", || {
        forger.receive();
        forger.records.is_some()
    });

    // Epochs that nobody believes change nothing.
    let before = forger.highest();
    let mut turn = 0_u64;
    forger.send_packets(None, |highest| {
        turn += 1;
        if turn.is_multiple_of(2) { Epoch(u64::MAX) } else { Epoch::new(highest.count() + JUMP_MAX + 1, 200) }
    });
    // On a crowded machine the leader may lose its lease, and open under the next epoch.
    assert!(forger.highest().node() == fixture.node && forger.highest().count() < before.count() + JUMP_MAX);
    gateway.wait_for_stderr("alarm=\"epoch-jump\"");
    assert_names_sender(&gateway.stderr_so_far(), "epoch-jump", &forger);
    assert!(!gateway.stderr_so_far().contains("raised its epoch"), "{}", gateway.stderr_so_far());

    // Believed ones: the edges +1 and J, and random ones.
    let mut random = Random::new(7);
    (forger.accepted, forger.refused, forger.longest_silence) = (0, 0, Duration::ZERO);
    forger.accepted_at = Instant::now();
    // Their positions, at the session's beginning, make the leader repeat nothing when it raises its epoch.
    forger.republished = 0;
    forger.send_packets(Some(Sequence(1)), |highest| {
        let offset = match random.below(4) {
            0 => 1,
            1 => JUMP_MAX,
            _ => 1 + random.below(JUMP_MAX),
        };
        Epoch::new(highest.count() + offset, u8::try_from(random.below(256)).expect("below 256"))
    });
    let (accepted, refused, longest) = (forger.accepted, forger.refused, forger.longest_silence);
    // Soon after the last forged packet the leader is above it for good.
    forger.receive_accepted(20);
    assert_eq!(forger.highest().node(), fixture.node);
    assert_eq!(forger.republished, 0, "the leader went back to a forged position");
    assert!(forger.highest().count() > before.count() + 100 * FORGED_FOR.as_secs());
    gateway.wait_for_stderr("alarm=\"outranked\"");
    assert_names_sender(&gateway.stderr_so_far(), "outranked", &forger);
    let from = format!("\"from\":\"{}\"", forger.address());
    process::wait_until("the audit names the sender", || {
        let audit = fs::read_to_string(fixture.path("audit.jsonl")).unwrap_or_default();
        audit.lines().any(|line| line.contains("\"event\":\"notice\"") && line.contains(&from))
    });
    gateway.wait_for_stderr("raised its epoch and leads on");
    assert!(!gateway.stderr_so_far().contains("reason=Outranked"), "a raise is no end of a leadership");
    print_to_stderr(&format!(
        "{what}, one forged packet in 10 ms for {} s: {accepted} packets of the leader accepted, {refused} refused, longest \
         silence {:.1} ms",
        FORGED_FOR.as_secs(),
        longest.as_secs_f64() * 1e3
    ));
}

#[test]
fn forged_epochs_leave_a_leader_over_a_record_received() {
    let fixture = GatewayFixture::with_node(1);
    let keys = format!("[election.file]\ndirectory = \"{}\"\n", fixture.path("records").display());
    let gateway = start_with(&fixture, &GatewayOptions::itch(), "file", &keys);
    assert_output_goes_on("file", &fixture, &gateway);
    let _ended = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn forged_epochs_leave_a_leader_without_a_store_received() {
    let fixture = GatewayFixture::with_node(1);
    let key = fixture.path("key");
    fs::write(&key, "07".repeat(32)).expect("the key can be written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the permissions can be set");
    let keys = format!(
        "[election.emergent]\nallow_split = true\nlisten = \"127.0.0.11:{}\"\nkey_file = \"{}\"\nminimum_size = 1\n\
         found = true\nseeds = []\n",
        fixture.output.port(),
        key.display()
    );
    let gateway = start_with(&fixture, &GatewayOptions::itch(), "emergent", &keys);
    assert_output_goes_on("emergent", &fixture, &gateway);
    let _ended = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Control: the tests above, whose forged packets raise the leader's epoch.
#[test]
fn with_tags_forged_epochs_change_nothing() {
    let fixture = GatewayFixture::with_node(1);
    let key_file = fixture.path("tag_key");
    write_key(&key_file);
    let options =
        GatewayOptions { output: format!("tag_key_files = [\"{}\"]\n", key_file.display()), ..GatewayOptions::itch() };
    let keys = format!("[election.file]\ndirectory = \"{}\"\n", fixture.path("records").display());
    let gateway = start_with(&fixture, &options, "file", &keys);
    gateway.wait_for_stderr("gateway running");
    gateway.wait_for_stderr("INFO leads ");
    let mut forger = Forger::join(&fixture);
    forger.tags.keys.push(TagKey::new(&[0x5a; 32]));
    let day = feeds::itch_packets(feeds::itch_day(400, 1), SESSION, MIDNIGHT_NS);
    VenueSender::default().send(fixture.lines[0], &day);
    process::wait_until("the gateway publishes records", || {
        forger.receive();
        forger.records.is_some()
    });
    let mut random = Random::new(7);
    forger.send_packets(Some(Sequence(1)), |highest| {
        let offset = 1 + random.below(JUMP_MAX);
        Epoch::new(highest.count() + offset, u8::try_from(random.below(256)).expect("below 256"))
    });
    forger.receive_accepted(20);
    assert!(forger.tags_refused > 0 && forger.refused == 0, "{} {}", forger.tags_refused, forger.refused);
    assert_eq!(forger.highest().node(), fixture.node);
    gateway.wait_for_stderr("alarm=\"tag-refused\"");
    assert_names_sender(&gateway.stderr_so_far(), "tag-refused", &forger);
    let stderr = gateway.stop_with(Signal::Terminate).expect_code(0).stderr;
    assert!(!stderr.contains("outranked") && !stderr.contains("epoch-jump"), "{stderr}");
}
