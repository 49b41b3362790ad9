//! Identifies watched sockets: channel index, handle, set of lines. Shared by the pool, the receive batches and the
//! counters, so that none of them depends on the others.

use mdgw_wire::identity::Line;

/// Index of a channel within its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelIndex(pub u32);

/// Channel and line of a socket, stored in the kernel's 64 bits of user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// Channel to which the socket belongs, by its index within the pool.
    pub channel: ChannelIndex,
    /// The line within the channel.
    pub line: Line,
}

/// A set of lines, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSet(pub u8);

impl LineSet {
    /// This set and `line`.
    #[must_use]
    pub fn with(self, line: Line) -> Self {
        Self(self.0 | 1 << (line.0 & 7))
    }

    /// Whether `line` is in the set.
    #[must_use]
    pub fn contains(self, line: Line) -> bool {
        self.0 & 1 << (line.0 & 7) != 0
    }

    /// The union of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}
