//! Packets in transit on impaired lines: a rehearsal of losses and delays, repeatable by its seed.

use std::{cmp::Reverse, collections::BinaryHeap, net::SocketAddrV4, sync::Arc};

use mdgw_captures::{
    impairment::{ImpairedLines, LineImpairment, LossPolicy},
    random,
};
use mdgw_feeds::identity::Line;
use serde::Serialize;

/// A rehearsal: each packet is sent on several impaired lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// Destinations of the lines, A first: one list for all files, or one for each file.
    pub lines: Vec<Vec<SocketAddrV4>>,
    /// Impairment of each line, A first; a line without an entry is unimpaired.
    pub impairment: Vec<LineImpairment>,
    /// Which packets may be lost.
    pub loss_policy: LossPolicy,
    /// Seed of the impairments; the same seed repeats the same impairments.
    pub seed: u64,
}

/// Counts of one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineSendCounts {
    /// A, B, …
    pub line: String,
    /// Packets given to the line.
    pub offered: u64,
    /// Copies sent: without lost packets, with duplicates.
    pub sent: u64,
}

/// Copies in transit.
#[derive(Debug)]
pub(super) struct PacketsInTransit {
    rehearsal: Rehearsal,
    /// One for each file, since packets of one file must not overtake those of another.
    files: Vec<ImpairedLines<Arc<[u8]>>>,
    due: BinaryHeap<Reverse<CopyInTransit>>,
    number: u64,
    lines: Vec<LineSendCounts>,
}

/// A copy, ordered by its due time, then by the order of sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CopyInTransit {
    pub(super) due_ns: u64,
    number: u64,
    line: usize,
    pub(super) destination: SocketAddrV4,
    pub(super) payload: Arc<[u8]>,
}

impl PacketsInTransit {
    pub(super) fn new(rehearsal: &Rehearsal) -> Self {
        let lines = rehearsal.lines.iter().map(Vec::len).max().unwrap_or(0);
        let name = |line| Line(u8::try_from(line).unwrap_or(u8::MAX)).to_string();
        Self {
            rehearsal: rehearsal.clone(),
            files: Vec::new(),
            due: BinaryHeap::new(),
            number: 0,
            lines: (0..lines).map(|line| LineSendCounts { line: name(line), offered: 0, sent: 0 }).collect(),
        }
    }

    /// Adds a packet of that file, due at `due_ns` unless a line delays it.
    pub(super) fn offer(&mut self, file: usize, due_ns: u64, payload: &[u8]) {
        while self.files.len() <= file {
            let lines = Self::lines_of(&self.rehearsal, self.files.len()).len();
            let impairment: Vec<_> =
                (0..lines).map(|line| self.rehearsal.impairment.get(line).copied().unwrap_or_default()).collect();
            let seed = random::mix(self.rehearsal.seed.wrapping_add(self.files.len() as u64));
            self.files.push(ImpairedLines::new(&impairment, self.rehearsal.loss_policy, seed));
        }
        let addresses = Self::lines_of(&self.rehearsal, file);
        for line in self.lines.iter_mut().take(addresses.len()) {
            line.offered += 1;
        }
        let Some(impaired) = self.files.get_mut(file) else { return };
        impaired.transmit(&payload.into(), |line, skew_ns, payload| {
            let Some(destination) = addresses.get(line).copied() else { return };
            let due_ns = due_ns.saturating_add(skew_ns);
            let payload = Arc::clone(payload);
            self.due.push(Reverse(CopyInTransit { due_ns, number: self.number, line, destination, payload }));
            self.number += 1;
        });
    }

    /// Ends the stream: delayed packets become due.
    pub(super) fn finish(&mut self, now_ns: u64) {
        for (file, impaired) in self.files.iter_mut().enumerate() {
            let addresses = Self::lines_of(&self.rehearsal, file);
            impaired.finish(|line, skew_ns, payload| {
                let Some(destination) = addresses.get(line).copied() else { return };
                let due_ns = now_ns.saturating_add(skew_ns);
                let payload = Arc::clone(payload);
                self.due.push(Reverse(CopyInTransit { due_ns, number: self.number, line, destination, payload }));
                self.number += 1;
            });
        }
    }

    /// The next copy that is due up to this time.
    pub(super) fn next_due(&mut self, until_ns: u64) -> Option<CopyInTransit> {
        if self.due.peek()?.0.due_ns > until_ns {
            return None;
        }
        let Reverse(copy) = self.due.pop()?;
        if let Some(line) = self.lines.get_mut(copy.line) {
            line.sent += 1;
        }
        Some(copy)
    }

    pub(super) fn lines(&self) -> &[LineSendCounts] {
        &self.lines
    }

    fn lines_of(rehearsal: &Rehearsal, file: usize) -> &[SocketAddrV4] {
        match rehearsal.lines.as_slice() {
            [only] => only,
            each => each.get(file).map_or(&[], Vec::as_slice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rehearsal(impairment: Vec<LineImpairment>, seed: u64) -> Rehearsal {
        let lines = ["239.1.1.1:1", "239.1.1.2:2"].map(|address| address.parse().unwrap()).to_vec();
        Rehearsal { lines: vec![lines], impairment, loss_policy: LossPolicy::Independent, seed }
    }

    fn in_transit(rehearsal: &Rehearsal) -> (Vec<(u64, u16, u8)>, Vec<LineSendCounts>) {
        let mut in_transit = PacketsInTransit::new(rehearsal);
        let mut arrived = Vec::new();
        for number in 0..200_u8 {
            let now_ns = u64::from(number) * 100;
            while let Some(copy) = in_transit.next_due(now_ns) {
                arrived.push((copy.due_ns, copy.destination.port(), copy.payload[0]));
            }
            in_transit.offer(0, now_ns, &[number]);
        }
        in_transit.finish(20_000);
        while let Some(copy) = in_transit.next_due(u64::MAX) {
            arrived.push((copy.due_ns, copy.destination.port(), copy.payload[0]));
        }
        (arrived, in_transit.lines().to_vec())
    }

    #[test]
    fn unimpaired_lines_deliver_everything_in_order_with_their_skew() {
        let skewed = LineImpairment { skew_ns: 250, ..LineImpairment::default() };
        let (arrived, lines) = in_transit(&rehearsal(vec![LineImpairment::default(), skewed], 1));
        assert!(arrived.is_sorted_by_key(|(due_ns, ..)| *due_ns));
        for (port, skew_ns) in [(1, 0), (2, 250)] {
            let of_line: Vec<_> = arrived.iter().filter(|(_, to, _)| *to == port).collect();
            assert_eq!(of_line.len(), 200);
            assert!((0..).zip(of_line).all(|(number, (due_ns, _, byte))| {
                u64::from(*byte) == number && *due_ns == number * 100 + skew_ns
            }));
        }
        assert!(lines.iter().all(|line| (line.offered, line.sent) == (200, 200)), "{lines:?}");
    }

    #[test]
    fn the_impaired_schedule_depends_only_on_the_seed() {
        let bad = LineImpairment { loss: 0.1, duplicate: 0.1, reorder: 0.1, skew_ns: 30 };
        let run = |seed| in_transit(&rehearsal(vec![bad, bad], seed));
        assert_eq!(run(5), run(5));
        assert_ne!(run(5).0, run(6).0);
        let (arrived, lines) = run(5);
        assert_eq!(lines.iter().map(|line| line.sent).sum::<u64>(), arrived.len() as u64);
        let of_a: Vec<u8> = arrived.iter().filter(|(_, port, _)| *port == 1).map(|(.., byte)| *byte).collect();
        assert!(!of_a.is_sorted(), "overtaken");
    }
}
