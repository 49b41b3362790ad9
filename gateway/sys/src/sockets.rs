//! UDP sockets: joined groups, buffers, timestamps, egress.
//!
//! Every option is requested, and read back if the kernel may grant less; a refusal is an error or a warning that names
//! the option. A socket is bound to its group's address, so it never receives groups that another program on this host
//! joined. `IP_MULTICAST_ALL` is off in addition, which excludes the same group on other interfaces. Unicast addresses
//! work too: then no group is joined.

mod interface;
mod membership;
mod output;
mod receive;
mod source_filter;

use std::{io, os::fd::AsFd};

pub use interface::Interface;
pub use membership::{Egress, InterfaceDependents, Membership, MembershipWatch};
pub use output::{OutputOptions, open_output};
pub use receive::{ReceiveBuffer, ReceiveOptions, ReceiveSocket, may_exceed_buffer_limit, open_receive};
pub use source_filter::SourceFilter;

use crate::socket_options;

/// Which receive timestamps a socket requests. The [`StampKind`](super::batch::StampKind) of a datagram says which it
/// has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// No timestamps.
    None,
    /// Timestamps of the kernel.
    #[default]
    Kernel,
    /// Timestamps of the NIC if it makes them (see [`hardware_stamps`](crate::hardware_stamps)), else of the kernel.
    Hardware,
}

/// Requests timestamps for received datagrams. The first datagrams may have none, since the kernel starts a moment
/// later.
///
/// # Errors
/// If the kernel does not know the option.
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
    /// What was attempted, with the option of the socket where there is one: "open a socket".
    pub action: String,
    /// Group or address, and port, of the line that the socket was for.
    pub address: std::net::SocketAddrV4,
    /// The kernel's error.
    pub source: io::Error,
}

/// Adds address and action to an error of the kernel.
trait ErrorContext<T> {
    fn with_action(self, address: std::net::SocketAddrV4, action: impl Into<String>) -> Result<T, SocketError>;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn with_action(self, address: std::net::SocketAddrV4, action: impl Into<String>) -> Result<T, SocketError> {
        self.map_err(|source| SocketError { action: action.into(), address, source })
    }
}
