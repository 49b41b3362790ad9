//! What a venue sends on one day, from a seed, and so what subscribers must get.

use std::collections::BTreeMap;

use mdgw_captures::random::Random;
use mdgw_feeds::{
    identity::{Feed, Session},
    time::TradingDate,
};

use super::MS;

/// The day of one channel.
#[derive(Debug)]
pub(super) struct VenueScript {
    steps: Vec<VenueStep>,
    /// When the venue sends each of them, ns.
    sent_ns: Vec<u64>,
    /// Records of each message, by restart and sequence.
    messages: BTreeMap<(u32, u64), Vec<u8>>,
    told: Vec<Told>,
}

/// One thing that a gateway gets from the venue.
#[derive(Clone, Copy, Debug)]
pub(super) enum VenueStep {
    /// The session begins, for the first time or again.
    Session(u32),
    /// A message with records: restart and sequence.
    Message(u32, u64),
    /// What came before this sequence produced nothing.
    NoOutput(u64),
    /// The venue ends the session.
    End,
}

/// One item that a subscriber receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Told {
    Session(u32),
    Message(u32, u64),
    End(u32),
}

impl VenueScript {
    pub(super) fn new(random: &mut Random) -> Self {
        let mut day = Self { steps: Vec::new(), sent_ns: Vec::new(), messages: BTreeMap::new(), told: Vec::new() };
        let restarts = u32::try_from(random.below(3)).expect("at most 2");
        let mut at_ns = MS;
        for restart in 0..=restarts {
            at_ns += SESSION_BREAK_NS;
            day.push(at_ns, VenueStep::Session(restart));
            day.told.push(Told::Session(restart));
            let mut next = 1;
            for _ in 0..50 + random.below(100) {
                at_ns += random.exponential(STEP_NS);
                if random.chance(0.15) {
                    next += 1 + random.below(4);
                    day.push(at_ns, VenueStep::NoOutput(next));
                } else {
                    day.messages.insert((restart, next), records(random));
                    day.push(at_ns, VenueStep::Message(restart, next));
                    day.told.push(Told::Message(restart, next));
                    next += 1;
                }
            }
            // Some sessions break off.
            if restart == restarts || random.chance(0.5) {
                day.push(at_ns, VenueStep::End);
                day.told.push(Told::End(restart));
            }
        }
        day
    }

    fn push(&mut self, at_ns: u64, step: VenueStep) {
        self.sent_ns.push(at_ns);
        self.steps.push(step);
    }

    /// One step, and when the venue sends it; `None` after the last.
    pub(super) fn step(&self, index: usize) -> Option<(VenueStep, u64)> {
        Some((*self.steps.get(index)?, self.sent_ns[index]))
    }

    /// When the last step is sent.
    pub(super) fn end_ns(&self) -> u64 {
        *self.sent_ns.last().expect("a day has steps")
    }

    /// The step with which a session begins.
    pub(super) fn session_start_step(&self, restart: u32) -> usize {
        let begins = |step: &VenueStep| matches!(step, VenueStep::Session(begun) if *begun == restart);
        self.steps.iter().position(begins).expect("a session of the day")
    }

    /// The records of a message.
    pub(super) fn body(&self, restart: u32, sequence: u64) -> Option<&[u8]> {
        self.messages.get(&(restart, sequence)).map(Vec::as_slice)
    }

    /// The expected items, in order.
    pub(super) fn told(&self) -> &[Told] {
        &self.told
    }
}

pub(super) fn session(restart: u32) -> Session {
    let date = TradingDate::from_yyyymmdd(20_240_102).expect("a day");
    Session { feed: Feed::IexTops, date, restart }
}

/// Length of one record in bytes; its first byte gives it in units of four.
pub(super) fn record_bytes(body: &[u8]) -> usize {
    4 * usize::from(body[0])
}

/// A few small records, or large ones: two to a packet, five to a message that has to be cut. No definitions: their type
/// is 0.
fn records(random: &mut Random) -> Vec<u8> {
    let (count, words) = match random.below(10) {
        0 => (5, 140),
        1 | 2 => (2, 140),
        _ => (1 + random.below(3), 20),
    };
    let mut body = Vec::new();
    for _ in 0..count {
        body.extend([words, 0, 0, 0, 0, 0, 0, 0]);
        (1..words / 2).for_each(|_| body.extend(random.next_u64().to_le_bytes()));
    }
    body
}

/// A session that no venue ever begins.
pub(super) const FORGED_SESSION: u32 = 9;
/// Mean time between two steps.
const STEP_NS: u64 = 250_000;
/// The time that a venue needs before it begins a session again.
const SESSION_BREAK_NS: u64 = 25 * MS;
