//! Receive timestamps of the NIC: a setting of the whole interface, and so of all its users.

#![allow(unsafe_code, reason = "an ioctl(2), unsafe in rustix too")]

use std::{io, os::fd::AsRawFd};

use crate::interface_request::InterfaceRequest;

/// Makes the NIC timestamp every received packet (`SIOCSHWTSTAMP`). The setting lasts until it is changed or the driver
/// is reloaded; sockets must request the timestamps in addition. A NIC that can timestamp only some packets is not
/// changed.
///
/// # Errors
/// Without CAP_NET_ADMIN, without such an interface, or if its driver has no receive timestamps or only for some
/// packets (for example those of the precision time protocol); the text says which.
pub fn enable(interface: &str) -> Result<(), HardwareStampError> {
    let refused = |reason| HardwareStampError { interface: interface.to_owned(), reason };
    let mut config = StampConfig { flags: 0, transmit: libc::HWTSTAMP_TX_OFF, filter: libc::HWTSTAMP_FILTER_ALL };
    let Some(mut request) = InterfaceRequest::new(interface, &raw mut config) else {
        return Err(refused(Reason::InvalidName));
    };
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").map_err(|error| refused(Reason::System(error)))?;
    // SAFETY: the request is laid out as `ifreq`, its data as `hwtstamp_config`, which lives until the call returns;
    // the kernel reads both and writes the latter.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSHWTSTAMP, &raw mut request) } != 0 {
        let error = io::Error::last_os_error();
        return Err(refused(match error.raw_os_error() {
            Some(libc::EPERM) => Reason::Privilege,
            Some(libc::ENODEV) => Reason::NoInterface,
            Some(libc::EOPNOTSUPP) => Reason::Driver,
            Some(libc::ERANGE) => Reason::PartialOnly,
            _ => Reason::System(error),
        }));
    }
    if config.filter == libc::HWTSTAMP_FILTER_ALL { Ok(()) } else { Err(refused(Reason::PartialOnly)) }
}

/// Why an interface does not timestamp what it receives.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: no hardware timestamps: {reason}; kernel timestamps are used")]
pub struct HardwareStampError {
    interface: String,
    #[source]
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("invalid interface name")]
    InvalidName,
    #[error("needs CAP_NET_ADMIN, or configure it beforehand (hwstamp_ctl)")]
    Privilege,
    #[error("there is no such interface")]
    NoInterface,
    #[error("the driver does not support timestamps")]
    Driver,
    #[error("the driver timestamps only some packet types (e.g. PTP)")]
    PartialOnly,
    #[error("{0}")]
    System(io::Error),
}

/// `hwtstamp_config` of linux/net_tstamp.h.
#[repr(C)]
struct StampConfig {
    flags: i32,
    transmit: u32,
    filter: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_stamps_is_refused_with_the_reason() {
        let text = enable("lo").unwrap_err().to_string();
        assert!(text.contains("driver does not support timestamps") || text.contains("CAP_NET_ADMIN"), "{text}");
        for name in ["no-such-one", "a name that is longer than any"] {
            let text = enable(name).unwrap_err().to_string();
            assert!(
                text.contains("no such interface")
                    || text.contains("invalid interface name")
                    || text.contains("CAP_NET_ADMIN"),
                "{text}"
            );
        }
    }
}
