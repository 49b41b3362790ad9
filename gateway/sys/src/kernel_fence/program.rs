//! The program: hand-assembled, since it is short and the build must not need a compiler for BPF.
//!
//! ```text
//!   not IPv4, not UDP, no fenced destination ──────────────────► pass
//!   MDGP that does not leave the host (TTL 0) ─────────────────► pass
//!   not MDGW, unknown group, other epoch, not before deadline ─► refuse
//!   shut by the sentinel ──────────────────────────────────────► refuse
//! ```
//! Registers: r6 the packet, r7 destination and later the slot, r8 length of the IP header, r9 TTL and later the
//! deadline. Stack: 24 bytes below the frame for data read from the packet.

use std::{
    collections::BTreeSet,
    net::SocketAddrV4,
    os::fd::{AsFd as _, AsRawFd as _},
};

use mdgw_wire::{
    identity::GroupId,
    published::{
        packet::{PACKET_MAGIC, PacketHeader},
        probe::PROBE_MAGIC,
    },
};

use super::{SLOT_ATOMICS, bpf::Map};

/// One instruction, as `bpf_insn` of linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}
const _: () = assert!(size_of::<Instruction>() == 8);

/// Destinations of fenced packets, each once, as the program compares them: address, then port, in network order.
pub(super) struct Destinations(BTreeSet<u64>);

impl Destinations {
    pub(super) fn new(destinations: &[SocketAddrV4]) -> Self {
        Self(destinations.iter().map(|destination| Self::key(*destination)).collect())
    }

    /// The destination as the program computes it from a packet: two loads, one of them shifted.
    fn key(destination: SocketAddrV4) -> u64 {
        let address = u32::from_ne_bytes(destination.ip().octets());
        let port = u16::from_ne_bytes(destination.port().to_be_bytes());
        u64::from(address) << 16 | u64::from(port)
    }
}

/// The whole program over `map`, which has a slot for each group.
pub(super) fn fence(map: &Map, groups: &[GroupId], destinations: &Destinations) -> Vec<Instruction> {
    let mut code = Assembler::default();
    code.push(MOV_REGISTER, R6, R1, 0, 0);
    code.push(LOAD_32, R0, R6, SKB_PROTOCOL, 0);
    code.jump(JUMP_NOT_EQUAL, R0, i32::from(ETH_P_IP.to_be()), Label::Pass);
    // Load the IP header without options.
    code.push(MOV, R2, 0, 0, 0);
    code.load_packet(IP_HEADER_BYTES, Label::Pass);
    code.push(LOAD_8, R1, R10, BUFFER + IP_PROTOCOL, 0);
    code.jump(JUMP_NOT_EQUAL, R1, libc::IPPROTO_UDP, Label::Pass);
    code.push(LOAD_8, R9, R10, BUFFER + IP_TTL, 0);
    code.push(LOAD_32, R7, R10, BUFFER + IP_DESTINATION, 0);
    code.push(SHIFT_LEFT, R7, 0, 0, 16);
    code.push(LOAD_8, R8, R10, BUFFER, 0);
    code.push(AND, R8, 0, 0, 0xf);
    code.push(SHIFT_LEFT, R8, 0, 0, 2);
    // Load the destination's port.
    code.push(MOV_REGISTER, R2, R8, 0, 0);
    code.push(ADD, R2, 0, 0, UDP_DESTINATION);
    code.load_packet(2, Label::Pass);
    code.push(LOAD_16, R1, R10, BUFFER, 0);
    code.push(OR_REGISTER, R7, R1, 0, 0);
    for key in &destinations.0 {
        code.load_64(R1, 0, *key);
        code.jump_register(JUMP_EQUAL_REGISTER, R7, R1, Label::FencedDestination);
    }
    code.jump(JUMP, 0, 0, Label::Pass);

    code.bind(Label::FencedDestination);
    // Let a gateway's probe of its own group pass: receivers do not accept it as a packet, and with TTL 0 it does not
    // reach another host.
    code.jump(JUMP_NOT_EQUAL, R9, 0, Label::PublishedPacket);
    code.push(MOV_REGISTER, R2, R8, 0, 0);
    code.push(ADD, R2, 0, 0, UDP_HEADER_BYTES);
    code.load_packet(MAGIC_BYTES, Label::Refuse);
    code.push(LOAD_32, R1, R10, BUFFER, 0);
    code.jump(JUMP_NOT_EQUAL_32, R1, i32::from_ne_bytes(*PROBE_MAGIC), Label::PublishedPacket);
    code.jump(JUMP, 0, 0, Label::Pass);

    code.bind(Label::PublishedPacket);
    code.push(MOV_REGISTER, R2, R8, 0, 0);
    code.push(ADD, R2, 0, 0, UDP_HEADER_BYTES);
    code.load_packet(PUBLISHED_BYTES, Label::Refuse);
    code.push(LOAD_32, R1, R10, BUFFER + PUBLISHED_MAGIC, 0);
    // Compared as 32 bits: a 64-bit comparison would sign-extend the immediate.
    code.jump(JUMP_NOT_EQUAL_32, R1, i32::from_ne_bytes(PACKET_MAGIC.to_le_bytes()), Label::Refuse);
    code.push(LOAD_16, R1, R10, BUFFER + PUBLISHED_GROUP, 0);
    for (index, group) in groups.iter().enumerate() {
        let on_wire = u16::from_ne_bytes(group.0.to_le_bytes());
        // The jump skips the next three instructions, of which the first is twice as long.
        code.push(JUMP_NOT_EQUAL, R1, 0, 3, i32::from(on_wire));
        code.load_slot(R7, map, index);
        code.jump(JUMP, 0, 0, Label::KnownGroup);
    }
    code.jump(JUMP, 0, 0, Label::Refuse);

    code.bind(Label::KnownGroup);
    // Load the deadline before the epoch: the writer stores them in the opposite order.
    code.push(LOAD_64, R9, R7, 0, 0);
    code.push(LOAD_64, R1, R7, 8, 0);
    code.push(LOAD_64, R2, R10, BUFFER + PUBLISHED_EPOCH, 0);
    code.push(TO_LITTLE_ENDIAN, R2, 0, 0, 64);
    code.jump_register(JUMP_NOT_EQUAL_REGISTER, R1, R2, Label::Refuse);
    code.push(CALL, 0, 0, 0, KTIME_GET_BOOT_NS);
    code.jump_register(JUMP_GREATER_EQUAL_REGISTER, R0, R9, Label::Refuse);
    // After the last slot: whether the sentinel has shut the fence.
    code.load_slot(R1, map, groups.len());
    code.push(LOAD_64, R1, R1, 0, 0);
    code.jump(JUMP_NOT_EQUAL, R1, 0, Label::Refuse);

    code.bind(Label::Pass);
    code.push(MOV, R0, 0, 0, 1);
    code.push(EXIT, 0, 0, 0, 0);
    code.bind(Label::Refuse);
    code.push(MOV, R0, 0, 0, 0);
    code.push(EXIT, 0, 0, 0, 0);
    code.finished()
}

/// Jump targets. All jumps go forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    FencedDestination,
    PublishedPacket,
    KnownGroup,
    Pass,
    Refuse,
}

#[derive(Debug, Default)]
struct Assembler {
    code: Vec<Instruction>,
    /// Jumps whose distance is not known yet.
    unresolved: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: source << 4 | destination, offset, immediate });
    }

    fn jump(&mut self, code: u8, register: u8, immediate: i32, target: Label) {
        self.unresolved.push((self.code.len(), target));
        self.push(code, register, 0, 0, immediate);
    }

    fn jump_register(&mut self, code: u8, left: u8, right: u8, target: Label) {
        self.unresolved.push((self.code.len(), target));
        self.push(code, left, right, 0, 0);
    }

    fn bind(&mut self, target: Label) {
        let here = self.code.len();
        let (code, unresolved) = (&mut self.code, &mut self.unresolved);
        unresolved.retain(|(from, wanted)| {
            if *wanted == target {
                let distance = here - from - 1;
                code[*from].offset = i16::try_from(distance).unwrap_or_else(|_| unreachable!("the lists are bounded"));
            }
            *wanted != target
        });
    }

    /// Loads a 64-bit constant: the only instruction of double length.
    fn load_64(&mut self, register: u8, kind: u8, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.push(LOAD_CONSTANT, register, kind, 0, i32::from_le_bytes([a, b, c, d]));
        self.push(0, 0, 0, 0, i32::from_le_bytes([e, f, g, h]));
    }

    /// Loads the address of a slot of the map.
    fn load_slot(&mut self, register: u8, map: &Map, index: usize) {
        let descriptor = u64::from(map.as_fd().as_raw_fd().cast_unsigned());
        let offset_bytes = (index * SLOT_ATOMICS * size_of::<u64>()) as u64;
        self.load_64(register, PSEUDO_MAP_VALUE, offset_bytes << 32 | descriptor);
    }

    /// Copies bytes of the packet, from the offset in r2, to the buffer.
    fn load_packet(&mut self, bytes: i32, otherwise: Label) {
        self.push(MOV_REGISTER, R1, R6, 0, 0);
        self.push(MOV_REGISTER, R3, R10, 0, 0);
        self.push(ADD, R3, 0, 0, BUFFER.into());
        self.push(MOV, R4, 0, 0, bytes);
        self.push(CALL, 0, 0, 0, SKB_LOAD_BYTES);
        self.jump(JUMP_NOT_EQUAL, R0, 0, otherwise);
    }

    fn finished(self) -> Vec<Instruction> {
        assert!(self.unresolved.is_empty(), "a jump to nowhere: {:?}", self.unresolved);
        self.code
    }
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const R10: u8 = 10;

// Class, size or operation, and source of each code: Documentation/bpf/standardization/instruction-set.rst.
const LOAD_CONSTANT: u8 = 0x18;
const LOAD_8: u8 = 0x71;
const LOAD_16: u8 = 0x69;
const LOAD_32: u8 = 0x61;
const LOAD_64: u8 = 0x79;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const OR_REGISTER: u8 = 0x4f;
const MOV: u8 = 0xb7;
const MOV_REGISTER: u8 = 0xbf;
const TO_LITTLE_ENDIAN: u8 = 0xd4;
const JUMP: u8 = 0x05;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_NOT_EQUAL_32: u8 = 0x56;
const JUMP_EQUAL_REGISTER: u8 = 0x1d;
const JUMP_NOT_EQUAL_REGISTER: u8 = 0x5d;
const JUMP_GREATER_EQUAL_REGISTER: u8 = 0x3d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source of a constant that consists of a map's descriptor and an offset into its only value.
const PSEUDO_MAP_VALUE: u8 = 2;

// Helper functions of the kernel: `bpf_func_id` of linux/bpf.h.
const SKB_LOAD_BYTES: i32 = 26;
const KTIME_GET_BOOT_NS: i32 = 125;

/// `protocol` of `__sk_buff`.
const SKB_PROTOCOL: i16 = 16;
const ETH_P_IP: u16 = 0x0800;

/// Offset of the buffer for packet data, below the frame.
const BUFFER: i16 = -24;
const IP_HEADER_BYTES: i32 = 20;
const IP_TTL: i16 = 8;
const IP_PROTOCOL: i16 = 9;
const IP_DESTINATION: i16 = 16;
const UDP_DESTINATION: i32 = 2;
const UDP_HEADER_BYTES: i32 = 8;

const MAGIC_BYTES: i32 = 4;
/// A published packet's header up to its epoch.
const PUBLISHED_BYTES: i32 = 24;
const PUBLISHED_MAGIC: i16 = 0;
const PUBLISHED_GROUP: i16 = 6;
const PUBLISHED_EPOCH: i16 = 16;
const _: () = assert!(std::mem::offset_of!(PacketHeader, magic) == 0);
const _: () = assert!(std::mem::offset_of!(PacketHeader, group) == 6);
const _: () = assert!(std::mem::offset_of!(PacketHeader, epoch) == 16);
