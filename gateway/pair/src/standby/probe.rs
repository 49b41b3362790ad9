//! Does this gateway receive its group at all? It sends probes to the group and receives them itself.
//!
//! A gateway that does not receive its peer's output blames the peer only while it receives its own probes. Otherwise
//! the fault is its own receive path. No switch sends a packet back to its origin, so a probe returns through the
//! kernel alone (TTL 0: it does not leave the host), and it counts only while the interface has a carrier. Receivers
//! ignore [probes](mdgw_wire::published::probe). The kernel fence lets probes pass when it drops everything else.

use std::net::SocketAddrV4;

use mdgw_sys::sockets::{Interface, OutputOptions, SocketError, open_output};
use mdgw_wire::{published::probe::to_bytes, time::MonoNs};
use socket2::Socket;

/// Sends probes to the groups.
#[derive(Debug)]
pub(super) struct Prober {
    node: u8,
    lines: Vec<(SocketAddrV4, Interface, Socket)>,
    due: MonoNs,
}

impl Prober {
    /// Opens one socket for each group.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub(super) fn open<'o>(
        node: u8,
        outputs: impl Iterator<Item = (SocketAddrV4, &'o Interface)>,
    ) -> Result<Self, SocketError> {
        let mut prober = Self { node, lines: Vec::new(), due: MonoNs(0) };
        for (address, interface) in outputs {
            prober.add(address, interface)?;
        }
        Ok(prober)
    }

    /// Probes one more group. A unicast address has no members and gets no probe.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub(super) fn add(&mut self, address: SocketAddrV4, interface: &Interface) -> Result<(), SocketError> {
        if address.ip().is_multicast() {
            let options = OutputOptions { ttl: 0, ..OutputOptions::new(address, Some(interface.clone())) };
            let output = open_output(&options)?;
            let socket = Socket::from(output.socket.try_clone().map_err(during(address))?);
            self.lines.push((address, interface.clone(), socket));
        }
        Ok(())
    }

    /// Probes a group no longer.
    pub(super) fn remove(&mut self, address: SocketAddrV4, interface: &Interface) {
        self.lines.retain(|(of, on, _)| (*of, on) != (address, interface));
    }

    /// Sends the probes that are due. Returns whether there are groups that can be received.
    pub(super) fn turn(&mut self, now: MonoNs) -> bool {
        if now >= self.due {
            self.due = now.plus(PROBE_NS);
            for (_, interface, socket) in &self.lines {
                // Without a carrier no gateway receives another, whatever comes back through the kernel.
                if interface.lookup().is_ok_and(|interface| interface.running) {
                    // A probe that cannot be sent is not received.
                    let _send_failed = socket.send(&to_bytes(self.node));
                }
            }
        }
        !self.lines.is_empty()
    }
}

fn during(address: SocketAddrV4) -> impl FnOnce(std::io::Error) -> SocketError {
    move |source| SocketError { address, action: "clone the probe socket".to_owned(), source }
}

/// Whether a gateway receives what is sent to its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceivePath {
    /// Not known yet, or there is no group to receive.
    #[default]
    Unknown,
    /// The gateway receives its own probes.
    Working,
    /// The gateway does not receive its own probes.
    Failed,
}

/// When probes were first sent, and last received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeTimes {
    pub(super) first_sent_at: Option<MonoNs>,
    pub(super) last_received_at: Option<MonoNs>,
}

impl ProbeTimes {
    pub(super) fn receive_path(self, now: MonoNs) -> ReceivePath {
        let is_recent = |at: MonoNs| now.since(at) < SILENCE_NS_MAX;
        match self {
            Self { last_received_at: Some(last_received_at), .. } if is_recent(last_received_at) => {
                ReceivePath::Working
            }
            Self { first_sent_at: Some(first_sent_at), .. } if !is_recent(first_sent_at) => ReceivePath::Failed,
            _ => ReceivePath::Unknown,
        }
    }
}

/// Interval between probes, ns: five probes within the time after which a gateway counts as not receiving.
const PROBE_NS: u64 = 200_000_000;
const SILENCE_NS_MAX: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receive_path_counts_as_failed_after_one_second_without_a_probe() {
        let at = |ms: u64| MonoNs(5_000_000_000 + ms * 1_000_000);
        let times = |first_sent_at: Option<u64>, last_received_at: Option<u64>| ProbeTimes {
            first_sent_at: first_sent_at.map(at),
            last_received_at: last_received_at.map(at),
        };
        assert_eq!(times(None, None).receive_path(at(9_000)), ReceivePath::Unknown);
        assert_eq!(times(Some(0), None).receive_path(at(999)), ReceivePath::Unknown);
        assert_eq!(times(Some(0), None).receive_path(at(1_000)), ReceivePath::Failed);
        assert_eq!(times(Some(0), Some(1_500)).receive_path(at(2_499)), ReceivePath::Working);
        assert_eq!(times(Some(0), Some(1_500)).receive_path(at(2_500)), ReceivePath::Failed);
    }
}
