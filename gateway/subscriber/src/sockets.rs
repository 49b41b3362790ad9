//! The sockets: one per output line, one per retransmission service.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
};

use socket2::{Domain, Protocol, Socket, Type};

use super::LineAddress;

/// A socket that receives only this line, and the receive buffer granted by the kernel.
pub(super) fn open_line(
    line: &LineAddress,
    sources: &[Ipv4Addr],
    receive_buffer_bytes: usize,
) -> io::Result<(UdpSocket, usize)> {
    let (socket, granted) = open(receive_buffer_bytes)?;
    // Several subscribers may run on one host.
    socket.set_reuse_address(true)?;
    socket.bind(&line.address.into())?;
    let group = line.address.ip();
    if group.is_multicast() {
        // Otherwise, groups that other processes joined on the same port would arrive here too.
        socket.set_multicast_all_v4(false)?;
        if sources.is_empty() {
            socket.join_multicast_v4(group, &line.interface)?;
        }
        for source in sources {
            socket.join_ssm_v4(source, group, &line.interface)?;
        }
    }
    Ok((socket.into(), granted))
}

/// A socket connected to the service, so that only the service's datagrams are accepted as answers.
pub(super) fn open_service(address: SocketAddrV4, receive_buffer_bytes: usize) -> io::Result<UdpSocket> {
    let (socket, _) = open(receive_buffer_bytes)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into())?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

fn open(receive_buffer_bytes: usize) -> io::Result<(Socket, usize)> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // Beyond the host's limit where the process may: a receiver that is busy for a moment must not lose packets.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, receive_buffer_bytes).is_err() {
        socket.set_recv_buffer_size(receive_buffer_bytes)?;
    }
    let granted = socket.recv_buffer_size()?;
    Ok((socket, granted))
}
