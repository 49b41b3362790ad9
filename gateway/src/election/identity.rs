//! Names in an election: nodes, their incarnations, places in the published stream, and the next epoch.

use std::fmt;

use mdgw_feeds::identity::{Epoch, Feed, Sequence, Session};
use mdgw_feeds::time::TradingDate;
use serde::{Deserialize, Serialize};

/// Number of a gateway within its group: the low 8 bits of every epoch that it makes. Unique by configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u8);

impl NodeId {
    /// The node that made that epoch.
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
    /// The name, if it may be one.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        ((1..=64).contains(&name.len()) && name.bytes().all(allowed)).then(|| Self(name.to_owned()))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
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

/// Which start of a gateway's process: kept in its state file, one more at each start. What was said of one
/// incarnation says nothing of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// One start of one gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Which start of it.
    pub incarnation: Incarnation,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (node {}, start {})", self.name, self.node, self.incarnation.0)
    }
}

/// A place in a channel's published stream. Sessions order first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "WrittenPosition", into = "WrittenPosition")]
pub struct Position {
    /// The numbering.
    pub session: Session,
    /// The next input sequence.
    pub sequence: Sequence,
    /// The next part of it, 0 unless a message cut into parts has been published up to there.
    pub part: u16,
}

/// The epoch to take next: above what the record says, what this gateway once used, and what was credibly heard.
/// `None` once the counts are used up.
#[must_use]
pub fn next_epoch(node: NodeId, known: impl IntoIterator<Item = Epoch>) -> Option<Epoch> {
    let count = known.into_iter().map(Epoch::count).max().unwrap_or(0) + 1;
    (count <= EPOCH_COUNT_MAX).then(|| Epoch::new(count, node.0))
}

/// Counts have 56 bits.
pub const EPOCH_COUNT_MAX: u64 = u64::MAX >> 8;

/// An epoch as a plain number, for `#[serde(with)]`.
pub mod epoch_number {
    use mdgw_feeds::identity::Epoch;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(epoch: &Epoch, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(epoch.0)
    }

    /// Reads it.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Epoch, D::Error> {
        u64::deserialize(from).map(Epoch)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPosition {
    feed: u16,
    /// `YYYYMMDD`.
    date: u32,
    restart: u32,
    sequence: u64,
    part: u16,
}

impl From<Position> for WrittenPosition {
    fn from(position: Position) -> Self {
        let Position { session: Session { feed, date, restart }, sequence, part } = position;
        Self { feed: feed as u16, date: date.yyyymmdd(), restart, sequence: sequence.0, part }
    }
}

impl TryFrom<WrittenPosition> for Position {
    type Error = &'static str;

    fn try_from(written: WrittenPosition) -> Result<Self, Self::Error> {
        let WrittenPosition { feed, date, restart, sequence, part } = written;
        let feed = Feed::from_number(feed).ok_or("no feed has that number")?;
        let date = TradingDate::from_yyyymmdd(date).ok_or("there is no such date")?;
        Ok(Self { session: Session { feed, date, restart }, sequence: Sequence(sequence), part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_epoch_is_above_everything_known() {
        let known = [Epoch::new(7, 1), Epoch::new(9, 200), Epoch::default()];
        assert_eq!(next_epoch(NodeId(2), known), Some(Epoch::new(10, 2)));
        assert_eq!(NodeId::of(Epoch::new(10, 2)), NodeId(2));
        assert_eq!(next_epoch(NodeId(2), []), Some(Epoch::new(1, 2)));
        assert_eq!(next_epoch(NodeId(2), [Epoch(u64::MAX)]), None);
    }

    #[test]
    fn names_that_could_be_mistaken_are_refused() {
        for name in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert_eq!(NodeName::new(name), None, "{name:?}");
        }
        assert_eq!(NodeName::new("gw-1.ny_4").unwrap().as_str(), "gw-1.ny_4");
        assert!(serde_json::from_str::<NodeName>("\"a b\"").is_err());
    }

    #[test]
    fn positions_survive_writing_and_order_by_session_first() {
        let at = |date, restart, sequence, part| Position {
            session: Session { feed: Feed::IexDeep, date: TradingDate::from_yyyymmdd(date).unwrap(), restart },
            sequence: Sequence(sequence),
            part,
        };
        let position = at(20_170_425, 3, 17, 2);
        let text = serde_json::to_string(&position).unwrap();
        assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
        assert!(serde_json::from_str::<Position>(&text.replace("20170425", "20170431")).is_err());
        assert!(at(20_170_425, 3, 99, 9) < at(20_170_425, 4, 1, 0));
        assert!(at(20_170_425, 3, 17, 2) < at(20_170_425, 3, 17, 3));
    }
}
