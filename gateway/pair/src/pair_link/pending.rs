//! Connections that have not proved the key yet. Anybody can open one, so their number, their time and their memory are
//! bounded.
//!
//! When all places are taken, a new connection displaces the oldest one of the address that holds most places. So one host,
//! however many connections it opens, displaces its own, and a gateway that connects meanwhile keeps its place until it has
//! proved the key. Connections from the configured addresses of peers, and those that this gateway has dialled, are displaced
//! by no other host.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::connection::Connection;

/// The pending connections, oldest first.
#[derive(Debug)]
pub(super) struct PendingConnections {
    connections: Vec<Connection>,
    /// Addresses of the configured peers.
    peers: BTreeSet<IpAddr>,
}

impl PendingConnections {
    pub(super) fn new(peers: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { connections: Vec::new(), peers: peers.into_iter().collect() }
    }

    /// Adds a connection. Returns the one that had to be closed for it, or the connection itself if there is no place for it.
    pub(super) fn admit(&mut self, connection: Connection) -> Option<Connection> {
        if connection.dialled.is_some() {
            self.connections.push(connection);
            return None;
        }
        let accepted = || self.connections.iter().enumerate().filter(|(_, pending)| pending.dialled.is_none());
        if accepted().count() < PENDING_MAX {
            self.connections.push(connection);
            return None;
        }
        let holders: Vec<_> = accepted().map(|(index, pending)| (index, pending.from)).collect();
        let Some(index) = displaced(&holders, connection.from, &self.peers) else { return Some(connection) };
        let displaced = self.connections.remove(index);
        self.connections.push(connection);
        Some(displaced)
    }

    /// Puts a connection back that was taken and is still pending.
    pub(super) fn keep(&mut self, connection: Connection) {
        self.connections.push(connection);
    }

    /// Takes all connections, oldest first.
    pub(super) fn take(&mut self) -> Vec<Connection> {
        std::mem::take(&mut self.connections)
    }

    /// Whether a connection to that peer is being dialled.
    pub(super) fn is_dialling(&self, peer: usize) -> bool {
        self.connections.iter().any(|connection| connection.dialled == Some(peer))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter()
    }
}

/// Which of the `holders` of a place (index and address, oldest first) makes room for a connection from `newcomer`. `None`:
/// none, since all of them are peers and the newcomer is not.
fn displaced(holders: &[(usize, IpAddr)], newcomer: IpAddr, peers: &BTreeSet<IpAddr>) -> Option<usize> {
    let other_hosts = || holders.iter().filter(|(_, from)| !peers.contains(from));
    let candidates: Vec<_> = match other_hosts().next() {
        Some(_) => other_hosts().collect(),
        None if peers.contains(&newcomer) => holders.iter().collect(),
        None => return None,
    };
    let mut places: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (_, from) in &candidates {
        *places.entry(*from).or_default() += 1;
    }
    // A newcomer counts with what it would hold: at equal numbers its own address loses a place.
    places.entry(newcomer).and_modify(|count| *count += 1);
    let most = places.values().max()?;
    candidates.iter().find(|(_, from)| places.get(from) == Some(most)).map(|(index, _)| *index)
}

/// Maximum number of accepted connections that have not proved the key: room for all peers at once, and for hosts without
/// the key.
pub(super) const PENDING_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// The hosts that hold a place after each of `newcomers` has connected, oldest first.
    fn held_after(peers: &[u8], newcomers: impl IntoIterator<Item = u8>) -> Vec<u8> {
        let peers = peers.iter().map(|peer| host(*peer)).collect();
        let mut held: Vec<u8> = Vec::new();
        for newcomer in newcomers {
            if held.len() == PENDING_MAX {
                let holders: Vec<_> = held.iter().map(|from| host(*from)).enumerate().collect();
                let Some(index) = displaced(&holders, host(newcomer), &peers) else { continue };
                held.remove(index);
            }
            held.push(newcomer);
        }
        held
    }

    fn count(held: &[u8], wanted: u8) -> usize {
        held.iter().filter(|from| **from == wanted).count()
    }

    #[test]
    fn a_host_that_connects_often_displaces_its_own_connections() {
        let flood = || std::iter::repeat_n(66, 1_000);
        // Gateway 1 is a configured peer, gateway 7 connects from another address than configured.
        for gateway in [1, 7] {
            let held = held_after(&[1], flood().chain([gateway]).chain(flood()));
            assert_eq!((held.len(), count(&held, gateway)), (PENDING_MAX, 1), "gateway {gateway}");
        }
        // Two such hosts share the places.
        let both = || [66, 67].into_iter().cycle().take(1_000);
        let held = held_after(&[], both().chain([7]).chain(both()));
        assert_eq!(count(&held, 7), 1);
        assert!(count(&held, 66).abs_diff(count(&held, 67)) <= 1, "{held:?}");
    }

    #[test]
    fn no_number_of_hosts_displaces_a_peer() {
        let other_hosts = || (10..250).cycle().take(1_000);
        let held = held_after(&[1, 2], [1, 2].into_iter().chain(other_hosts()));
        assert_eq!((count(&held, 1), count(&held, 2)), (1, 1));
        let held = held_after(&[1, 2], other_hosts().chain([1]).chain(other_hosts()));
        assert_eq!(count(&held, 1), 1);
        // A peer that connects again and again takes the places of other hosts first, and then its own.
        let held =
            held_after(&[1, 2], other_hosts().chain([2]).chain(std::iter::repeat_n(1, 100)).chain(other_hosts()));
        assert_eq!((count(&held, 1), count(&held, 2)), (PENDING_MAX - 1, 1));
    }
}
