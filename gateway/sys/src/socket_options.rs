//! Socket options that `socket2` lacks. Where rustix lacks an option too, it is set by [`set`].

#![allow(unsafe_code, reason = "options that rustix and socket2 lack")]

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
};

use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;

/// Requests receive timestamps (`SO_TIMESTAMPING`); `flags` are `SOF_TIMESTAMPING_*`.
///
/// # Errors
/// If the kernel does not know a flag.
pub(crate) fn request_stamps(socket: &impl AsFd, flags: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags)
}

/// Sets the interface of outgoing multicast by its index, and the source address of its packets (`IP_MULTICAST_IF`).
/// Without an address the routing table chooses one; for the loopback interface that is another interface's address.
///
/// # Errors
/// If there is no such interface.
pub(crate) fn set_egress(socket: &impl AsFd, interface_index: u32, source: Option<Ipv4Addr>) -> io::Result<()> {
    let source = source.unwrap_or(Ipv4Addr::UNSPECIFIED);
    Ok(set_ip_multicast_if_with_ifindex(socket, &Ipv4Addr::UNSPECIFIED, &source, interface_index)?)
}

/// Joins a group for one source (`MCAST_JOIN_SOURCE_GROUP`), on the interface with that index; 0 leaves the choice to
/// the routing table.
///
/// # Errors
/// If there is no such interface, the address is no multicast group, or the group is already joined.
pub(crate) fn join_source(
    socket: &impl AsFd,
    interface_index: u32,
    group: Ipv4Addr,
    source: Ipv4Addr,
) -> io::Result<()> {
    let request = source_request(interface_index, group, source);
    set(socket, libc::IPPROTO_IP, libc::MCAST_JOIN_SOURCE_GROUP, &request)
}

/// Leaves a group joined by [`join_source`].
///
/// # Errors
/// If it was not joined.
pub(crate) fn leave_source(
    socket: &impl AsFd,
    interface_index: u32,
    group: Ipv4Addr,
    source: Ipv4Addr,
) -> io::Result<()> {
    let request = source_request(interface_index, group, source);
    set(socket, libc::IPPROTO_IP, libc::MCAST_LEAVE_SOURCE_GROUP, &request)
}

/// The receive side of a socket's memory, as the kernel counts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveMemory {
    /// Bytes of the receive buffer that are in use.
    pub(crate) used_bytes: u32,
    /// Size of the receive buffer, bytes.
    pub(crate) limit_bytes: u32,
    /// Datagrams that were dropped because the buffer was full or their checksum wrong. Wraps.
    pub(crate) dropped: u32,
}

/// Reads `SO_MEMINFO`.
///
/// # Errors
/// If the descriptor is no socket.
pub(crate) fn receive_memory(socket: &impl AsFd) -> io::Result<ReceiveMemory> {
    let values = get::<[u32; MEMINFO_VALUES]>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(ReceiveMemory { used_bytes: values[RECEIVE_USED], limit_bytes: values[RECEIVE_LIMIT], dropped: values[DROPS] })
}

/// Reads an option of type `T`, which consists of integers. Fields that the kernel does not write stay 0.
pub(super) fn get<T: zerocopy::FromBytes>(socket: &impl AsFd, level: i32, option: i32) -> io::Result<T> {
    let mut value = T::new_zeroed();
    let mut length = bytes_of::<T>();
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: getsockopt(2) writes at most `length` bytes to `value`, which has that many and for which every bit
    // pattern is valid, and the length written to `length`.
    let refused = unsafe { libc::getsockopt(descriptor, level, option, (&raw mut value).cast(), &raw mut length) };
    if refused == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option whose type is `T`.
pub(super) fn set<T>(socket: &impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: setsockopt(2) reads `value`, whose size it is given.
    let refused = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), bytes_of::<T>())
    };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn source_request(interface_index: u32, group: Ipv4Addr, source: Ipv4Addr) -> SourceRequest {
    SourceRequest {
        _interface_index: interface_index,
        _padding: 0,
        _group: Address::new(group),
        _source: Address::new(source),
    }
}

/// `group_source_req` of linux/in.h.
#[repr(C)]
struct SourceRequest {
    _interface_index: u32,
    _padding: u32,
    _group: Address,
    _source: Address,
}
const _: () = assert!(size_of::<SourceRequest>() == size_of::<libc::group_source_req>());

/// A `sockaddr_in`, padded to the size of a `sockaddr_storage`.
#[repr(C)]
struct Address {
    _address: libc::sockaddr_in,
    _rest: [u8; size_of::<libc::sockaddr_storage>() - size_of::<libc::sockaddr_in>()],
}

impl Address {
    fn new(ip: Ipv4Addr) -> Self {
        let address = libc::sockaddr_in {
            sin_family: u16::try_from(libc::AF_INET).unwrap_or(0),
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
            sin_zero: [0; 8],
        };
        Self { _address: address, _rest: [0; size_of::<libc::sockaddr_storage>() - size_of::<libc::sockaddr_in>()] }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "options are small")]
const fn bytes_of<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

/// `SK_MEMINFO_VARS` of linux/sock_diag.h.
const MEMINFO_VALUES: usize = 9;
const RECEIVE_USED: usize = 0;
const RECEIVE_LIMIT: usize = 1;
const DROPS: usize = 8;
const _: () = assert!(RECEIVE_USED == libc::SK_MEMINFO_RMEM_ALLOC as usize);
const _: () = assert!(RECEIVE_LIMIT == libc::SK_MEMINFO_RCVBUF as usize);
const _: () = assert!(DROPS == libc::SK_MEMINFO_DROPS as usize);
