//! How fit a gateway is to publish: in classes, so that small differences move nothing.

use serde::{Deserialize, Serialize};

/// What stands against a gateway. All of it absent: fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitness {
    /// It sends, and another gateway that hears its own probes doesn't hear it.
    #[serde(rename = "output_unheard")]
    pub output_not_received: bool,
    /// Channels that are out of service.
    pub channels_failed: u16,
    /// Channels in gap or stale that the other gateway has live.
    pub channels_behind: u16,
    /// Its publication log or journal fails.
    pub log_failing: bool,
    /// Its threads stall.
    pub stalled: bool,
}

impl Fitness {
    /// The worst that stands against it.
    #[must_use]
    pub fn class(&self) -> FitnessClass {
        if self.output_not_received {
            FitnessClass::OutputNotReceived
        } else if self.channels_failed > 0 {
            FitnessClass::ChannelsFailed
        } else if self.channels_behind > 0 {
            FitnessClass::ChannelsBehind
        } else if self.log_failing {
            FitnessClass::LogFailing
        } else if self.stalled {
            FitnessClass::Stalled
        } else {
            FitnessClass::Fit
        }
    }

    /// Whether it is worse than `other` by a class. Counts within a class move nothing.
    #[must_use]
    pub fn is_worse_than(&self, other: &Self) -> bool {
        self.class() < other.class()
    }
}

/// From worst to best. Unheard output stands first: whoever isn't heard publishes nothing, whatever its books are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FitnessClass {
    /// It sends but isn't heard.
    OutputNotReceived,
    /// Channels are out of service.
    ChannelsFailed,
    /// Channels lack what the other has.
    ChannelsBehind,
    /// Log or journal fails.
    LogFailing,
    /// Its threads stall.
    Stalled,
    /// Nothing stands against it.
    Fit,
}

impl FitnessClass {
    /// For status and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OutputNotReceived => "output-unheard",
            Self::ChannelsFailed => "channels-failed",
            Self::ChannelsBehind => "channels-behind",
            Self::LogFailing => "log-failing",
            Self::Stalled => "stalled",
            Self::Fit => "fit",
        }
    }
}

/// Whether a gateway stands for election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eligibility {
    /// It is no worse than its peer, or alone.
    #[serde(rename = "stands")]
    Eligible,
    /// It still takes over state from its peer: it promises and votes, but does not stand.
    #[default]
    #[serde(rename = "joins")]
    Joining,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitness_compares_by_class_not_by_channel_counts() {
        let fit = Fitness::default();
        let behind = |channels_behind| Fitness { channels_behind, ..fit };
        let failed = Fitness { channels_failed: 1, ..fit };
        let not_received = Fitness { output_not_received: true, ..fit };
        assert!(behind(1).is_worse_than(&fit) && !fit.is_worse_than(&behind(1)));
        assert!(!behind(9).is_worse_than(&behind(1)), "within a class nothing moves");
        assert!(failed.is_worse_than(&behind(9)));
        assert!(not_received.is_worse_than(&failed));
        assert_eq!(Fitness { stalled: true, log_failing: true, ..fit }.class(), FitnessClass::LogFailing);
    }
}
