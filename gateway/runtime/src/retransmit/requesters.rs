//! Which requesters are answered, and their rate limits.

use std::{collections::HashMap, net::Ipv4Addr};

use mdgw_feeds::time::MonoNs;
use mdgw_sys::listener_counters::Refusal;

use crate::config::resolved::RetransmissionLimits;

/// The remaining allowance of each requester, by source address. The number of entries is bounded. An entry with its
/// full allowance can make room for another, since it equals a new entry.
///
/// Source addresses can be forged, so an entry is free as soon as its allowance has returned: `1 / requests_per_second` after
/// its only request. Forged requests keep further requesters out only at a rate of `requesters_max * requests_per_second`.
/// An entry with a part of its allowance never makes room: the table also bounds what all answers together can take.
#[derive(Debug)]
pub(super) struct Requesters {
    limits: RetransmissionLimits,
    buckets: HashMap<Ipv4Addr, TokenBucket>,
    /// The addresses of all entries. A new requester takes the place of one, once the table is full.
    addresses: Vec<Ipv4Addr>,
    /// Where the next search for an entry with its full allowance begins.
    hand: usize,
}

/// The allowance of one requester: a token bucket for requests and one for bytes. Tokens are picoseconds. A full bucket
/// has one second, which pays for the requests or bytes of one second.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    request_ps: u64,
    byte_ps: u64,
    /// Bytes of snapshots, which have a limit of their own.
    snapshot_byte_ps: u64,
    at: MonoNs,
}

/// What the answer to one request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    bytes: u64,
    snapshot_bytes: u64,
}

impl Allowance {
    /// Bytes of an answer.
    ///
    /// # Errors
    /// [`Refusal::Rate`]: too few for an answer.
    pub(super) fn bytes_for(self, is_snapshot: bool) -> Result<u64, Refusal> {
        let bytes = if is_snapshot { self.snapshot_bytes } else { self.bytes };
        if bytes < ANSWER_BYTES_MIN { Err(Refusal::Rate) } else { Ok(bytes) }
    }
}

impl Requesters {
    pub(super) fn new(limits: RetransmissionLimits) -> Self {
        let buckets = HashMap::with_capacity(limits.requesters_max);
        let addresses = Vec::with_capacity(limits.requesters_max);
        Self { limits, buckets, addresses, hand: 0 }
    }

    pub(super) fn limits(&self) -> &RetransmissionLimits {
        &self.limits
    }

    pub(super) fn set_limits(&mut self, limits: RetransmissionLimits) {
        *self = Self::new(limits);
    }

    /// Charges one request. Returns what its answer may have.
    ///
    /// # Errors
    /// [`Refusal::Network`], [`Refusal::Rate`] or [`Refusal::Requesters`].
    pub(super) fn admit(&mut self, requester: Ipv4Addr, now: MonoNs) -> Result<Allowance, Refusal> {
        if !self.limits.allowed.iter().any(|network| network.contains(requester)) {
            return Err(Refusal::Network);
        }
        if !self.buckets.contains_key(&requester) && !self.make_room_for(requester, now) {
            return Err(Refusal::Requesters);
        }
        let Costs { request, byte, snapshot_byte } = self.costs();
        let bucket = self.buckets.entry(requester).or_insert_with(|| TokenBucket::full(now));
        bucket.refill(now);
        let allowance =
            Allowance { bytes: bucket.byte_ps / byte, snapshot_bytes: bucket.snapshot_byte_ps / snapshot_byte };
        if bucket.request_ps < request || allowance.bytes.max(allowance.snapshot_bytes) < ANSWER_BYTES_MIN {
            return Err(Refusal::Rate);
        }
        bucket.request_ps -= request;
        Ok(allowance)
    }

    /// Charges the bytes of an answer.
    pub(super) fn consume(&mut self, requester: Ipv4Addr, bytes: u64, is_snapshot: bool) {
        let costs = self.costs();
        if let Some(bucket) = self.buckets.get_mut(&requester) {
            let (left, cost) = if is_snapshot {
                (&mut bucket.snapshot_byte_ps, costs.snapshot_byte)
            } else {
                (&mut bucket.byte_ps, costs.byte)
            };
            *left = left.saturating_sub(bytes.saturating_mul(cost));
        }
    }

    fn costs(&self) -> Costs {
        let cost = |per_second: u64| PS_PER_S / per_second.clamp(1, PS_PER_S);
        Costs {
            request: cost(self.limits.requests_per_second.into()),
            byte: cost(self.limits.bytes_per_second),
            snapshot_byte: cost(self.limits.snapshot_bytes_per_second),
        }
    }

    /// Finds a place for a new requester. A search visits a few entries only, so that a refused request costs little.
    fn make_room_for(&mut self, requester: Ipv4Addr, now: MonoNs) -> bool {
        if self.addresses.len() < self.limits.requesters_max {
            self.addresses.push(requester);
            return true;
        }
        for _ in 0..self.addresses.len().min(SEARCHED_ENTRIES_MAX) {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.addresses.len();
            let held = self.addresses[place];
            if self.buckets.get_mut(&held).is_none_or(|bucket| bucket.is_full(now)) {
                self.buckets.remove(&held);
                self.addresses[place] = requester;
                return true;
            }
        }
        false
    }
}

/// Costs of one request and one byte, ps: the time in which the bucket refills by that amount.
struct Costs {
    request: u64,
    byte: u64,
    snapshot_byte: u64,
}

impl TokenBucket {
    fn full(now: MonoNs) -> Self {
        Self { request_ps: PS_PER_S, byte_ps: PS_PER_S, snapshot_byte_ps: PS_PER_S, at: now }
    }

    fn is_full(&mut self, now: MonoNs) -> bool {
        self.refill(now);
        [self.request_ps, self.byte_ps, self.snapshot_byte_ps] == [PS_PER_S; 3]
    }

    fn refill(&mut self, now: MonoNs) {
        let refilled = now.since(self.at).saturating_mul(PS_PER_NS);
        self.request_ps = self.request_ps.saturating_add(refilled).min(PS_PER_S);
        self.byte_ps = self.byte_ps.saturating_add(refilled).min(PS_PER_S);
        self.snapshot_byte_ps = self.snapshot_byte_ps.saturating_add(refilled).min(PS_PER_S);
        self.at = now;
    }
}

const PS_PER_S: u64 = 1_000_000_000_000;
const PS_PER_NS: u64 = 1_000;
/// Most entries that the search for a place visits.
const SEARCHED_ENTRIES_MAX: usize = 16;
/// Least remaining bytes at which a request is answered: one packet and the end of the answer.
const ANSWER_BYTES_MIN: u64 = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limits() -> RetransmissionLimits {
        RetransmissionLimits {
            allowed: vec!["10.0.0.0/8".parse().unwrap(), "192.168.1.7".parse().unwrap()],
            requests_per_second: 10,
            bytes_per_second: 100_000,
            snapshot_bytes_per_second: 500_000,
            packets_per_request_max: 100,
            requesters_max: 2,
        }
    }

    /// The bytes of an answer with messages.
    fn admit(requesters: &mut Requesters, requester: Ipv4Addr, now: MonoNs) -> Result<u64, Refusal> {
        requesters.admit(requester, now).and_then(|allowance| allowance.bytes_for(false))
    }

    fn host(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn only_configured_networks_are_answered() {
        let mut requesters = Requesters::new(limits());
        for (address, answer) in [
            ("10.9.9.9", Ok(100_000)),
            ("192.168.1.7", Ok(100_000)),
            ("192.168.1.8", Err(Refusal::Network)),
            ("11.0.0.1", Err(Refusal::Network)),
        ] {
            assert_eq!(admit(&mut requesters, host(address), MonoNs(0)), answer, "{address}");
        }
    }

    #[test]
    fn a_requester_is_limited_to_its_rate_independently_of_others() {
        let mut requesters = Requesters::new(limits());
        let (greedy, other) = (host("10.0.0.1"), host("10.0.0.2"));
        let mut admitted = 0;
        // Ten seconds, a hundred requests in each.
        for step in 0..1_000 {
            admitted += u32::from(requesters.admit(greedy, MonoNs(step * SECOND / 100)).is_ok());
        }
        assert!((10 + 99..=10 + 100).contains(&admitted), "a second's worth saved, then ten a second: {admitted}");
        assert!(requesters.admit(other, MonoNs(10 * SECOND)).is_ok());
    }

    #[test]
    fn answers_consume_byte_tokens_which_refill_with_time() {
        let mut requesters = Requesters::new(limits());
        let requester = host("10.0.0.1");
        assert_eq!(admit(&mut requesters, requester, MonoNs(0)), Ok(100_000));
        requesters.consume(requester, 99_000, false);
        assert_eq!(admit(&mut requesters, requester, MonoNs(1)), Err(Refusal::Rate));
        assert_eq!(admit(&mut requesters, requester, MonoNs(SECOND / 2)), Ok(51_000));
        requesters.consume(requester, 1_000_000, false);
        assert_eq!(admit(&mut requesters, requester, MonoNs(SECOND / 2)), Err(Refusal::Rate));
        assert_eq!(
            admit(&mut requesters, requester, MonoNs(60 * SECOND)),
            Ok(100_000),
            "a second's worth is all it saves"
        );
    }

    #[test]
    fn snapshots_have_a_limit_of_their_own() {
        let mut requesters = Requesters::new(limits());
        let requester = host("10.0.0.1");
        let mut bytes = |consumed, is_snapshot| {
            requesters.consume(requester, consumed, is_snapshot);
            let allowance = requesters.admit(requester, MonoNs(0));
            allowance.map(|allowance| [false, true].map(|is_snapshot| allowance.bytes_for(is_snapshot)))
        };
        assert_eq!(bytes(0, true), Ok([Ok(100_000), Ok(500_000)]));
        assert_eq!(bytes(400_000, true), Ok([Ok(100_000), Ok(100_000)]));
        assert_eq!(bytes(99_000, false), Ok([Err(Refusal::Rate), Ok(100_000)]));
        assert_eq!(bytes(99_000, true), Err(Refusal::Rate), "neither has enough for an answer");
    }

    #[test]
    fn the_table_is_bounded_and_evicts_idle_requesters() {
        let mut requesters = Requesters::new(limits());
        for (address, now, answer) in [
            ("10.0.0.1", 0, Ok(100_000)),
            ("10.0.0.2", 0, Ok(100_000)),
            ("10.0.0.3", 0, Err(Refusal::Requesters)),
            ("10.0.0.1", SECOND, Ok(100_000)),
            ("10.0.0.3", SECOND + 1, Ok(100_000)),
            ("10.0.0.4", SECOND + 1, Err(Refusal::Requesters)),
        ] {
            assert_eq!(admit(&mut requesters, host(address), MonoNs(now)), answer, "{address} at {now}");
            assert!(requesters.buckets.len() <= 2 && requesters.addresses.len() <= 2);
        }
    }

    /// A hundred requests in each millisecond, each from another forged address. The default allowance of a request is a
    /// millisecond.
    #[test]
    fn forged_addresses_do_not_keep_other_requesters_out() {
        let limits = RetransmissionLimits { requests_per_second: 1_000, requesters_max: 256, ..limits() };
        let mut requesters = Requesters::new(limits);
        let (mut admitted, mut forged) = (0, 0_u32);
        for millisecond in 0..1_000 {
            for step in 0..100 {
                let now = MonoNs(SECOND + millisecond * 1_000_000 + step * 10_000);
                forged += 1;
                let _refused = requesters.admit(Ipv4Addr::from(0x0a01_0000 + forged), now);
            }
            // A requester that was not there before.
            let now = MonoNs(SECOND + (millisecond + 1) * 1_000_000 - 1);
            let honest = Ipv4Addr::from(0x0a80_0000 + u32::try_from(millisecond).unwrap());
            admitted += u32::from(requesters.admit(honest, now).is_ok());
        }
        assert_eq!(admitted, 1_000);
        assert!(requesters.buckets.len() <= 256 && requesters.addresses.len() <= 256);
    }
}
