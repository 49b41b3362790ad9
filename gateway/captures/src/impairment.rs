//! Impaired lines: loss, duplication, reordering and delay of packets. Every decision comes from a seed, so that each
//! run of a test or a demonstration repeats exactly.

use super::random::Random;

/// How one line impairs packets. Probabilities are between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LineImpairment {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is delivered twice.
    pub duplicate: f64,
    /// Probability that a packet is overtaken by the next one to three packets.
    pub reorder: f64,
    /// Delay of this line after the source, ns.
    pub skew_ns: u64,
}

/// Which packets may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPolicy {
    /// Each line loses independently: a packet may be lost on all lines.
    Independent,
    /// At least one line delivers each packet.
    NeverOnAllLines,
}

/// The lines of one channel and the state of their impairments.
#[derive(Debug)]
pub struct ImpairedLines<P> {
    lines: Vec<ImpairedLine<P>>,
    loss_policy: LossPolicy,
    random: Random,
}

#[derive(Debug)]
struct ImpairedLine<P> {
    impairment: LineImpairment,
    random: Random,
    /// Delayed packets, each with the number of packets that still have to overtake it.
    delayed: Vec<(u64, P)>,
}

impl<P: Clone> ImpairedLines<P> {
    /// `lines` are in line order (A, B, …).
    #[must_use]
    pub fn new(lines: &[LineImpairment], loss_policy: LossPolicy, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let lines = lines
            .iter()
            .map(|impairment| ImpairedLine {
                impairment: *impairment,
                random: Random::new(random.next_u64()),
                delayed: Vec::new(),
            })
            .collect();
        Self { lines, loss_policy, random }
    }

    /// Transmits the next packet of the source. `deliver` gets the line's index, its delay in ns and the packet, once
    /// for each copy that is not lost, in the order of each line.
    pub fn transmit(&mut self, packet: &P, mut deliver: impl FnMut(usize, u64, &P)) {
        let mut lost: Vec<bool> = self.lines.iter_mut().map(|line| line.random.chance(line.impairment.loss)).collect();
        if self.loss_policy == LossPolicy::NeverOnAllLines && lost.iter().all(|lost| *lost) {
            let spared = self.random.below(lost.len() as u64);
            if let Some(lost) = usize::try_from(spared).ok().and_then(|spared| lost.get_mut(spared)) {
                *lost = false;
            }
        }
        for (number, (line, lost)) in self.lines.iter_mut().zip(lost).enumerate() {
            line.transmit(packet, lost, |skew_ns, packet| deliver(number, skew_ns, packet));
        }
    }

    /// Ends the stream: packets that were still delayed are delivered.
    pub fn finish(&mut self, mut deliver: impl FnMut(usize, u64, &P)) {
        for (number, line) in self.lines.iter_mut().enumerate() {
            for (_, packet) in line.delayed.drain(..) {
                deliver(number, line.impairment.skew_ns, &packet);
            }
        }
    }
}

impl<P: Clone> ImpairedLine<P> {
    fn transmit(&mut self, packet: &P, is_lost: bool, mut deliver: impl FnMut(u64, &P)) {
        let skew_ns = self.impairment.skew_ns;
        // Drawn for every packet, so that one impairment does not shift the random numbers of the others.
        let is_copied = self.random.chance(self.impairment.duplicate);
        let is_overtaken = self.random.chance(self.impairment.reorder);
        let passing = 1 + self.random.below(3);
        if !is_lost {
            if is_copied {
                deliver(skew_ns, packet);
            }
            if is_overtaken {
                self.delayed.push((passing + 1, packet.clone()));
            } else {
                deliver(skew_ns, packet);
            }
        }
        self.delayed.retain_mut(|(passing, packet)| {
            *passing -= 1;
            if *passing == 0 {
                deliver(skew_ns, packet);
            }
            *passing > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &[LineImpairment], loss_policy: LossPolicy, seed: u64, packets: u32) -> Vec<Vec<u32>> {
        let mut delivered = vec![Vec::new(); lines.len()];
        let mut impaired = ImpairedLines::new(lines, loss_policy, seed);
        for packet in 0..packets {
            impaired.transmit(&packet, |line, _, packet| delivered[line].push(*packet));
        }
        impaired.finish(|line, _, packet| delivered[line].push(*packet));
        delivered
    }

    const IMPAIRED: LineImpairment = LineImpairment { loss: 0.2, duplicate: 0.1, reorder: 0.1, skew_ns: 5 };

    #[test]
    fn an_unimpaired_line_delivers_each_packet_once_in_order() {
        let lines = run(&[LineImpairment::default()], LossPolicy::Independent, 1, 100);
        assert_eq!(lines[0], (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn impairment_depends_only_on_the_seed() {
        let once = run(&[IMPAIRED, IMPAIRED], LossPolicy::Independent, 7, 1_000);
        assert_eq!(once, run(&[IMPAIRED, IMPAIRED], LossPolicy::Independent, 7, 1_000));
        assert_ne!(once, run(&[IMPAIRED, IMPAIRED], LossPolicy::Independent, 8, 1_000));
        assert_ne!(once[0], once[1], "lines are damaged independently");
    }

    #[test]
    fn all_impairments_occur_and_one_line_always_delivers_the_packet() {
        let lines = run(&[IMPAIRED, IMPAIRED], LossPolicy::NeverOnAllLines, 3, 10_000);
        for line in &lines {
            let mut seen = line.clone();
            seen.sort_unstable();
            assert!(seen.windows(2).any(|pair| pair[0] == pair[1]), "copies");
            seen.dedup();
            assert!(seen.len() < 9_000, "losses");
            assert!(line.windows(2).any(|pair| pair[0] > pair[1]), "swaps");
        }
        let mut all = lines.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        let mut independent = run(&[IMPAIRED, IMPAIRED], LossPolicy::Independent, 3, 10_000).concat();
        independent.sort_unstable();
        independent.dedup();
        assert!(independent.len() < 10_000, "with independent losses some packets are gone");
    }
}
