//! UDP sockets: groups joined on an interface, buffers, stamps, egress.
//!
//! Every option is asked for, read back where the kernel may give less, and refused or warned about by name. A socket
//! is bound to its group's address, so that it never sees what another program on this host joined
//! (`IP_MULTICAST_ALL` is off besides, which keeps out the same group on other interfaces). Unicast addresses work
//! too: then nothing is joined.

mod interface;
mod membership;
mod output;
mod receive;
mod source_filter;

use std::{io, os::fd::AsFd};

pub use interface::Interface;
pub use membership::{Egress, InterfaceDependents, Membership, MembershipWatch};
pub use output::{OutputOptions, open_output};
pub use receive::{ReceiveBuffer, ReceiveOptions, ReceiveSocket, open_receive};
pub use source_filter::SourceFilter;

use crate::socket_options;

/// Which receive stamps a socket asks for. What a datagram then carries is told by its
/// [`StampKind`](super::batch::StampKind).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// None.
    None,
    /// The kernel's.
    #[default]
    Kernel,
    /// The NIC's where it stamps (see [`hardware_stamps`](crate::hardware_stamps)), else the kernel's.
    Hardware,
}

/// Asks the kernel to stamp what the socket receives. It begins a moment later: the first datagrams may carry none.
///
/// # Errors
/// When the kernel doesn't know the option.
pub fn request_stamps(socket: &impl AsFd, stamps: Stamps) -> io::Result<()> {
    let kernel = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    let hardware = libc::SOF_TIMESTAMPING_RX_HARDWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE;
    let flags = match stamps {
        Stamps::None => 0,
        Stamps::Kernel => kernel,
        Stamps::Hardware => kernel | hardware,
    };
    socket_options::request_stamps(socket, flags)
}

/// A socket could not be set up as configured.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} for {address}: {source}")]
pub struct SocketError {
    /// What was tried.
    pub action: String,
    /// The address that was configured.
    pub address: std::net::SocketAddrV4,
    /// What the kernel said.
    pub source: io::Error,
}

/// Names the act that failed.
trait ErrorContext<T> {
    fn with_action(self, address: std::net::SocketAddrV4, action: impl Into<String>) -> Result<T, SocketError>;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn with_action(self, address: std::net::SocketAddrV4, action: impl Into<String>) -> Result<T, SocketError> {
        self.map_err(|source| SocketError { action: action.into(), address, source })
    }
}
