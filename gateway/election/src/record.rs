//! The record of a group: the one versioned value in the store that says which gateway publishes.
//!
//! The format is JSON, so that the store's own tools can show it. The record comes from outside and is checked: sizes,
//! the lease's length, the epoch's count, and that the epoch belongs to the node that holds the record.

use std::collections::BTreeMap;

use mdgw_wire::identity::Epoch;
use serde::{Deserialize, Serialize};

use super::{
    fitness::Fitness,
    identity::{EPOCH_COUNT_MAX, Incarnation, Member, NodeId, NodeName, epoch_number},
    timing::LEASE_NS_MAX,
};
use crate::identity::DeathNotice;

/// The agreed state of a group. Only the holder writes it, except for a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Epoch of the present leadership, or of the last one if there is no holder.
    #[serde(with = "epoch_number")]
    pub epoch: Epoch,
    /// The leader. `None`: released, or ended by a death notice. Then only the successor's time must be waited for.
    pub holder: Option<Member>,
    /// Number of renewals of this leadership: makes each renewal a visible change.
    pub renewal: u64,
    /// L of the holder, ns: how long others wait.
    pub lease_ns: u64,
    /// How fit the holder is.
    pub fitness: Fitness,
    /// The admitted candidates, the holder included. Only the holder's swap changes them.
    pub candidates: BTreeMap<NodeId, NodeName>,
    /// The designated successor and its stamp. A named successor stays named until its time has passed.
    #[serde(rename = "heir")]
    pub successor: Option<Successor>,
    /// Automatic moves in a row: each doubles the minimum tenure. Reset to 0 after a long leadership.
    #[serde(rename = "moves")]
    pub automatic_moves: u32,
    /// No automatic moves. A pin never keeps a leader from ending its own lease.
    pub pinned: bool,
    /// The output that the holder is configured to publish.
    pub configuration: ConfigVersion,
}

/// The designated successor: it may open its fence without asking the store once it knows that the holder has ended,
/// and swaps the record meanwhile. Its lease counts from its own stamp, which was taken before the record with that
/// stamp was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Successor {
    /// Node number of the gateway.
    pub node: NodeId,
    /// The start of that gateway; another start may not take over.
    pub incarnation: Incarnation,
    /// Taken on the successor's clock with the last state that the leader received of it.
    pub stamp: PeerTimestamp,
}

impl Successor {
    /// Whether `member` is this start of this gateway.
    #[must_use]
    pub(crate) fn is_same_start(&self, member: &Member) -> bool {
        (self.node, self.incarnation) == (member.node, member.incarnation)
    }
}

/// A moment on the clock of one gateway, ns. Another gateway carries it without interpreting it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerTimestamp(pub u64);

/// The configured output of a gateway. Two gateways with one hash give their output the same names and content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigVersion {
    /// Hash over all settings that the output depends on.
    pub hash: u64,
    /// Raised by the operator who rolls out a new configuration.
    pub revision: u64,
    /// Version of the published format.
    pub output_version: u32,
}

/// A differing configuration blocks a candidate only while a leader with the other configuration runs, and for so many
/// leases afterwards. So a gateway with the leader's configuration takes over first.
pub const CONFIG_MISMATCH_WAIT_LEASES: u64 = 100;

impl ConfigVersion {
    /// Whether both give their output the same names and content.
    #[must_use]
    pub(crate) fn has_same_output_as(&self, other: &Self) -> bool {
        (self.hash, self.output_version) == (other.hash, other.output_version)
    }

    /// Whether a gateway with this configuration may succeed a leader with `theirs`: same output, or rolled out later.
    #[must_use]
    pub(crate) fn may_succeed(&self, theirs: &Self) -> bool {
        self.has_same_output_as(theirs) || self.revision > theirs.revision
    }
}

impl Record {
    /// Whether that incarnation of that gateway holds the record.
    #[must_use]
    pub(crate) fn is_held_by(&self, member: &Member) -> bool {
        self.holder.as_ref() == Some(member)
    }

    /// Identifies the leadership that the record shows, in the form of its death notice. `None`: the record has no
    /// holder.
    #[must_use]
    pub(crate) fn leadership_id(&self) -> Option<DeathNotice> {
        let Member { node, incarnation, .. } = *self.holder.as_ref()?;
        Some(DeathNotice { holder: node, incarnation, epoch: self.epoch })
    }

    /// The same record without holder. Others need to wait only for its successor.
    #[must_use]
    pub(crate) fn released(&self) -> Self {
        Self { holder: None, renewal: self.renewal + 1, ..self.clone() }
    }

    /// Serializes the record for the store.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|_| unreachable!("numbers, text and maps with number keys"))
    }

    /// Parses the stored form.
    ///
    /// # Errors
    /// When the value is not a record, or one that no gateway would write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLong { bytes: bytes.len() });
        }
        let record: Self = serde_json::from_slice(bytes)?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), RecordError> {
        let inconsistent = |what| Err(RecordError::Inconsistent { what });
        if !(1..=LEASE_NS_MAX).contains(&self.lease_ns) {
            return inconsistent("lease_ns out of range");
        }
        if !(1..=EPOCH_COUNT_MAX).contains(&self.epoch.count()) {
            return inconsistent("epoch out of range");
        }
        if let Some(holder) = &self.holder {
            if NodeId::of(self.epoch) != holder.node {
                return inconsistent("the epoch's node is not the holder");
            }
            if self.candidates.get(&holder.node) != Some(&holder.name) {
                return inconsistent("the holder is not among the candidates");
            }
        }
        Ok(())
    }
}

/// A value in the store that is not a record. No gateway overwrites it, since its origin is unknown.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The value is longer than any record.
    #[error("{bytes} bytes exceed the maximum record size of {RECORD_BYTES_MAX}")]
    TooLong {
        /// Length of the value.
        bytes: usize,
    },
    /// The value does not have the format of a record.
    #[error("not an election record: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The fields contradict each other.
    #[error("invalid election record: {what}")]
    Inconsistent {
        /// The contradiction, for the error text.
        what: &'static str,
    },
}

/// Many times the size of a record with 256 candidates; stores accept at least 1 MiB.
pub(crate) const RECORD_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::formats::check;

    pub(crate) fn member(node: u8, incarnation: u64) -> Member {
        let name = NodeName::new(&format!("gw{node}")).unwrap();
        Member { node: NodeId(node), name, incarnation: Incarnation(incarnation) }
    }

    pub(crate) fn record(count: u64, holder: &Member) -> Record {
        Record {
            epoch: Epoch::new(count, holder.node.0),
            holder: Some(holder.clone()),
            renewal: 0,
            lease_ns: 100_000_000,
            fitness: Fitness::default(),
            candidates: [1, 2].map(|node| (NodeId(node), member(node, 0).name)).into(),
            successor: None,
            automatic_moves: 0,
            pinned: false,
            configuration: ConfigVersion { hash: 7, revision: 1, output_version: 1 },
        }
    }

    pub(crate) fn successor(node: u8, stamp: u64) -> Successor {
        Successor { node: NodeId(node), incarnation: Incarnation(1), stamp: PeerTimestamp(stamp) }
    }

    fn with_successor() -> Record {
        Record { successor: Some(successor(1, 4)), ..record(3, &member(2, 8)) }
    }

    #[test]
    fn records_round_trip_through_the_store_format() {
        for record in [record(1, &member(1, 1)), with_successor(), Record { holder: None, ..record(1, &member(1, 1)) }]
        {
            assert_eq!(Record::from_bytes(&record.to_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn inconsistent_records_are_refused() {
        let good = record(1, &member(1, 1));
        let refused =
            |record: Record| matches!(Record::from_bytes(&record.to_bytes()), Err(RecordError::Inconsistent { .. }));
        assert!(refused(Record { lease_ns: 0, ..good.clone() }));
        assert!(refused(Record { lease_ns: LEASE_NS_MAX + 1, ..good.clone() }));
        assert!(refused(Record { epoch: Epoch::new(0, 1), ..good.clone() }));
        assert!(refused(Record { epoch: Epoch::new(1, 2), ..good.clone() }));
        assert!(refused(Record { candidates: BTreeMap::new(), ..good.clone() }));
        assert!(!refused(good));
        assert!(matches!(Record::from_bytes(&vec![b' '; RECORD_BYTES_MAX + 1]), Err(RecordError::TooLong { .. })));
    }

    #[test]
    fn a_record_written_by_0_1_0_is_read() {
        let full = Record {
            epoch: Epoch::new(41, 2),
            holder: Some(member(2, 1_794_300_000_000_070)),
            renewal: 3,
            lease_ns: 100_000_000,
            fitness: Fitness {
                output_not_received: true,
                channels_failed: 4,
                channels_behind: 5,
                log_failing: false,
                stalled: true,
            },
            successor: Some(Successor { node: NodeId(1), incarnation: Incarnation(6), stamp: PeerTimestamp(7) }),
            automatic_moves: 8,
            pinned: true,
            configuration: ConfigVersion { hash: u64::MAX, revision: 9, output_version: 10 },
            ..record(41, &member(2, 0))
        };
        let least = Record {
            epoch: Epoch::new(1, 1),
            holder: None,
            renewal: 0,
            lease_ns: 1,
            fitness: Fitness::default(),
            candidates: BTreeMap::new(),
            successor: None,
            automatic_moves: 0,
            pinned: false,
            configuration: ConfigVersion::default(),
        };
        check(
            include_str!("../../../tests/data/formats/record.jsonl"),
            &[full, least],
            |bytes| Record::from_bytes(bytes).unwrap(),
            Record::to_bytes,
        );
    }

    proptest! {
        #[test]
        fn a_damaged_record_is_refused_or_still_consistent(index in 0_usize..600, byte: u8) {
            let mut bytes = with_successor().to_bytes();
            let index = index % bytes.len();
            bytes[index] = byte;
            if let Ok(record) = Record::from_bytes(&bytes) {
                prop_assert!(record.check().is_ok());
            }
            bytes.truncate(index);
            prop_assert!(Record::from_bytes(&bytes).is_err());
        }
    }
}
