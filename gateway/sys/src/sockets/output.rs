//! The socket of an output line.

use std::{net::SocketAddrV4, sync::Arc};

use socket2::{Domain, Protocol, Socket, Type};

use super::{ErrorContext, Interface, SocketError};
use crate::{batch::Output, socket_options};

/// Options of an output.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// Group and port, or a host's address and port.
    pub destination: SocketAddrV4,
    /// Interface of a group's packets; `None` leaves the choice to the routing table.
    pub interface: Option<Interface>,
    /// Time to live of a group's packets: 1 stays on the network, 0 on this host.
    pub ttl: u8,
    /// Whether receivers on this host get a group's packets too.
    pub loopback: bool,
    /// Send buffer in bytes; `None` for the system's default.
    pub send_buffer_bytes: Option<usize>,
}

impl OutputOptions {
    /// Default options: packets stay on the network, and receivers on this host get them too.
    #[must_use]
    pub fn new(destination: SocketAddrV4, interface: Option<Interface>) -> Self {
        Self { destination, interface, ttl: 1, loopback: true, send_buffer_bytes: None }
    }
}

/// Opens the socket of an output line. A socket to a group is connected, which saves the route look-up of each packet.
/// A socket to a host is not connected: a connected socket fails a send with the ICMP error of an earlier one.
///
/// # Errors
/// Names the refused option.
pub fn open_output(options: &OutputOptions) -> Result<Output, SocketError> {
    let destination = options.destination;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
        .with_action(destination, "open a socket")?;
    if let Some(bytes) = options.send_buffer_bytes {
        let action = format!("request a send buffer of {bytes} bytes");
        socket.set_send_buffer_size(bytes).with_action(destination, action)?;
    }
    if !destination.ip().is_multicast() {
        return Ok(Output { socket: Arc::new(socket.into()), destination: Some(destination) });
    }
    if let Some(interface) = &options.interface {
        let egress = interface.lookup().and_then(|now| socket_options::set_egress(&socket, now.index, now.address));
        egress.with_action(destination, format!("send by interface {interface} (IP_MULTICAST_IF)"))?;
    }
    socket.set_multicast_ttl_v4(options.ttl.into()).with_action(destination, "set the TTL (IP_MULTICAST_TTL)")?;
    socket.set_multicast_loop_v4(options.loopback).with_action(destination, "set loopback (IP_MULTICAST_LOOP)")?;
    socket.connect(&destination.into()).with_action(destination, "find a route")?;
    Ok(Output { socket: Arc::new(socket.into()), destination: None })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn output_options_are_set_on_the_socket() {
        let destination = SocketAddrV4::new(Ipv4Addr::new(239, 255, 71, 20), 9_000);
        let mut options = OutputOptions::new(destination, Some("lo".parse().unwrap()));
        (options.ttl, options.loopback) = (7, false);
        let output = open_output(&options).unwrap();
        let socket = Socket::from(output.socket.try_clone().unwrap());
        assert_eq!(socket.multicast_ttl_v4().unwrap(), 7);
        assert!(!socket.multicast_loop_v4().unwrap());
        assert_eq!(socket.peer_addr().unwrap().as_socket_ipv4(), Some(destination));
        assert_eq!(output.destination, None);
    }

    #[test]
    fn a_missing_interface_is_named_in_the_error() {
        let destination = SocketAddrV4::new(Ipv4Addr::new(239, 255, 71, 21), 9_000);
        let text = open_output(&OutputOptions::new(destination, Some("no-such-one".parse().unwrap())))
            .unwrap_err()
            .to_string();
        assert!(text.contains("no-such-one") && text.contains("239.255.71.21:9000"), "{text}");
    }
}
