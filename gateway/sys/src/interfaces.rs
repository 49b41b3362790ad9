//! Network interfaces of the calling thread's network namespace.

#![allow(unsafe_code, reason = "getifaddrs(3), a list of pointers")]

use std::{ffi::CStr, io, net::Ipv4Addr, os::fd::OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netdevice::name_to_index, netlink::SocketAddrNetlink,
    recv, socket_with,
};

/// One IPv4 address of an interface, or an interface without an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name, for example `eth0`.
    pub name: String,
    /// Index; a removed and recreated interface has a new one.
    pub index: u32,
    /// Address; `None` for an entry without an IPv4 address.
    pub address: Option<Ipv4Addr>,
    /// Whether it is up (IFF_UP).
    pub up: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
}

/// All interfaces with their addresses.
///
/// # Errors
/// As getifaddrs(3).
pub fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) writes one pointer to `first`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an element of the list, which stays as it is until it is freed below.
    while let Some(element) = unsafe { next.as_ref() } {
        found.extend(entry(element, &socket));
        next = element.ifa_next;
    }
    // SAFETY: `first` came from getifaddrs and is freed once; no result refers to it.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// A socket that becomes readable whenever a link or an IPv4 address of the namespace is added, removed or changed.
///
/// # Errors
/// If the kernel has no netlink.
pub(crate) fn changes() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // Protocol `None` is `NETLINK_ROUTE`.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR).unsigned_abs();
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Discards all pending notifications of the socket of [`changes`].
pub(crate) fn discard_changes(socket: &OwnedFd) {
    let mut bytes = [0_u8; 8_192];
    while recv(socket, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|(received, _)| received > 0) {}
}

/// Converts an element of the list. `socket` only selects the network namespace.
fn entry(element: &libc::ifaddrs, socket: &OwnedFd) -> Option<InterfaceAddress> {
    // SAFETY: `ifa_name` is a string of the list that `element` belongs to.
    let name = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy();
    // SAFETY: `ifa_addr` is null or an address of the list.
    let family = unsafe { element.ifa_addr.as_ref() }.map(|address| i32::from(address.sa_family));
    let address = match family {
        Some(libc::AF_INET) => {
            // SAFETY: an address of this family is a `sockaddr_in`; read without assuming its alignment.
            let address: libc::sockaddr_in = unsafe { element.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
        }
        Some(libc::AF_PACKET) => None,
        _ => return None,
    };
    let flags = element.ifa_flags;
    let [up, carrier] = [libc::IFF_UP, libc::IFF_RUNNING].map(|flag| flags & flag.unsigned_abs() != 0);
    // The look-up fails if the interface was removed in the meantime.
    let index = name_to_index(socket, &name).ok()?;
    Some(InterfaceAddress { name: name.into_owned(), index, address, up, running: up && carrier })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_with_its_address() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|entry| entry.address == Some(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(loopback.running);
        assert!(all.iter().any(|entry| entry.index == loopback.index && entry.address.is_none()), "its link too");
    }
}
