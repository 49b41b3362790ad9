//! State of a channel, shared by arbiter, channel and frames.

/// State of a channel. The number is the one in a [`StateBody`](crate::frame::StateBody).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChannelState {
    /// No packet received yet.
    #[default]
    Waiting = 0,
    /// In sequence.
    Live = 1,
    /// Input sequences are missing; another line may still deliver them.
    Gap = 2,
    /// Missing sequences were requested.
    Recovering = 3,
    /// No packet and no heartbeat on any line within the interval.
    Stale = 4,
    /// The venue ended the session.
    Ended = 5,
    /// Its handler failed; the channel is out of service.
    Failed = 6,
}

impl ChannelState {
    /// Decodes the number in a [`StateBody`](crate::frame::StateBody).
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        use ChannelState::{Ended, Failed, Gap, Live, Recovering, Stale, Waiting};
        [Waiting, Live, Gap, Recovering, Stale, Ended, Failed].into_iter().find(|state| *state as u8 == number)
    }
}
