//! Does this gateway hear its group at all? It sends itself a probe there, and listens for it.
//!
//! ```text
//!  probe | MDGP | node u8 | zero u8 × 3 |
//! ```
//! A gateway that doesn't hear its peer publish accuses it only while it hears its own probes; otherwise it is itself that
//! is deaf. No switch sends a packet back where it came from, so a probe comes back through the kernel alone (TTL 0: it
//! doesn't leave the host), and counts only while the interface has a carrier. Receivers see another magic and drop it,
//! and a fence in the kernel lets it pass while it lets nothing else.

use std::net::SocketAddrV4;

use mdgw_feeds::time::MonoNs;
use mdgw_sys::{
    kernel_fence::PROBE_MAGIC,
    sockets::{Interface, OutputOptions, SocketError, open_output},
};
use socket2::Socket;

/// Sends probes to the groups.
#[derive(Debug)]
pub(super) struct Prober {
    node: u8,
    lines: Vec<(Interface, Socket)>,
    due: MonoNs,
}

impl Prober {
    /// By the interfaces on which the groups are joined; addresses of hosts have no members and get no probe.
    ///
    /// # Errors
    /// When a socket can't be had.
    pub(super) fn open<'o>(
        node: u8,
        outputs: impl Iterator<Item = (SocketAddrV4, &'o Interface)>,
    ) -> Result<Self, SocketError> {
        let lines = outputs.filter(|(address, _)| address.ip().is_multicast()).map(|(address, interface)| {
            let options = OutputOptions { ttl: 0, ..OutputOptions::new(address, Some(interface.clone())) };
            let output = open_output(&options)?;
            Ok((interface.clone(), Socket::from(output.socket.try_clone().map_err(during(address))?)))
        });
        Ok(Self { node, lines: lines.collect::<Result<_, _>>()?, due: MonoNs(0) })
    }

    /// Sends what is due. Whether there are groups that can be heard.
    pub(super) fn turn(&mut self, now: MonoNs) -> bool {
        if now >= self.due {
            self.due = now.plus(PROBE_NS);
            for (interface, socket) in &self.lines {
                // Without a carrier nobody hears anybody, whatever comes back through the kernel.
                if interface.lookup().is_ok_and(|interface| interface.running) {
                    // One that can't be sent isn't heard.
                    let _send_failed = socket.send(&to_bytes(self.node));
                }
            }
        }
        !self.lines.is_empty()
    }
}

fn during(address: SocketAddrV4) -> impl FnOnce(std::io::Error) -> SocketError {
    move |source| SocketError { address, action: "share the socket of probes".to_owned(), source }
}

/// Whether a gateway hears what is sent on its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceivePath {
    /// Not known yet, or there is nothing to be heard.
    #[default]
    Unknown,
    /// It hears its own probes.
    Working,
    /// It doesn't.
    Failed,
}

/// When probes were sent first, and heard last.
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

/// Whose probe it is, if it is one.
pub(super) fn node_of(datagram: &[u8]) -> Option<u8> {
    match datagram {
        [magic @ .., node, 0, 0, 0] if magic == PROBE_MAGIC => Some(*node),
        _ => None,
    }
}

fn to_bytes(node: u8) -> [u8; 8] {
    let [m, d, g, p] = *PROBE_MAGIC;
    [m, d, g, p, node, 0, 0, 0]
}

/// Five of them in the time after which a gateway counts as deaf.
const PROBE_NS: u64 = 200_000_000;
const SILENCE_NS_MAX: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_probe_decodes_to_its_senders_node() {
        assert_eq!(node_of(&to_bytes(7)), Some(7));
        for other in [&b""[..], b"MDGP", b"MDGW\x07\0\0\0", b"MDGP\x07\0\0\x01", b"MDGP\x07\0\0\0\0"] {
            assert_eq!(node_of(other), None);
        }
    }

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
