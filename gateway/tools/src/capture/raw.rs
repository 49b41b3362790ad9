//! A line read from a packet ring: whole frames.

use std::{
    io,
    net::SocketAddrV4,
    os::fd::{AsFd as _, BorrowedFd},
};

use mdgw_sys::{
    batch::StampKind,
    packet_ring::{PacketRing, PacketRingOptions},
    sockets::{ReceiveOptions, ReceiveSocket, Stamps, open_receive},
};

use super::{
    CaptureLine, LineInterface, RecordError,
    frame::{Content, Frame, LineReader},
};

/// The packet ring of one line.
#[derive(Debug)]
pub(super) struct RawReader {
    pub(super) interface: LineInterface,
    ring: PacketRing,
    /// Keeps the group joined; no packets are sent to its port.
    _membership: Option<ReceiveSocket>,
    dropped: u64,
}

impl RawReader {
    pub(super) fn open(line: &CaptureLine) -> Result<Self, RecordError> {
        let fail = |act| move |source| RecordError::Ring { line: line.name.clone(), act, source };
        let Some(interface) = &line.interface else {
            let source = io::Error::other("--raw captures from one interface: name it with --interface");
            return Err(fail("find its interface")(source));
        };
        let ring = PacketRing::open(&PacketRingOptions {
            interface_index: interface.index().map_err(fail("find its interface"))?,
            destination: line.address,
            sources: line.sources.clone(),
            ring_bytes: line.buffer_bytes,
            hardware_stamps: line.stamps == Stamps::Hardware,
        })
        .map_err(fail("open a packet ring"))?;
        // The network delivers a group only after a join. The ring sees what any program on this host has joined for, so
        // it selects the senders itself.
        let membership = if line.address.ip().is_multicast() {
            let mut options = ReceiveOptions::new(SocketAddrV4::new(*line.address.ip(), 0), line.interface.clone());
            options.sources.clone_from(&line.sources);
            options.receive_buffer_bytes = MEMBERSHIP_BYTES;
            Some(open_receive(&options)?)
        } else {
            None
        };
        let clock = match line.stamps {
            Stamps::Hardware => "NIC clock where available, else kernel clock",
            Stamps::Kernel | Stamps::None => "kernel clock, when the driver delivered the packet",
        };
        let interface = LineInterface {
            name: line.name.clone(),
            address: line.address,
            description: line.description_text(),
            comment: format!("timestamps: {clock}; whole frames from a packet ring"),
            stamps: line.stamps,
            buffer_bytes: (line.buffer_bytes, line.buffer_bytes),
            drop_count_source: "drops: counter of the packet ring (PACKET_STATISTICS)",
        };
        Ok(Self { interface, ring, _membership: membership, dropped: 0 })
    }
}

impl LineReader for RawReader {
    fn refill(&mut self, _now_ns: u64) -> io::Result<bool> {
        Ok(self.ring.next_block())
    }

    fn head_ns(&self) -> Option<u64> {
        self.ring.head().map(|frame| frame.time_ns)
    }

    fn head(&self) -> Option<Frame<'_>> {
        let frame = self.ring.head()?;
        Some(Frame {
            time_ns: frame.time_ns,
            stamp: if frame.is_hardware { StampKind::Hardware } else { StampKind::Kernel },
            content: Content::RawFrame { bytes: frame.bytes, vlan: frame.vlan, wire_bytes: frame.wire_bytes },
        })
    }

    fn pop(&mut self) {
        self.ring.pop();
    }

    fn dropped(&mut self) -> io::Result<u64> {
        self.dropped += u64::from(self.ring.take_dropped()?);
        Ok(self.dropped)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// The joining socket receives nothing: its buffer is the kernel's minimum.
const MEMBERSHIP_BYTES: usize = 4_096;
