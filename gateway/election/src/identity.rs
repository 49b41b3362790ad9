//! Identities in an election: nodes, their incarnations, and epochs; and their serialized forms.

use std::fmt;

use mdgw_wire::identity::Epoch;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Number of a gateway within its group: the low 8 bits of every epoch that it opens. Unique by configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u8);

impl NodeId {
    /// The node that opened that epoch.
    #[must_use]
    pub fn of(epoch: Epoch) -> Self {
        Self(epoch.0.to_le_bytes()[0])
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Name of a gateway: 1 to 64 letters, digits, `-`, `_` or `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// `None` if the name is not valid.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        ((1..=64).contains(&name.len()) && name.bytes().all(allowed)).then(|| Self(name.to_owned()))
    }

    /// Returns the name as text.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for NodeName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::new(&name).ok_or("a node name has 1 to 64 letters, digits, '-', '_' or '.'")
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

/// One start of a gateway's process: its time, us since 1970 UTC, to a second, and always later than every start in its
/// state file. Knowledge about one incarnation says nothing about the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second =
            i64::try_from(self.0 / 1_000_000).ok().and_then(|second| OffsetDateTime::from_unix_timestamp(second).ok());
        // A peer may send a number that is beyond any calendar date.
        let Some(at) = second else { return write!(f, "{}", self.0) };
        write!(f, "{}T{:02}:{:02}:{:02}.{:06}Z", at.date(), at.hour(), at.minute(), at.second(), self.0 % 1_000_000)
    }
}

/// One start of one gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The gateway's number.
    pub node: NodeId,
    /// The gateway's name.
    pub name: NodeName,
    /// This start of the gateway.
    pub incarnation: Incarnation,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (node {}, started {})", self.name, self.node, self.incarnation)
    }
}

/// The next epoch of `node`: above the record's, the gateway's own earlier ones, and the credible ones from the wire.
/// `None` once the counts are exhausted.
#[must_use]
pub(crate) fn next_epoch(node: NodeId, known: impl IntoIterator<Item = Epoch>) -> Option<Epoch> {
    let count = known.into_iter().map(Epoch::count).max().unwrap_or(0) + 1;
    (count <= EPOCH_COUNT_MAX).then(|| Epoch::new(count, node.0))
}

/// Counts have 56 bits.
pub(crate) const EPOCH_COUNT_MAX: u64 = u64::MAX >> 8;

/// An epoch as a plain number, for `#[serde(with)]`.
pub(crate) mod epoch_number {
    use mdgw_wire::identity::Epoch;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Serializes the epoch.
    ///
    /// # Errors
    /// The serializer's error.
    pub(crate) fn serialize<S: Serializer>(epoch: &Epoch, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(epoch.0)
    }

    /// Deserializes the epoch.
    ///
    /// # Errors
    /// The deserializer's error.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Epoch, D::Error> {
        u64::deserialize(from).map(Epoch)
    }
}

/// Knowledge, not suspicion, that a process has ended: exactly this holder, incarnation and epoch. The sentinel
/// announces it after it has made sure. The notice says nothing about any other incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeathNotice {
    /// The gateway that ended.
    pub holder: NodeId,
    /// The start that ended.
    pub incarnation: Incarnation,
    /// The epoch of the process's last leadership; 0 if it never led.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::check;

    #[test]
    fn the_next_epoch_is_above_everything_known() {
        let known = [Epoch::new(7, 1), Epoch::new(9, 200), Epoch::default()];
        assert_eq!(next_epoch(NodeId(2), known), Some(Epoch::new(10, 2)));
        assert_eq!(NodeId::of(Epoch::new(10, 2)), NodeId(2));
        assert_eq!(next_epoch(NodeId(2), []), Some(Epoch::new(1, 2)));
        assert_eq!(next_epoch(NodeId(2), [Epoch(u64::MAX)]), None);
    }

    #[test]
    fn a_member_displays_its_start_time() {
        let member = |us| Member { node: NodeId(2), name: NodeName::new("gw2").unwrap(), incarnation: Incarnation(us) };
        let text = member(1_794_300_000_000_070).to_string();
        assert_eq!(text, "gw2 (node 2, started 2026-11-10T08:40:00.000070Z)");
        assert_eq!(member(u64::MAX).to_string(), format!("gw2 (node 2, started {})", u64::MAX));
    }

    #[test]
    fn ambiguous_node_names_are_refused() {
        for name in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert_eq!(NodeName::new(name), None, "{name:?}");
        }
        assert_eq!(NodeName::new("gw-1.ny_4").unwrap().as_str(), "gw-1.ny_4");
        assert!(serde_json::from_str::<NodeName>("\"a b\"").is_err());
    }

    #[test]
    fn a_death_notice_written_by_0_1_0_is_read() {
        check(
            include_str!("../../../tests/data/formats/death_notice.jsonl"),
            &[DeathNotice { holder: NodeId(1), incarnation: Incarnation(2), epoch: Epoch::new(3, 1) }],
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |notice| serde_json::to_vec(notice).unwrap(),
        );
    }
}
