//! The messages that a venue sends on one simulated day, generated from a seed. They determine what each subscriber must
//! receive.

use std::collections::BTreeMap;

use mdgw_captures::random::Random;
use mdgw_feeds::{
    identity::{Feed, Session},
    time::TradingDate,
};

use super::MS;

/// The venue's input of one channel for one day.
#[derive(Debug)]
pub(super) struct VenueScript {
    steps: Vec<VenueStep>,
    /// When the venue sends each step, ns.
    sent_ns: Vec<u64>,
    /// Records of each message, by restart count and sequence.
    messages: BTreeMap<(u32, u64), Vec<u8>>,
    /// What a subscriber must receive, in order.
    expected_items: Vec<StreamItem>,
}

/// One input that a gateway receives from the venue.
#[derive(Clone, Copy, Debug)]
pub(super) enum VenueStep {
    /// A session begins. The number counts the restarts of the session.
    Session(u32),
    /// A message with records: restart count and sequence.
    Message(u32, u64),
    /// The messages before this sequence produced no records.
    NoOutput(u64),
    /// The venue ends the session.
    End,
}

/// One item that a subscriber receives. The first number is the restart count of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StreamItem {
    Session(u32),
    Message(u32, u64),
    End(u32),
}

impl VenueScript {
    /// `session_break_ns`: pause of the venue between two sessions, ns.
    pub(super) fn new(random: &mut Random, session_break_ns: u64) -> Self {
        let mut day =
            Self { steps: Vec::new(), sent_ns: Vec::new(), messages: BTreeMap::new(), expected_items: Vec::new() };
        let restarts = u32::try_from(random.below(3)).expect("at most 2");
        let mut at_ns = MS;
        for restart in 0..=restarts {
            at_ns += if restart == 0 { OPENING_NS } else { session_break_ns };
            day.push(at_ns, VenueStep::Session(restart));
            day.expected_items.push(StreamItem::Session(restart));
            let mut next = 1;
            for _ in 0..50 + random.below(100) {
                at_ns += random.exponential(STEP_NS);
                if random.chance(0.15) {
                    next += 1 + random.below(4);
                    day.push(at_ns, VenueStep::NoOutput(next));
                } else {
                    day.messages.insert((restart, next), records(random));
                    day.push(at_ns, VenueStep::Message(restart, next));
                    day.expected_items.push(StreamItem::Message(restart, next));
                    next += 1;
                }
            }
            // Some sessions are abandoned without an end.
            if restart == restarts || random.chance(0.5) {
                day.push(at_ns, VenueStep::End);
                day.expected_items.push(StreamItem::End(restart));
            }
        }
        day
    }

    fn push(&mut self, at_ns: u64, step: VenueStep) {
        self.sent_ns.push(at_ns);
        self.steps.push(step);
    }

    /// The step at `index` and the time at which the venue sends it; `None` after the last step.
    pub(super) fn step(&self, index: usize) -> Option<(VenueStep, u64)> {
        Some((*self.steps.get(index)?, self.sent_ns[index]))
    }

    /// When the last step is sent.
    pub(super) fn end_ns(&self) -> u64 {
        *self.sent_ns.last().expect("a day has steps")
    }

    /// Index of the step that begins a session.
    pub(super) fn session_start_step(&self, restart: u32) -> usize {
        let begins = |step: &VenueStep| matches!(step, VenueStep::Session(begun) if *begun == restart);
        self.steps.iter().position(begins).expect("a session of the day")
    }

    /// The records of a message.
    pub(super) fn body(&self, restart: u32, sequence: u64) -> Option<&[u8]> {
        self.messages.get(&(restart, sequence)).map(Vec::as_slice)
    }

    /// What a subscriber must receive, in order.
    pub(super) fn expected_items(&self) -> &[StreamItem] {
        &self.expected_items
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

/// The records of a random message: a few small records, two large records that fit one packet, or five large records
/// that must be split over packets. Their record type is 0, so none is a definition.
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

/// Restart count of a session that the venue never begins; only forged packets use it.
pub(super) const FORGED_SESSION: u32 = 9;
/// Mean time between two steps, ns.
const STEP_NS: u64 = 250_000;
/// When the venue begins its first session, ns: the election has a leader by then.
const OPENING_NS: u64 = 25 * MS;
