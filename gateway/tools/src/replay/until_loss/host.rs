//! Kernel drop counters of sockets of any program on this host.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
};

use mdgw_feeds::time::MonoNs;

use super::{LossCounter, SinkTotals};

/// The sockets bound to the destinations, as listed in `/proc/net/udp`.
#[derive(Debug)]
pub(super) struct HostDrops {
    destinations: BTreeSet<SocketAddrV4>,
    baseline: u64,
    destination_without_listener: Option<SocketAddrV4>,
}

impl HostDrops {
    pub(super) fn of(destinations: &BTreeSet<SocketAddrV4>) -> io::Result<Self> {
        let table = fs::read_to_string(TABLE)?;
        let bound: BTreeSet<_> = sockets(&table).map(|(address, _)| address).collect();
        let destination_without_listener = destinations.iter().find(|destination| {
            !bound.contains(destination)
                && !bound.contains(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, destination.port()))
        });
        let destination_without_listener = destination_without_listener.copied();
        let baseline = dropped(&table, destinations);
        Ok(Self { destinations: destinations.clone(), baseline, destination_without_listener })
    }

    /// A destination without listener, if any.
    pub(super) fn destination_without_listener(&self) -> Option<SocketAddrV4> {
        self.destination_without_listener
    }
}

impl LossCounter for HostDrops {
    fn sent(&mut self, _destination: SocketAddrV4, _intended: MonoNs, _step: u32) {}

    fn dropped(&mut self) -> io::Result<u64> {
        Ok(dropped(&fs::read_to_string(TABLE)?, &self.destinations).saturating_sub(self.baseline))
    }

    fn finish_counting(&mut self, _sent: u64) -> io::Result<Option<SinkTotals>> {
        Ok(None)
    }

    fn description(&self) -> &'static str {
        "drops of the sockets bound to the destinations (/proc/net/udp); add --gateway to count gaps that a gateway \
         declares"
    }
}

const TABLE: &str = "/proc/net/udp";

/// Drops of sockets that receive packets to these destinations.
fn dropped(table: &str, destinations: &BTreeSet<SocketAddrV4>) -> u64 {
    let is_wanted = |address: &SocketAddrV4| {
        destinations.contains(address)
            || address.ip().is_unspecified() && destinations.iter().any(|wanted| wanted.port() == address.port())
    };
    sockets(table).filter(|(address, _)| is_wanted(address)).map(|(_, dropped)| dropped).sum()
}

/// Local address and drop counter of each socket.
fn sockets(table: &str) -> impl Iterator<Item = (SocketAddrV4, u64)> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (ip, port) = fields.nth(1)?.split_once(':')?;
        // The file shows the address as stored in memory, in the byte order of this machine.
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
    fn socket_drops_are_counted_and_a_destination_without_listener_is_named() {
        let socket = mdgw_sys::sockets::open_receive(&mdgw_sys::sockets::ReceiveOptions {
            receive_buffer_bytes: 4_096,
            ..mdgw_sys::sockets::ReceiveOptions::new("127.0.0.1:0".parse().unwrap(), None)
        })
        .unwrap();
        let address = socket.local_address().unwrap();
        let mut drops = HostDrops::of(&BTreeSet::from([address])).unwrap();
        assert_eq!((drops.destination_without_listener(), drops.dropped().unwrap()), (None, 0));
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..200 {
            sender.send_to(&[0; 1_000], address).unwrap();
        }
        assert!(drops.dropped().unwrap() > 0);
        drop(socket);
        assert_eq!(HostDrops::of(&BTreeSet::from([address])).unwrap().destination_without_listener(), Some(address));
    }
}
