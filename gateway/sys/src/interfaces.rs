//! Network interfaces of the calling thread's network namespace.

#![allow(unsafe_code, reason = "system calls")]

use std::{
    ffi::CStr,
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
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
    /// Whether it is up and has a carrier.
    pub running: bool,
}

/// All interfaces with their addresses.
///
/// # Errors
/// As getifaddrs(3).
pub(crate) fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) writes one pointer to `first`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an element of the list, which stays as it is until it is freed below.
    while let Some(element) = unsafe { next.as_ref() } {
        found.extend(entry(element));
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
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes no pointer.
    let descriptor = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned it, so it is open and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let address = NetlinkAddress {
        family: u16::try_from(libc::AF_NETLINK).unwrap_or(0),
        padding: 0,
        process: 0,
        groups: (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR).unsigned_abs(),
    };
    let length = libc::socklen_t::try_from(size_of::<NetlinkAddress>()).unwrap_or(0);
    // SAFETY: bind(2) reads `length` bytes of `address`, laid out as `sockaddr_nl`.
    let refused = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if refused == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// Discards all pending notifications of the socket of [`changes`].
pub(crate) fn discard_changes(socket: &OwnedFd) {
    let mut bytes = [0_u8; 8_192];
    // SAFETY: recv(2) writes at most the given number of bytes to `bytes`, which has that many.
    while unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } > 0 {}
}

fn entry(element: &libc::ifaddrs) -> Option<InterfaceAddress> {
    // SAFETY: `ifa_name` is a string of the list that `element` belongs to.
    let name = unsafe { CStr::from_ptr(element.ifa_name) };
    // SAFETY: if_nametoindex(3) reads the string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
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
    let on = (libc::IFF_UP | libc::IFF_RUNNING).unsigned_abs();
    // 0: the interface vanished in the meantime.
    (index != 0).then(|| InterfaceAddress {
        name: name.to_string_lossy().into_owned(),
        index,
        address,
        running: element.ifa_flags & on == on,
    })
}

/// `sockaddr_nl` of linux/netlink.h.
#[repr(C)]
struct NetlinkAddress {
    family: u16,
    padding: u16,
    process: u32,
    groups: u32,
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
