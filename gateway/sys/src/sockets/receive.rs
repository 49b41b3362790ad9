//! The socket of a line.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::{ErrorContext, Interface, Membership, SocketError, Stamps, request_stamps};
use crate::socket_options;

/// Options of a line's socket.
#[derive(Clone, Debug)]
pub struct ReceiveOptions {
    /// Group and port, or an address of this host and a port.
    pub address: SocketAddrV4,
    /// Interface on which the group is joined; `None` leaves the choice to the routing table.
    pub interface: Option<Interface>,
    /// Accepted sources (source-specific multicast); empty for any source.
    pub sources: Vec<Ipv4Addr>,
    /// Receive buffer in bytes of datagrams with their overhead, as `SO_RCVBUF` counts them.
    pub receive_buffer_bytes: usize,
    /// Microseconds for which a blocking wait first polls the NIC's queue (`SO_BUSY_POLL`).
    pub busy_poll_us: Option<u32>,
    /// Timestamps to request.
    pub stamps: Stamps,
}

impl ReceiveOptions {
    /// Default options: 8 MiB of buffer (a burst of 40 ms at 100,000 packets/s, by the kernel's count of about 2 KB for
    /// each), kernel timestamps, no busy poll.
    #[must_use]
    pub fn new(address: SocketAddrV4, interface: Option<Interface>) -> Self {
        Self {
            address,
            interface,
            sources: Vec::new(),
            receive_buffer_bytes: 8 << 20,
            busy_poll_us: None,
            stamps: Stamps::Kernel,
        }
    }
}

/// Requested and granted size of a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// Requested bytes.
    pub requested_bytes: usize,
    /// Bytes that the kernel granted.
    pub granted_bytes: usize,
}

impl ReceiveBuffer {
    /// Whether the kernel granted less than requested.
    #[must_use]
    pub(crate) fn is_capped(self) -> bool {
        self.granted_bytes < self.requested_bytes
    }
}

/// The socket of a line. Dropping it leaves the group.
#[derive(Debug)]
pub struct ReceiveSocket {
    socket: Arc<Socket>,
    /// Size of its receive buffer.
    pub buffer: ReceiveBuffer,
    membership: Option<Membership>,
}

impl ReceiveSocket {
    /// The group that the socket has joined, for a [`MembershipWatch`](super::MembershipWatch) to join again; `None`
    /// for unicast.
    #[must_use]
    pub fn membership(&self) -> Option<Membership> {
        self.membership.clone()
    }

    /// The descriptor, for a handle set's thread.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The socket itself, to be shared with a cold thread.
    #[must_use]
    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// The bound address; port 0 in the options becomes the port chosen by the kernel.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_address(&self) -> std::io::Result<SocketAddrV4> {
        let address = self.socket.local_addr()?.as_socket_ipv4();
        address.ok_or_else(|| std::io::Error::other("not an IPv4 socket"))
    }
}

impl AsFd for ReceiveSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens, binds and joins. Logs a warning if the kernel capped the buffer.
///
/// # Errors
/// Names the refused option or join.
pub fn open_receive(options: &ReceiveOptions) -> Result<ReceiveSocket, SocketError> {
    let address = options.address;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
        .with_action(address, "open a socket")?;
    if address.ip().is_multicast() {
        socket.set_reuse_address(true).with_action(address, "share the port (SO_REUSEADDR)")?;
        socket.set_multicast_all_v4(false).with_action(address, "exclude other groups (IP_MULTICAST_ALL)")?;
    }
    let buffer = set_receive_buffer(&socket, options)?;
    if let Some(busy_poll_us) = options.busy_poll_us {
        let action = format!("set busy polling to {busy_poll_us} us (SO_BUSY_POLL; raising it needs CAP_NET_ADMIN)");
        socket.set_busy_poll(busy_poll_us).with_action(address, action)?;
    }
    request_stamps(&socket, options.stamps).with_action(address, "enable timestamps (SO_TIMESTAMPING)")?;
    socket.bind(&address.into()).with_action(address, "bind a socket")?;
    let socket = Arc::new(socket);
    let membership = address.ip().is_multicast().then(|| Membership {
        socket: Arc::clone(&socket),
        group: *address.ip(),
        sources: options.sources.clone(),
        interface: options.interface.clone(),
        index: 0,
    });
    let membership = match membership {
        None => None,
        Some(mut membership) => {
            membership
                .join()
                .with_action(address, format!("join the group on {}", InterfaceOrRoute(&options.interface)))?;
            Some(membership)
        }
    };
    Ok(ReceiveSocket { socket, buffer, membership })
}

/// Requests the buffer with `SO_RCVBUFFORCE`, which needs privilege, and otherwise with `SO_RCVBUF`.
fn set_receive_buffer(socket: &Socket, options: &ReceiveOptions) -> Result<ReceiveBuffer, SocketError> {
    let (address, requested_bytes) = (options.address, options.receive_buffer_bytes);
    if set_socket_recv_buffer_size_force(socket, requested_bytes).is_err() {
        let action = format!("request a receive buffer of {requested_bytes} bytes");
        socket.set_recv_buffer_size(requested_bytes).with_action(address, action)?;
    }
    // The kernel doubles the requested size for its own overhead, and reports the doubled size.
    let granted_bytes = socket.recv_buffer_size().with_action(address, "read the receive buffer's size")? / 2;
    let buffer = ReceiveBuffer { requested_bytes, granted_bytes };
    if buffer.is_capped() {
        tracing::warn!(
            %address, requested_bytes, granted_bytes,
            "the kernel capped the receive buffer; raise net.core.rmem_max or grant CAP_NET_ADMIN"
        );
    }
    Ok(buffer)
}

/// Whether this process may have larger buffers than `net.core.rmem_max`. Asks by a socket that is closed again.
#[must_use]
pub fn may_exceed_buffer_limit() -> bool {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP));
    // Any size takes the privilege.
    socket.is_ok_and(|socket| set_socket_recv_buffer_size_force(&socket, 1 << 16).is_ok())
}

impl Membership {
    /// Joins on the interface's present index.
    pub(super) fn join(&mut self) -> std::io::Result<()> {
        self.index = self.interface.as_ref().map_or(Ok(0), Interface::index)?;
        if self.sources.is_empty() {
            return self.socket.join_multicast_v4_n(&self.group, &InterfaceIndexOrAddress::Index(self.index));
        }
        let mut sources = self.sources.iter();
        sources.try_for_each(|source| socket_options::join_source(&*self.socket, self.index, self.group, *source))
    }

    /// Leaves the group; an error does not matter, since the kernel may have dropped the membership.
    pub(super) fn leave(&self) {
        if self.sources.is_empty() {
            let _ = self.socket.leave_multicast_v4_n(&self.group, &InterfaceIndexOrAddress::Index(self.index));
        }
        for source in &self.sources {
            let _ = socket_options::leave_source(&*self.socket, self.index, self.group, *source);
        }
    }
}

/// Displays an interface, or that the routing table chooses.
struct InterfaceOrRoute<'a>(&'a Option<Interface>);

impl std::fmt::Display for InterfaceOrRoute<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(interface) => interface.fmt(f),
            None => f.write_str("the interface of the route"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sockets::{OutputOptions, open_output};

    fn group(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(239, 255, 71, last)
    }

    fn on_loopback(group: Ipv4Addr) -> ReceiveSocket {
        let options = ReceiveOptions::new(SocketAddrV4::new(group, 0), Some(Interface::LOOPBACK));
        open_receive(&options).unwrap()
    }

    fn send(to: SocketAddrV4, bytes: &[u8]) {
        let output = open_output(&OutputOptions::new(to, Some(Interface::LOOPBACK))).unwrap();
        let socket = Socket::from(output.socket.try_clone().unwrap());
        match output.destination {
            Some(destination) => socket.send_to(bytes, &destination.into()).unwrap(),
            None => socket.send(bytes).unwrap(),
        };
    }

    fn receive(socket: &ReceiveSocket) -> Option<Vec<u8>> {
        let socket = UdpSocket::from(socket.socket.try_clone().unwrap());
        let mut bytes = [0; 64];
        socket.recv(&mut bytes).ok().map(|length| bytes[..length].to_vec())
    }

    #[test]
    fn only_the_joined_group_is_received() {
        let socket = on_loopback(group(1));
        let port = socket.local_address().unwrap().port();
        // Another program on this host has joined the neighbour group on the same port.
        let neighbour = ReceiveOptions::new(SocketAddrV4::new(group(2), port), Some(Interface::LOOPBACK));
        let neighbour = open_receive(&neighbour).unwrap();
        send(SocketAddrV4::new(group(2), port), b"theirs");
        send(SocketAddrV4::new(group(1), port), b"ours");
        assert_eq!(receive(&socket), Some(b"ours".to_vec()));
        assert_eq!(receive(&socket), None);
        assert_eq!(receive(&neighbour), Some(b"theirs".to_vec()));
    }

    #[test]
    fn two_sockets_share_a_group() {
        let first = on_loopback(group(3));
        let address = first.local_address().unwrap();
        let second = open_receive(&ReceiveOptions::new(address, Some("lo".parse().unwrap()))).unwrap();
        send(address, b"both");
        assert_eq!((receive(&first), receive(&second)), (Some(b"both".to_vec()), Some(b"both".to_vec())));
    }

    #[test]
    fn a_source_specific_join_admits_only_those_sources() {
        let [one, two, other] = [1, 2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
        for (sources, admitted) in
            [(vec![one], vec![one]), (vec![one, two], vec![one, two]), (vec![], vec![one, two, other])]
        {
            let address = SocketAddrV4::new(Ipv4Addr::new(232, 255, 71, 4), 0);
            let options = ReceiveOptions { sources, ..ReceiveOptions::new(address, Some(Interface::LOOPBACK)) };
            let socket = open_receive(&options).unwrap();
            let address = socket.local_address().unwrap();
            // Another program on this host has joined the group for any source on the same port.
            let neighbour = open_receive(&ReceiveOptions::new(address, Some(Interface::LOOPBACK))).unwrap();
            for source in [one, two, other] {
                let sender = UdpSocket::bind((source, 0)).unwrap();
                socket2::SockRef::from(&sender).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
                sender.send_to(b"x", address).unwrap();
                assert_eq!(receive(&socket).is_some(), admitted.contains(&source), "{source} of {:?}", options.sources);
                assert!(receive(&neighbour).is_some(), "{source}");
            }
        }
    }

    #[test]
    fn unicast_addresses_work_without_a_join() {
        let options = ReceiveOptions::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None);
        let socket = open_receive(&options).unwrap();
        assert!(socket.membership().is_none());
        send(socket.local_address().unwrap(), b"direct");
        assert_eq!(receive(&socket), Some(b"direct".to_vec()));
        assert!(open_receive(&ReceiveOptions::new(socket.local_address().unwrap(), None)).is_err(), "port in use");
    }

    #[test]
    fn the_reported_buffer_size_is_what_the_kernel_granted() {
        let mut options = ReceiveOptions::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None);
        options.receive_buffer_bytes = 64 << 10;
        let socket = open_receive(&options).unwrap();
        assert_eq!(socket.buffer, ReceiveBuffer { requested_bytes: 64 << 10, granted_bytes: 64 << 10 });
        assert!(!socket.buffer.is_capped());
        // No kernel grants this much: its size is a 32-bit number, and half of it is overhead.
        options.receive_buffer_bytes = 2 << 30;
        let socket = open_receive(&options).unwrap();
        assert!(socket.buffer.is_capped(), "{:?}", socket.buffer);
    }

    #[test]
    fn buffers_beyond_the_limit_are_granted_if_this_process_may_exceed_it() {
        let limit: usize = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
        let mut options = ReceiveOptions::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None);
        options.receive_buffer_bytes = 2 * limit;
        let socket = open_receive(&options).unwrap();
        assert_eq!(may_exceed_buffer_limit(), !socket.buffer.is_capped(), "{:?}", socket.buffer);
    }

    #[test]
    fn errors_name_the_action_and_the_address() {
        let address = SocketAddrV4::new(group(5), 0);
        let error = open_receive(&ReceiveOptions::new(address, Some("no-such-one".parse().unwrap()))).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot join the group on no-such-one for 239.255.71.5:0: no interface"), "{text}");
    }
}
