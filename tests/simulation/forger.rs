//! A forger on the output network, who sees every packet: once in 10 ms it sends one with an epoch above the highest that
//! receivers accept. Receivers and gateways believe it as the product does.

use mdgw_captures::random::Random;
use mdgw_election::driver::OBSERVATION_INTERVAL_NS;
use mdgw_feeds::identity::Epoch;
use mdgw_pair::standby::KnownEpochs;
use mdgw_tests::captures::print_to_stderr;

const MS: u64 = 1_000_000;
/// J, as in the product.
pub(crate) const JUMP_MAX: u64 = 1_000;
const FORGE_EVERY_NS: u64 = 10 * MS;
/// Resolution of the figures.
const SLICE_NS: u64 = MS / 10;
const SECONDS: u64 = 60;
/// The run is judged in parts, so that growth shows.
const PARTS: usize = 3;

/// A simulated group.
pub(crate) trait ForgedGroup {
    fn run_for(&mut self, ns: u64);
    /// The election threads of all gateways pass that epoch to their cores.
    fn observe(&mut self, epoch: Epoch);
    /// Epoch of the fence that is open, if one is.
    fn open_epoch(&self) -> Option<Epoch>;
}

/// How far the count of a forged epoch lies above the highest accepted one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Offset {
    /// The same count, from the highest node number.
    SameCount,
    One,
    /// J: the highest that is believed.
    Most,
    /// 0 to J + 1, from a random node.
    Random,
    /// J + 1, and the highest possible epoch: neither is believed.
    Unbelieved,
}

impl Offset {
    pub(crate) const BELIEVED: [Self; 4] = [Self::SameCount, Self::One, Self::Most, Self::Random];

    fn next_epoch(self, random: &mut Random, accepted: Epoch) -> Epoch {
        let count = accepted.count();
        match self {
            Self::SameCount => Epoch::new(count, u8::MAX),
            Self::One => Epoch::new(count + 1, u8::MAX),
            Self::Most => Epoch::new(count + JUMP_MAX, u8::MAX),
            Self::Random => {
                let node = u8::try_from(random.below(256)).expect("below 256");
                Epoch::new(count + random.below(JUMP_MAX + 2), node)
            }
            Self::Unbelieved if random.chance(0.5) => Epoch::new(count + JUMP_MAX + 1, u8::MAX),
            Self::Unbelieved => Epoch(u64::MAX),
        }
    }
}

/// Time without output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    pub(crate) share: f64,
    pub(crate) longest_ns: u64,
}

#[derive(Debug, Default)]
struct SilenceMeter {
    total_ns: u64,
    current_ns: u64,
    longest_ns: u64,
}

impl SilenceMeter {
    fn add_slice(&mut self, is_silent: bool) {
        self.current_ns = if is_silent { self.current_ns + SLICE_NS } else { 0 };
        self.total_ns += if is_silent { SLICE_NS } else { 0 };
        self.longest_ns = self.longest_ns.max(self.current_ns);
    }

    fn take_part(&mut self) -> Silence {
        let part_ns = SECONDS * 1_000 * MS / PARTS as u64;
        let silence = Silence { share: self.total_ns as f64 / part_ns as f64, longest_ns: self.longest_ns };
        (self.total_ns, self.longest_ns) = (0, self.current_ns);
        silence
    }
}

/// What a minute of forging did, the worst of three parts of 20 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForgedMinute {
    /// No fence was open.
    pub(crate) closed: Silence,
    /// No fence was open, or receivers had accepted a higher epoch than its own.
    pub(crate) unreceived: Silence,
}

impl ForgedMinute {
    /// Runs a group in which a gateway leads.
    pub(crate) fn run(what: &str, seed: u64, offset: Offset, group: &mut impl ForgedGroup) -> Self {
        let mut random = Random::new(seed);
        let first = group.open_epoch().expect("a gateway leads");
        let known = KnownEpochs::new(first, JUMP_MAX);
        let (mut closed, mut unreceived) = (SilenceMeter::default(), SilenceMeter::default());
        let (mut passed_on, mut observe_ns, mut parts) = (first, 0, Vec::new());
        let part_ns = SECONDS * 1_000 * MS / PARTS as u64;
        for slice in 0..SECONDS * 1_000 * MS / SLICE_NS {
            let now_ns = slice * SLICE_NS;
            if now_ns.is_multiple_of(FORGE_EVERY_NS) {
                // What is refused has no effect.
                let _ = known.observe(offset.next_epoch(&mut random, known.highest()));
            }
            // The election thread is woken, and reads the observed epoch no more often than that.
            let observed = known.highest_observed().unwrap_or_default();
            if observed > passed_on && now_ns >= observe_ns {
                (passed_on, observe_ns) = (observed, now_ns + OBSERVATION_INTERVAL_NS);
                group.observe(observed);
            }
            group.run_for(SLICE_NS);
            let open = group.open_epoch();
            closed.add_slice(open.is_none());
            unreceived.add_slice(open.is_none_or(|epoch| known.observe(epoch).is_err()));
            if (now_ns + SLICE_NS).is_multiple_of(part_ns) {
                parts.push((closed.take_part(), unreceived.take_part()));
            }
        }
        let worst = |of: fn(&(Silence, Silence)) -> Silence| {
            parts.iter().map(of).fold(Silence::default(), |worst, part| Silence {
                share: worst.share.max(part.share),
                longest_ns: worst.longest_ns.max(part.longest_ns),
            })
        };
        let minute = Self { closed: worst(|part| part.0), unreceived: worst(|part| part.1) };
        let text = |silence: Silence| {
            format!("{:.2} % of the time, longest {:.1} ms", silence.share * 100.0, silence.longest_ns as f64 / 1e6)
        };
        print_to_stderr(&format!(
            "{what}, one forged packet in 10 ms for 60 s, {offset:?}: closed {}; not received {}; {} counts spent",
            text(minute.closed),
            text(minute.unreceived),
            known.highest().count() - first.count()
        ));
        minute
    }
}
