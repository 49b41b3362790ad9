//! When leadership moves by itself: to a fitter gateway, or to the one where it belongs. Slowly, so that it doesn't flap.

use mdgw_feeds::time::MonoNs;

use super::fitness::FitnessClass;

/// When leadership moves by itself to a fitter or preferred gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MovesConfig {
    /// A leader must be worse than another for so long, ns.
    pub worse_ns: u64,
    /// Least tenure, ns. Doubles with each move.
    pub tenure_ns: u64,
    /// What it doubles to at most, ns.
    pub tenure_ns_max: u64,
    /// After a leadership of this length moves are counted anew, ns.
    pub settled_ns: u64,
}

impl MovesConfig {
    /// The default, but for the least tenure.
    #[must_use]
    pub fn with_tenure(tenure_ns: u64) -> Self {
        let default = Self::default();
        Self { tenure_ns, tenure_ns_max: default.tenure_ns_max.max(tenure_ns), ..default }
    }

    /// When a leader may move on that leads since `since`, should move since `worse_from`, and came by so many moves. One
    /// that nobody hears publishes nothing: the first time it moves without having led for long.
    #[must_use]
    pub fn move_at(&self, since: MonoNs, worse_from: MonoNs, moves: u32, class: FitnessClass) -> MonoNs {
        if class == FitnessClass::OutputUnheard && moves == 0 {
            return worse_from.plus(self.worse_ns);
        }
        let factor = 1_u64.checked_shl(moves).unwrap_or(u64::MAX);
        let tenure_ns = self.tenure_ns.saturating_mul(factor).clamp(self.tenure_ns, self.tenure_ns_max);
        worse_from.plus(self.worse_ns).max(since.plus(tenure_ns))
    }

    /// Whether a leader has led for so long that the moves before it don't count any more.
    #[must_use]
    pub fn is_settled(&self, since: MonoNs, now: MonoNs) -> bool {
        now.since(since) >= self.settled_ns
    }
}

impl Default for MovesConfig {
    /// A quarter of a second, 10 s, 5 min, an hour.
    fn default() -> Self {
        Self {
            worse_ns: 250_000_000,
            tenure_ns: 10_000_000_000,
            tenure_ns_max: 300_000_000_000,
            settled_ns: 3_600_000_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenure_doubles_with_each_move_up_to_its_limit() {
        let moves = MovesConfig::default();
        let seconds = [0, 1, 2, 4, 5, 30, 63, 64, u32::MAX]
            .map(|made| moves.move_at(MonoNs(0), MonoNs(0), made, FitnessClass::ChannelsBehind).0 / 1_000_000_000);
        assert_eq!(seconds, [10, 20, 40, 160, 300, 300, 300, 300, 300]);
        let late = MonoNs(20_000_000_000);
        assert_eq!(moves.move_at(MonoNs(0), late, 0, FitnessClass::Fit), MonoNs(20_250_000_000));
    }

    #[test]
    fn who_is_not_heard_moves_without_tenure_once() {
        let moves = MovesConfig::default();
        let move_at = |made| moves.move_at(MonoNs(0), MonoNs(0), made, FitnessClass::OutputUnheard);
        assert_eq!(move_at(0), MonoNs(moves.worse_ns));
        assert_eq!(move_at(1), MonoNs(2 * moves.tenure_ns));
    }
}
