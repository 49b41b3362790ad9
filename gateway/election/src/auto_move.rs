//! When leadership moves automatically: to a fitter gateway, or to the preferred one. Moves are slow on purpose, so
//! that leadership does not flap.
//!
//! A leader whose output nobody receives publishes nothing, so no time holds it. Flapping is prevented by the result of the
//! last move: if the output of the leadership that it led to was received, moving helped, and the leader moves again at once.
//! If not, it waits for its minimum tenure, which doubles: with two dead outputs there is one move in each of these times.

use mdgw_wire::time::MonoNs;

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

    /// The earliest time at which a leader may hand over. Another gateway has been fitter, or preferred, since
    /// `worse_since`.
    #[must_use]
    pub(crate) fn move_at(&self, tenure: &TenureSoFar, worse_since: MonoNs, class: FitnessClass) -> MonoNs {
        let is_unreceived = class == FitnessClass::OutputNotReceived;
        if is_unreceived && (tenure.moves == 0 || tenure.move_helped) {
            return worse_since.plus(self.worse_for_ns);
        }
        let factor = 1_u64.checked_shl(tenure.moves).unwrap_or(u64::MAX);
        let tenure_ns = self.tenure_ns.saturating_mul(factor).clamp(self.tenure_ns, self.tenure_ns_max);
        worse_since.plus(self.worse_for_ns).max(tenure.since.plus(tenure_ns))
    }

    /// Whether a move of a leader of that class lengthens the minimum tenure of the next leader. A move away from an output
    /// that nobody receives does not, if the move before it helped. The first one does: a count of 0 means that no move
    /// led to a leadership.
    #[must_use]
    pub(crate) fn counts_move(tenure: &TenureSoFar, class: FitnessClass) -> bool {
        class != FitnessClass::OutputNotReceived || !tenure.move_helped || tenure.moves == 0
    }

    /// Whether a leader has led for so long that earlier moves no longer count.
    #[must_use]
    pub(crate) fn resets_moves(&self, since: MonoNs, now: MonoNs) -> bool {
        now.since(since) >= self.moves_reset_ns
    }
}

/// A leadership so far, as its automatic moves see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TenureSoFar {
    pub(crate) since: MonoNs,
    /// Automatic moves in a row that led to this leadership.
    pub(crate) moves: u32,
    /// The last move helped: the output of the leadership that it led to has been received.
    pub(crate) move_helped: bool,
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
        let config = AutoMoveConfig::default();
        for move_helped in [false, true] {
            let tenure = |moves| TenureSoFar { since: MonoNs(0), moves, move_helped };
            let seconds = [0, 1, 2, 4, 5, 30, 63, 64, u32::MAX]
                .map(|moves| config.move_at(&tenure(moves), MonoNs(0), FitnessClass::ChannelsBehind).0 / 1_000_000_000);
            assert_eq!(seconds, [10, 20, 40, 160, 300, 300, 300, 300, 300]);
            let late = MonoNs(20_000_000_000);
            assert_eq!(config.move_at(&tenure(0), late, FitnessClass::Fit), MonoNs(20_250_000_000));
        }
    }

    #[test]
    fn an_unreceived_leader_waits_for_its_tenure_only_if_the_move_to_it_did_not_help() {
        let config = AutoMoveConfig::default();
        let class = FitnessClass::OutputNotReceived;
        let tenure = |moves, move_helped| TenureSoFar { since: MonoNs(0), moves, move_helped };
        for (moves, move_helped, expected_ns, is_counted) in [
            (0, false, config.worse_for_ns, true),
            (0, true, config.worse_for_ns, true),
            (1, true, config.worse_for_ns, false),
            (9, true, config.worse_for_ns, false),
            (1, false, 2 * config.tenure_ns, true),
            (2, false, 4 * config.tenure_ns, true),
        ] {
            let tenure = tenure(moves, move_helped);
            assert_eq!(config.move_at(&tenure, MonoNs(0), class), MonoNs(expected_ns), "{tenure:?}");
            assert_eq!(AutoMoveConfig::counts_move(&tenure, class), is_counted, "{tenure:?}");
            assert!(AutoMoveConfig::counts_move(&tenure, FitnessClass::ChannelsBehind));
        }
    }
}
