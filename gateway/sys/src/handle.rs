//! Names of what a handle set watches: channel index, handle, set of lines. Shared by the pool, the receive batches and
//! the counters, so that none of them needs the others.

use mdgw_feeds::identity::Line;

/// Index of a channel within its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelIndex(pub u32);

/// Whose socket it is: travels through the kernel as 64 bits of user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The channel.
    pub channel: ChannelIndex,
    /// Which of its lines.
    pub line: Line,
}

/// A set of lines, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSet(pub u8);

impl LineSet {
    /// With `line` in it.
    #[must_use]
    pub fn with(self, line: Line) -> Self {
        Self(self.0 | 1 << (line.0 & 7))
    }

    /// Whether `line` is in it.
    #[must_use]
    pub fn contains(self, line: Line) -> bool {
        self.0 & 1 << (line.0 & 7) != 0
    }

    /// Both sets together.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}
