//! Turns messages into the records that a consumer sees.

use super::receiver::{Item, Output};
use crate::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    identity::ChannelId,
};

/// One [`ConsumerEdge`] per channel: copies values local to the gateway (`ts_recv`, `ts_in_delta`, and the flags that
/// follow from them) into the records.
#[derive(Debug)]
pub struct ConsumerEdges {
    ts_recv: TsRecvMode,
    edges: Vec<(ChannelId, ConsumerEdge)>,
}

impl ConsumerEdges {
    /// Creates the edges of all channels with the same receive time mode.
    #[must_use]
    pub fn new(ts_recv: TsRecvMode) -> Self {
        Self { ts_recv, edges: Vec::new() }
    }

    /// Delivers the records of messages, definitions and snapshots; other items have none. Returns the number of
    /// trailing bytes that are not a record: 0 for a valid body.
    pub fn deliver(&mut self, output: &Output<'_>, deliver_record: impl FnMut(EdgeOutput<'_>)) -> usize {
        let (Item::Message { header, body } | Item::Definition { header, body } | Item::Snapshot { header, body }) =
            output.item
        else {
            return 0;
        };
        if matches!(output.item, Item::Definition { .. }) {
            // A repeated definition has the receive time of its first publication, and messages delivered later may be
            // older. So it must not affect the times of the channel's edge.
            return ConsumerEdge::new(self.ts_recv).deliver(header, body, deliver_record);
        }
        let index = self.edges.iter().position(|(channel, _)| *channel == output.channel).unwrap_or_else(|| {
            self.edges.push((output.channel, ConsumerEdge::new(self.ts_recv)));
            self.edges.len() - 1
        });
        self.edges.get_mut(index).map_or(body.len(), |(_, edge)| edge.deliver(header, body, deliver_record))
    }
}
