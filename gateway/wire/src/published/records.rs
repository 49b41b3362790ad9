//! Turns messages into the records that a consumer sees.

use std::collections::BTreeMap;

use super::receiver::{Item, Output};
use crate::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    dbn_layout::{RECORD_BYTES_MAX, mark_state_record},
    identity::ChannelId,
};

/// One [`ConsumerEdge`] per channel: copies values local to the gateway (`ts_recv`, `ts_in_delta`, and the flags that
/// follow from them) into the records.
#[derive(Debug)]
pub struct ConsumerEdges {
    ts_recv: TsRecvMode,
    edges: BTreeMap<ChannelId, ConsumerEdge>,
}

impl ConsumerEdges {
    /// Creates the edges of all channels with the same receive time mode.
    #[must_use]
    pub fn new(ts_recv: TsRecvMode) -> Self {
        Self { ts_recv, edges: BTreeMap::new() }
    }

    /// Delivers the records of messages, definitions and snapshots; other items have none. Of a repeated message only the records
    /// that change a book or the trading status are delivered, with the flag SNAPSHOT: the others were delivered before. Returns the
    /// number of trailing bytes that are not a record: 0 for a valid body.
    pub fn deliver(&mut self, output: &Output<'_>, mut deliver_record: impl FnMut(EdgeOutput<'_>)) -> usize {
        let (header, body) = match output.item {
            Item::Message { header, body } | Item::Definition { header, body } | Item::Snapshot { header, body } => {
                (header, body)
            }
            Item::Repeated { header, body } => {
                return self.edge_of(output.channel).deliver(header, body, |delivered| {
                    if let EdgeOutput::Record { rtype, bytes } = delivered {
                        let mut record = [0; RECORD_BYTES_MAX];
                        let Some(record) = record.get_mut(..bytes.len()) else { return };
                        record.copy_from_slice(bytes);
                        if mark_state_record(rtype, record) {
                            deliver_record(EdgeOutput::Record { rtype, bytes: record });
                        }
                    }
                });
            }
            Item::Session | Item::State(_) | Item::Gap(_) | Item::Lost(_) | Item::Books(_) | Item::EndOfSession => {
                return 0;
            }
        };
        if matches!(output.item, Item::Definition { .. }) {
            // A repeated definition has the receive time of its first publication, and messages delivered later may be
            // older. So it must not affect the times of the channel's edge.
            return ConsumerEdge::new(self.ts_recv).deliver(header, body, deliver_record);
        }
        self.edge_of(output.channel).deliver(header, body, deliver_record)
    }

    fn edge_of(&mut self, channel: ChannelId) -> &mut ConsumerEdge {
        let ts_recv = self.ts_recv;
        self.edges.entry(channel).or_insert_with(|| ConsumerEdge::new(ts_recv))
    }
}
