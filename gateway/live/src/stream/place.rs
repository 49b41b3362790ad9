//! Places in the records of a channel.

use mdgw_wire::identity::Session;

/// A place in the log of a channel, by number and by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// Number of the next entry.
    pub(crate) entry: u64,
    /// Name of the next part: where the place is, if the log no longer has the entry.
    pub(crate) part: Option<PartName>,
}

/// Name of a record's part of a message. Names of one channel ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartName {
    pub(crate) session: Session,
    pub(crate) sequence: u64,
    pub(crate) part: u16,
}
