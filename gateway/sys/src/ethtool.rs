//! Settings of network cards as `ethtool` shows them, by the ioctl that every driver serves. Reading takes no privilege.

#![allow(unsafe_code, reason = "an ioctl(2), unsafe in rustix too")]

use std::{io, net::UdpSocket, os::fd::AsRawFd};

use crate::interface_request::InterfaceRequest;

/// Descriptors of a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRing {
    /// Descriptors in use.
    pub present: u32,
    /// The most that the card takes.
    pub max: u32,
}

/// How a card delays interrupts for received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Longest delay, microseconds.
    pub receive_us: u32,
    /// Whether the driver adapts the delay to the load.
    pub is_adaptive: bool,
}

/// What a card can timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampSupport {
    /// Whether every received packet can have a stamp of the card.
    pub all_received: bool,
    /// Number of the card's clock, `/dev/ptpN`.
    pub clock: Option<u32>,
}

/// The receive ring (`ethtool -g`).
///
/// # Errors
/// Without such an interface, or if its driver has no such setting.
pub fn receive_ring(interface: &str) -> io::Result<ReceiveRing> {
    // struct ethtool_ringparam: cmd, rx_max_pending, rx_mini_max_pending, rx_jumbo_max_pending, tx_max_pending, rx_pending.
    let [_, max, _, _, _, present, ..] = query(interface, Command::RingParameters)?;
    Ok(ReceiveRing { present, max })
}

/// Interrupt coalescing (`ethtool -c`).
///
/// # Errors
/// As [`receive_ring`].
pub fn coalescing(interface: &str) -> io::Result<Coalescing> {
    // struct ethtool_coalesce: cmd, rx_coalesce_usecs; use_adaptive_rx_coalesce is the eleventh word.
    let words = query(interface, Command::Coalescing)?;
    Ok(Coalescing { receive_us: words[1], is_adaptive: words[10] != 0 })
}

/// Whether the kernel merges received packets (`ethtool -k`: generic-receive-offload).
///
/// # Errors
/// As [`receive_ring`].
pub fn generic_receive_offload(interface: &str) -> io::Result<bool> {
    query(interface, Command::GenericReceiveOffload).map(|words| words[1] != 0)
}

/// Whether the card merges received packets (`ethtool -k`: large-receive-offload).
///
/// # Errors
/// As [`receive_ring`].
pub fn large_receive_offload(interface: &str) -> io::Result<bool> {
    query(interface, Command::Flags).map(|words| words[1] & FLAG_LARGE_RECEIVE_OFFLOAD != 0)
}

/// What the card can timestamp (`ethtool -T`).
///
/// # Errors
/// As [`receive_ring`].
pub fn stamp_support(interface: &str) -> io::Result<StampSupport> {
    // struct ethtool_ts_info: cmd, so_timestamping, phc_index, tx_types, tx_reserved[3], rx_filters.
    let [_, sources, clock, _, _, _, _, filters, ..] = query(interface, Command::TimestampInfo)?;
    let has_filter = filters >> libc::HWTSTAMP_FILTER_ALL & 1 == 1;
    let all_received = sources & libc::SOF_TIMESTAMPING_RX_HARDWARE != 0 && has_filter;
    Ok(StampSupport { all_received, clock: i32::try_from(clock).is_ok().then_some(clock) })
}

/// Commands of linux/ethtool.h that only read. The kernel's answer to each fits [`ANSWER_WORDS`].
#[derive(Clone, Copy)]
#[repr(u32)]
enum Command {
    /// `ETHTOOL_GCOALESCE`: 23 words.
    Coalescing = 0x0e,
    /// `ETHTOOL_GRINGPARAM`: 9 words.
    RingParameters = 0x10,
    /// `ETHTOOL_GFLAGS`: 2 words.
    Flags = 0x25,
    /// `ETHTOOL_GGRO`: 2 words.
    GenericReceiveOffload = 0x2b,
    /// `ETHTOOL_GET_TS_INFO`: 11 words.
    TimestampInfo = 0x41,
}

/// More words than the longest answer has.
const ANSWER_WORDS: usize = 32;
/// `ETH_FLAG_LRO`.
const FLAG_LARGE_RECEIVE_OFFLOAD: u32 = 1 << 15;
/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

fn query(interface: &str, command: Command) -> io::Result<[u32; ANSWER_WORDS]> {
    let mut words = [0; ANSWER_WORDS];
    words[0] = command as u32;
    let mut request = InterfaceRequest::new(interface, &raw mut words)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "invalid interface name"))?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: the request is laid out as `ifreq`, and its data lives until the call returns. The kernel reads the command and
    // writes its structure, which is shorter than `words` for each `Command`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_answers_what_it_has_and_refuses_the_rest() {
        assert!(generic_receive_offload("lo").is_ok());
        assert!(!large_receive_offload("lo").unwrap());
        receive_ring("lo").unwrap_err();
        coalescing("lo").unwrap_err();
        assert!(stamp_support("lo").is_ok_and(|support| !support.all_received && support.clock.is_none()));
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        for name in ["no-such-one", "", "a name that is longer than any"] {
            generic_receive_offload(name).unwrap_err();
        }
    }
}
