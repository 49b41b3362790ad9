//! What a configuration says to a receiver of the gateway's output.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Context as _;
use mdgw_feeds::drop_reason::DropReason;
use mdgw_runtime::config::{Resolved, resolved::OutputLine};
use mdgw_subscriber::LineAddress;
use mdgw_sys::sockets::Interface;

/// A line's group, joined on that interface instead of the configured one, if given.
pub(super) fn line_address(line: &OutputLine, interface: Option<&Interface>) -> anyhow::Result<LineAddress> {
    Ok(LineAddress::new(line.address, address_of(interface.unwrap_or(&line.interface))?))
}

/// The address to join on. An address is taken as it is, a name is looked up.
pub(super) fn address_of(interface: &Interface) -> anyhow::Result<Ipv4Addr> {
    if let Interface::Address(address) = interface {
        return Ok(*address);
    }
    let found = interface.lookup().context("find the interface (--interface overrides the configured one)")?;
    found.address.with_context(|| format!("interface {interface} has no IPv4 address to join on"))
}

/// The gateways' addresses; empty: any sender. Each line is joined for the senders of all lines, so a line for any sender means any
/// sender.
pub(super) fn senders_of<'lines>(lines: impl Iterator<Item = &'lines OutputLine>) -> Vec<Ipv4Addr> {
    let mut senders = Vec::new();
    for line in lines {
        if line.sources.is_empty() {
            return Vec::new();
        }
        senders.extend_from_slice(&line.sources);
    }
    senders.sort_unstable();
    senders.dedup();
    senders
}

/// The configured retransmission service. One that listens on all addresses is reached on this host.
pub(super) fn service_of(config: &Resolved) -> Option<SocketAddrV4> {
    let listen = config.retransmission.as_ref()?.listen;
    Some(if listen.ip().is_unspecified() { SocketAddrV4::new(Ipv4Addr::LOCALHOST, listen.port()) } else { listen })
}

/// Whether packets dropped for this reason mean that something is wrong. Redundant lines bring duplicates and late packets,
/// a full window's packets are received again or reported as lost, and other groups and channels may share the lines.
pub(super) fn is_refusal(reason: DropReason) -> bool {
    !reason.is_expected()
        && !matches!(reason, DropReason::LateAfterGap | DropReason::WindowFull | DropReason::ChannelUnknown)
}
