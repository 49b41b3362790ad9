//! When leadership moves automatically: to a fitter gateway, or to the preferred one. Moves are slow on purpose, so
//! that leadership does not flap.

use mdgw_feeds::time::MonoNs;

use super::fitness::FitnessClass;

/// When leadership moves automatically to a fitter or preferred gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AutoMoveConfig {
    /// A leader must be worse than another gateway for this long, ns.
    pub worse_for_ns: u64,
    /// Minimum tenure, ns. Doubles with each automatic move.
    pub tenure_ns: u64,
    /// Upper limit of the doubled minimum tenure, ns.
    pub tenure_ns_max: u64,
    /// A leadership of this length resets the count of moves, ns.
    pub moves_reset_ns: u64,
}

impl AutoMoveConfig {
    /// The default configuration with this minimum tenure, ns.
    #[must_use]
    pub fn with_tenure(tenure_ns: u64) -> Self {
        let default = Self::default();
        Self { tenure_ns, tenure_ns_max: default.tenure_ns_max.max(tenure_ns), ..default }
    }

    /// The earliest time at which a leader may hand over. It has led since `since`. Another gateway has been fitter, or
    /// preferred, since `worse_since`. `moves`: automatic moves in a row that led to this leadership. A leader whose
    /// output nobody receives hands over once without waiting for the minimum tenure.
    #[must_use]
    pub(crate) fn move_at(&self, since: MonoNs, worse_since: MonoNs, moves: u32, class: FitnessClass) -> MonoNs {
        if class == FitnessClass::OutputNotReceived && moves == 0 {
            return worse_since.plus(self.worse_for_ns);
        }
        let factor = 1_u64.checked_shl(moves).unwrap_or(u64::MAX);
        let tenure_ns = self.tenure_ns.saturating_mul(factor).clamp(self.tenure_ns, self.tenure_ns_max);
        worse_since.plus(self.worse_for_ns).max(since.plus(tenure_ns))
    }

    /// Whether a leader has led for so long that earlier moves no longer count.
    #[must_use]
    pub(crate) fn resets_moves(&self, since: MonoNs, now: MonoNs) -> bool {
        now.since(since) >= self.moves_reset_ns
    }
}

impl Default for AutoMoveConfig {
    /// A quarter of a second, 10 s, 5 min, one hour.
    fn default() -> Self {
        Self {
            worse_for_ns: 250_000_000,
            tenure_ns: 10_000_000_000,
            tenure_ns_max: 300_000_000_000,
            moves_reset_ns: 3_600_000_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_tenure_doubles_with_each_move_up_to_its_limit() {
        let moves = AutoMoveConfig::default();
        let seconds = [0, 1, 2, 4, 5, 30, 63, 64, u32::MAX]
            .map(|made| moves.move_at(MonoNs(0), MonoNs(0), made, FitnessClass::ChannelsBehind).0 / 1_000_000_000);
        assert_eq!(seconds, [10, 20, 40, 160, 300, 300, 300, 300, 300]);
        let late = MonoNs(20_000_000_000);
        assert_eq!(moves.move_at(MonoNs(0), late, 0, FitnessClass::Fit), MonoNs(20_250_000_000));
    }

    #[test]
    fn an_unreceived_leader_moves_once_without_minimum_tenure() {
        let moves = AutoMoveConfig::default();
        let move_at = |made| moves.move_at(MonoNs(0), MonoNs(0), made, FitnessClass::OutputNotReceived);
        assert_eq!(move_at(0), MonoNs(moves.worse_for_ns));
        assert_eq!(move_at(1), MonoNs(2 * moves.tenure_ns));
    }
}
