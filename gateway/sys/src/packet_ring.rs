//! A ring of received frames shared with the kernel: `AF_PACKET` with TPACKET_V3 (packet(7), linux/if_packet.h).
//!
//! ```text
//!  block 0            block 1            …      the kernel fills a block, hands it over when it is full or RETIRE_MS
//!  [frame|frame|…]    [frame|frame|…]           old, and continues with the next; we return it after reading
//! ```
//! A block belongs to one side at a time. Its status word is the only memory that both sides access at once. Frames
//! that find no block owned by the kernel are dropped and counted.

#![allow(unsafe_code, reason = "memory shared with the kernel; addresses of AF_PACKET, which rustix lacks")]

use std::{
    io,
    mem::offset_of,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use socket2::{SockFilter, SockRef};

use super::socket_options::{get, set};

/// Which frames the ring receives, and how many bytes it has for them.
#[derive(Clone, Debug)]
pub struct PacketRingOptions {
    /// Index of the interface, Ethernet or loopback.
    pub interface_index: u32,
    /// Destination of the UDP datagrams to receive.
    pub destination: SocketAddrV4,
    /// Senders of the datagrams to receive; empty: any sender.
    pub sources: Vec<Ipv4Addr>,
    /// Room for frames with their headers; rounded up to whole blocks.
    pub ring_bytes: usize,
    /// Use the NIC's timestamps if it makes them.
    pub hardware_stamps: bool,
}

/// A ring and the frames of the block that is being read.
#[derive(Debug)]
pub struct PacketRing {
    socket: OwnedFd,
    memory: MmapRaw,
    block_count: usize,
    /// The block that is being read, or the next one to be read.
    block: usize,
    /// Frames of the block not yet popped, and the offset of the first of them.
    frames_left: u32,
    frame_offset: usize,
    owns_block: bool,
}

/// A received frame, which borrows the memory of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFrame<'r> {
    /// Receive timestamp, ns since 1970 UTC by the clock of the NIC or of the kernel.
    pub time_ns: u64,
    /// Whether the timestamp is the NIC's.
    pub is_hardware: bool,
    /// Bytes on the wire, without the VLAN tag.
    pub wire_bytes: u32,
    /// The VLAN tag (type and control) that the kernel removed.
    pub vlan: Option<[u8; 4]>,
    /// The frame from its MAC addresses on.
    pub bytes: &'r [u8],
}

impl PacketRing {
    /// Opens a ring. Frames that this host sends are left out, except those it receives itself (loopback).
    ///
    /// # Errors
    /// Without CAP_NET_RAW; if the interface does not exist or is no Ethernet; without memory for the ring.
    pub fn open(options: &PacketRingOptions) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // No protocol: no frame is received before `bind`.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        attach_filter(&socket, options.destination, &options.sources)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32))?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        if options.hardware_stamps {
            set(&socket, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, &libc::SOF_TIMESTAMPING_RAW_HARDWARE)?;
        }
        let block_count = options.ring_bytes.div_ceil(BLOCK_BYTES).max(BLOCKS_MIN);
        let sizes = [BLOCK_BYTES, block_count, FRAME_BYTES_MIN, BLOCK_BYTES / FRAME_BYTES_MIN * block_count];
        let [block_bytes, blocks, frame_bytes, frames] = sizes.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let request = libc::tpacket_req3 {
            tp_block_size: block_bytes,
            tp_block_nr: blocks,
            tp_frame_size: frame_bytes,
            tp_frame_nr: frames,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let memory = MmapOptions::new().len(BLOCK_BYTES * block_count).map_raw(&socket)?;
        bind(&socket, options.interface_index)?;
        Ok(Self { socket, memory, block_count, block: 0, frames_left: 0, frame_offset: 0, owns_block: false })
    }

    /// Gives the block that was read back to the kernel, and moves to the next one. `false`: the kernel still fills the
    /// next block.
    pub fn next_block(&mut self) -> bool {
        if std::mem::take(&mut self.owns_block) {
            // Release: our reads of the block come before the kernel's writes to it.
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.block = (self.block + 1) % self.block_count;
        }
        self.frames_left = 0;
        // Acquire pairs with the kernel's barrier before it hands the block over.
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        self.owns_block = true;
        self.frames_left = read_u32(self.bytes(), BLOCK_HEADER + offset_of!(libc::tpacket_hdr_v1, num_pkts));
        let first = read_u32(self.bytes(), BLOCK_HEADER + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt));
        self.frame_offset = first as usize;
        true
    }

    /// The first frame of the block that was not [popped](Self::pop) yet.
    #[must_use]
    pub fn head(&self) -> Option<RingFrame<'_>> {
        if self.frames_left == 0 {
            return None;
        }
        let frame = self.bytes().get(self.frame_offset..)?;
        let field = |at| read_u32(frame, at);
        let mac = usize::from(read_u16(frame, offset_of!(libc::tpacket3_hdr, tp_mac)));
        let captured_bytes = field(offset_of!(libc::tpacket3_hdr, tp_snaplen)) as usize;
        let status = field(offset_of!(libc::tpacket3_hdr, tp_status));
        let seconds = u64::from(field(offset_of!(libc::tpacket3_hdr, tp_sec)));
        let tag_at = offset_of!(libc::tpacket3_hdr, hv1);
        let vlan = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let control = field(tag_at + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci));
            let kind = match read_u16(frame, tag_at + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid)) {
                kind if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 => kind,
                _ => 0x8100,
            };
            let [.., high, low] = control.to_be_bytes();
            let [kind_high, kind_low] = kind.to_be_bytes();
            [kind_high, kind_low, high, low]
        });
        Some(RingFrame {
            time_ns: seconds * 1_000_000_000 + u64::from(field(offset_of!(libc::tpacket3_hdr, tp_nsec))),
            is_hardware: status & libc::TP_STATUS_TS_RAW_HARDWARE != 0,
            wire_bytes: field(offset_of!(libc::tpacket3_hdr, tp_len)),
            vlan,
            bytes: frame.get(mac..mac + captured_bytes)?,
        })
    }

    /// Removes the [head](Self::head).
    pub fn pop(&mut self) {
        let header = self.bytes().get(self.frame_offset..).unwrap_or_default();
        let step = read_u32(header, offset_of!(libc::tpacket3_hdr, tp_next_offset)) as usize;
        self.frames_left = self.frames_left.saturating_sub(1);
        self.frame_offset += step;
    }

    /// Frames dropped since the last call, because the ring was full (`PACKET_STATISTICS`).
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn take_dropped(&self) -> io::Result<u32> {
        // Three counts: frames, dropped frames, times the ring was found full. Reading clears them.
        let [_, dropped, _] = get::<[u32; 3]>(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(dropped)
    }

    /// The bytes of the block; empty unless this side owns it.
    fn bytes(&self) -> &[u8] {
        if !self.owns_block {
            return &[];
        }
        let start = self.memory.as_ptr().wrapping_add(self.block * BLOCK_BYTES);
        // SAFETY: the mapping is `block_count` blocks long and lives as long as `self`, and `block < block_count`. The
        // kernel handed the block over and does not write to it before `next_block`, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start, BLOCK_BYTES) }
    }

    /// The status word, which says which side owns the block.
    fn status(&self) -> &AtomicU32 {
        let at = self.block * BLOCK_BYTES + BLOCK_HEADER + offset_of!(libc::tpacket_hdr_v1, block_status);
        let word = self.memory.as_mut_ptr().wrapping_add(at).cast::<u32>();
        // SAFETY: the word lies within the mapping, aligned (blocks begin on pages, the word at 8), and both sides
        // access it as a whole. We read it as part of `bytes` only while no side writes to it.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

impl AsFd for PacketRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How long the kernel keeps a block that is not full, ms.
pub const RETIRE_MS: u32 = 8;
/// Bytes of a block: a power of two of pages, and room for a few hundred packets.
const BLOCK_BYTES: usize = 256 << 10;
/// Least number of blocks: one block is read while the kernel fills the others.
const BLOCKS_MIN: usize = 4;
/// Frame size of the request. The kernel only checks it against the block size: in version 3 a frame takes the room it
/// needs.
const FRAME_BYTES_MIN: usize = 2_048;
/// `tpacket_block_desc`: two words, then `tpacket_hdr_v1`.
const BLOCK_HEADER: usize = 8;
const _: () = assert!(offset_of!(libc::tpacket_block_desc, hdr) == BLOCK_HEADER);
const _: () = assert!(size_of::<libc::tpacket_stats_v3>() == size_of::<[u32; 3]>());

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_ne_bytes(*word))
}

/// Receives every frame of the interface that passes the filter.
fn bind(socket: &OwnedFd, interface_index: u32) -> io::Result<()> {
    let mut address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be(),
        sll_ifindex: i32::try_from(interface_index).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let mut address_bytes = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).map_err(io::Error::other)?;
    let descriptor = socket.as_raw_fd();
    // SAFETY: bind(2) reads `address_bytes` of `address`, which is that long.
    if unsafe { libc::bind(descriptor, (&raw const address).cast(), address_bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getsockname(2) writes at most `address_bytes` to `address`, which is that long, and the length written to
    // `address_bytes`.
    if unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &raw mut address_bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    match address.sll_hatype {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(()),
        other => Err(io::Error::other(format!("not an Ethernet interface (hardware type {other})"))),
    }
}

/// Accepts UDP over IPv4 to `destination` from `sources`, or from any sender if there are none. First fragments are
/// included. The kernel has removed a VLAN tag before.
fn attach_filter(socket: &OwnedFd, destination: SocketAddrV4, sources: &[Ipv4Addr]) -> io::Result<()> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_FROM_X: u16 = 0x48;
    const LOAD_IP_HEADER_LENGTH_TO_X: u16 = 0xb1;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const REJECT: usize = 11;
    const FRAME_BYTES_MAX: u32 = 0x4_0000;
    let step = |code, k| SockFilter::new(code, 0, 0, k);
    // Distance of the jump from the step at `at` to the rejection.
    let to_reject = |at: usize| u8::try_from(REJECT - at - 1).unwrap_or(0);
    let unless = |at, k| SockFilter::new(JUMP_IF_EQUAL, 0, to_reject(at), k);
    let mut program = vec![
        step(LOAD_HALF, 12),
        unless(1, 0x0800),
        step(LOAD_WORD, 30),
        unless(3, destination.ip().to_bits()),
        step(LOAD_BYTE, 23),
        unless(5, 17),
        step(LOAD_HALF, 20),
        SockFilter::new(JUMP_IF_ANY_BIT, to_reject(7), 0, 0x1fff),
        step(LOAD_IP_HEADER_LENGTH_TO_X, 14),
        step(LOAD_HALF_FROM_X, 16),
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, destination.port().into()),
        step(RETURN, 0),
    ];
    if !sources.is_empty() {
        program.push(step(LOAD_WORD, 26));
        for source in sources {
            program.push(SockFilter::new(JUMP_IF_EQUAL, 0, 1, source.to_bits()));
            program.push(step(RETURN, FRAME_BYTES_MAX));
        }
    }
    program.push(step(RETURN, if sources.is_empty() { FRAME_BYTES_MAX } else { 0 }));
    SockRef::from(socket).attach_filter(&program)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{SocketAddr, UdpSocket},
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::sockets::Interface;

    /// The last bytes of the frames that a ring for these sources receives, up to the frame that ends in `last`; `None`:
    /// skipped.
    fn received(sources: &[Ipv4Addr], last: u8) -> Option<Vec<u8>> {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(destination) = receiver.local_addr().unwrap() else { unreachable!() };
        let opened = PacketRing::open(&PacketRingOptions {
            interface_index: Interface::LOOPBACK.index().unwrap(),
            destination,
            sources: sources.to_vec(),
            ring_bytes: 0,
            hardware_stamps: false,
        });
        let mut ring = match opened {
            Ok(ring) => ring,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                crate::skip::skip("a packet ring", &format!("no packet ring ({error}); run as root"));
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        for source in [3, 1, 2] {
            let sender = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, source), 0)).unwrap();
            sender.send_to(&[source], destination).unwrap();
        }
        let (mut bytes, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while bytes.last() != Some(&last) && Instant::now() < deadline {
            if !ring.next_block() {
                thread::sleep(Duration::from_millis(1));
            }
            while let Some(frame) = ring.head() {
                bytes.extend(frame.bytes.last());
                ring.pop();
            }
        }
        Some(bytes)
    }

    #[test]
    fn a_ring_receives_frames_of_its_sources_only() {
        let [one, two] = [1, 2].map(|last| Ipv4Addr::new(127, 0, 0, last));
        for (sources, expected) in [(&[one, two][..], &[1, 2][..]), (&[two], &[2]), (&[], &[3, 1, 2])] {
            let Some(bytes) = received(sources, 2) else { return };
            assert_eq!(bytes, expected, "{sources:?}");
        }
    }
}
