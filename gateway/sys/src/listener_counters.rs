//! What a cold listener received and refused, by reason. The listener's thread writes, any thread reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

mdgw_wire::reasons! {
    /// Why a listener did not use a datagram, a connection or a message.
    enum Refusal;
    Malformed = "malformed", "The bytes do not follow the protocol.";
    TooLong = "too_long", "Longer than any datagram of the protocol.";
    Version = "version", "Of another version of the protocol.";
    Forged = "forged", "Authentication failed: made under another key, or changed on the way.";
    Replayed = "replayed", "Authentic, but received before, or older than one that was.";
    UnknownNode = "unknown_node", "Authentic, but from a node that is not configured, or for another node.";
    UnknownGroup = "unknown_group", "Authentic, but for a group that this gateway does not have.";
    QueueFull = "queue_full", "Authentic, but there was no room for it: as many messages waited before it as may wait.";
    UnknownSource = "unknown_source", "A datagram from an address that belongs to no peer.";
    NoConnection = "no_connection", "A datagram from a peer's address while that peer has no connection that proved the key.";
    OwnNode = "own_node", "The other end uses this gateway's node number.";
    DuplicateNode = "duplicate_node", "A second gateway with the node number of a connected peer.";
    Unexpected = "unexpected", "An authentic message that does not belong there.";
    Displaced = "displaced", "A connection that had not proved the key, or had sent no request, closed to make room for another one.";
    Silent = "silent", "A connection that did not prove the key, or send its request, in time.";
    Disconnected = "disconnected", "A connection that its other end closed before it proved the key. A health check, which closes without a byte, is not counted.";
    Network = "network", "A request from a network that is not allowed.";
    Rate = "rate", "A request beyond its source's allowance.";
    Requesters = "requesters", "A request while all remembered requesters are using their allowance.";
    Busy = "busy", "A request for more than health, while all places for answers were taken, or all those of its address.";
    ForeignHost = "foreign_host", "A request for more than health that names another host than this one: a foreign page in a browser may have sent it.";
    UnknownChannel = "unknown_channel", "A request for a channel or a session that is not served.";
}

impl Refusal {
    /// Whether the reason is normal among gateways: urgent messages are sent several times.
    #[must_use]
    pub const fn is_expected(self) -> bool {
        matches!(self, Self::Replayed)
    }
}

/// The counters of one listener. Each only grows.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    received: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
}

impl ListenerCounters {
    /// Counts a datagram or a connection that has arrived.
    pub fn count_received(&self) {
        self.received.fetch_add(1, Relaxed);
    }

    /// Counts a refusal.
    pub fn count(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Relaxed);
    }

    /// Datagrams and connections that have arrived.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// The count of one reason.
    #[must_use]
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].load(Relaxed)
    }

    /// Reasons with a count that is not 0.
    pub fn refusals(&self) -> impl Iterator<Item = (Refusal, u64)> + '_ {
        Refusal::ALL.iter().map(|refusal| (*refusal, self.refused(*refusal))).filter(|(_, count)| *count > 0)
    }

    /// Refusals of all reasons that are not [expected](Refusal::is_expected).
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refusals().filter(|(refusal, _)| !refusal.is_expected()).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_and_a_name_of_its_own() {
        let counters = ListenerCounters::default();
        for (times, refusal) in (1_u64..).zip(Refusal::ALL) {
            (0..times).for_each(|_| counters.count(*refusal));
        }
        counters.count_received();
        let counted: Vec<_> = counters.refusals().collect();
        assert_eq!(counted, Refusal::ALL.iter().copied().zip(1..).collect::<Vec<_>>());
        let expected: u64 =
            counters.refusals().filter(|(refusal, _)| refusal.is_expected()).map(|(_, count)| count).sum();
        assert!(expected > 0);
        assert_eq!(counters.refused_total() + expected, (1..=Refusal::ALL.len() as u64).sum());
        assert_eq!(counters.received(), 1);
        let names: std::collections::BTreeSet<_> = Refusal::ALL.iter().map(|refusal| refusal.name()).collect();
        assert_eq!(names.len(), Refusal::ALL.len());
    }
}
