//! What the kernel dropped at sockets of any program of this host.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
};

use mdgw_feeds::time::MonoNs;

use super::{Arrived, Counts};

/// The sockets that are bound to the destinations, as `/proc/net/udp` lists them.
#[derive(Debug)]
pub(super) struct HostDrops {
    destinations: BTreeSet<SocketAddrV4>,
    before: u64,
    unheard: Option<SocketAddrV4>,
}

impl HostDrops {
    pub(super) fn of(destinations: &BTreeSet<SocketAddrV4>) -> io::Result<Self> {
        let table = fs::read_to_string(TABLE)?;
        let heard: BTreeSet<_> = sockets(&table).map(|(address, _)| address).collect();
        let unheard = destinations.iter().find(|destination| {
            !heard.contains(destination)
                && !heard.contains(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, destination.port()))
        });
        let unheard = unheard.copied();
        let before = dropped(&table, destinations);
        Ok(Self { destinations: destinations.clone(), before, unheard })
    }

    /// A destination that nobody listens to.
    pub(super) fn unheard(&self) -> Option<SocketAddrV4> {
        self.unheard
    }
}

impl Counts for HostDrops {
    fn sent(&mut self, _destination: SocketAddrV4, _intended: MonoNs, _step: u32) {}

    fn dropped(&mut self) -> io::Result<u64> {
        Ok(dropped(&fs::read_to_string(TABLE)?, &self.destinations).saturating_sub(self.before))
    }

    fn settle(&mut self, _sent: u64) -> io::Result<Option<Arrived>> {
        Ok(None)
    }

    fn described(&self) -> &'static str {
        "drops of the sockets bound to the destinations (/proc/net/udp); gaps that a gateway declares are seen with --gateway"
    }
}

const TABLE: &str = "/proc/net/udp";

/// Drops at sockets that receive what goes to these destinations.
fn dropped(table: &str, destinations: &BTreeSet<SocketAddrV4>) -> u64 {
    let is_wanted = |address: &SocketAddrV4| {
        destinations.contains(address)
            || address.ip().is_unspecified() && destinations.iter().any(|wanted| wanted.port() == address.port())
    };
    sockets(table).filter(|(address, _)| is_wanted(address)).map(|(_, dropped)| dropped).sum()
}

/// Local address and drops of each socket.
fn sockets(table: &str) -> impl Iterator<Item = (SocketAddrV4, u64)> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (ip, port) = fields.nth(1)?.split_once(':')?;
        // The address as the memory has it, in the order of this machine.
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
        let port = u16::from_str_radix(port, 16).ok()?;
        Some((SocketAddrV4::new(ip, port), fields.last()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_that_drops_is_seen_and_one_that_is_not_there_is_named() {
        let socket = mdgw_sys::sockets::open_receive(&mdgw_sys::sockets::ReceiveOptions {
            receive_buffer_bytes: 4_096,
            ..mdgw_sys::sockets::ReceiveOptions::new("127.0.0.1:0".parse().unwrap(), None)
        })
        .unwrap();
        let address = socket.local_address().unwrap();
        let mut drops = HostDrops::of(&BTreeSet::from([address])).unwrap();
        assert_eq!((drops.unheard(), drops.dropped().unwrap()), (None, 0));
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..200 {
            sender.send_to(&[0; 1_000], address).unwrap();
        }
        assert!(drops.dropped().unwrap() > 0);
        drop(socket);
        assert_eq!(HostDrops::of(&BTreeSet::from([address])).unwrap().unheard(), Some(address));
    }
}
