//! How fit a gateway is to publish: in classes, so that small differences move nothing.

use serde::{Deserialize, Serialize};

/// Defects of a gateway. A gateway without any is fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitness {
    /// The gateway sends, and another gateway that receives its own probes does not receive this output.
    #[serde(rename = "output_unheard")]
    pub output_not_received: bool,
    /// Channels that are out of service.
    pub channels_failed: u16,
    /// Channels in gap or stale here that are live on the other gateway.
    pub channels_behind: u16,
    /// The publication log or the journal fails.
    pub log_failing: bool,
    /// Threads of the gateway stall.
    pub stalled: bool,
}

impl Fitness {
    /// The class of the worst defect.
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

    /// Whether this gateway is worse than `other` by a class. Counts within a class do not matter.
    #[must_use]
    pub fn is_worse_than(&self, other: &Self) -> bool {
        self.class() < other.class()
    }
}

/// From worst to best. Output that nobody receives comes first: such a gateway publishes nothing, however good its
/// books are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FitnessClass {
    /// The gateway sends, but its output is not received.
    OutputNotReceived,
    /// Channels are out of service.
    ChannelsFailed,
    /// Channels lack data that the other gateway has.
    ChannelsBehind,
    /// The log or the journal fails.
    LogFailing,
    /// Threads stall.
    Stalled,
    /// No defect.
    Fit,
}

impl FitnessClass {
    /// All classes, from worst to best.
    pub const ALL: [Self; 6] = [
        Self::OutputNotReceived,
        Self::ChannelsFailed,
        Self::ChannelsBehind,
        Self::LogFailing,
        Self::Stalled,
        Self::Fit,
    ];

    /// The name of the class in status output and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OutputNotReceived => "output-not-received",
            Self::ChannelsFailed => "channels-failed",
            Self::ChannelsBehind => "channels-behind",
            Self::LogFailing => "log-failing",
            Self::Stalled => "stalled",
            Self::Fit => "fit",
        }
    }
}

/// Whether a gateway is eligible to lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eligibility {
    /// It is caught up with its peer, or alone.
    #[serde(rename = "stands")]
    Eligible,
    /// It still takes over state from its peer. It promises and votes, but is not eligible.
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
