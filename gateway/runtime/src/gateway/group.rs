//! One group of channels, as its election sees it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use mdgw_engine::{
    channel_pool::ChannelPool,
    pipeline::ChannelMessage,
    publish::{FenceOpening, TakeoverShared},
};
use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId},
    published::position::StreamPosition,
};
use mdgw_pair::standby::{KnownEpochs, StatusTable};
use mdgw_sys::fence::Fence;

use super::{channel_builder::GroupParts, pool_channels::PoolChannels};
use crate::config::Resolved;

/// A group of channels: its fence, its known epochs, and the access to its channels.
#[derive(Clone, Debug)]
pub struct GroupHandle {
    fence: Arc<Fence>,
    epochs: Arc<KnownEpochs>,
    start_epoch: Epoch,
    /// Changed by a reload. A message is sent under the lock: so none is on its way to a channel that was removed.
    channels: Arc<RwLock<Vec<GroupChannel>>>,
    /// Number of position queries to the channels so far.
    drain_requests: Arc<AtomicU64>,
    status_table: Option<Arc<StatusTable>>,
}

/// Messages that a log lacks: the first one, and the one behind the last.
pub(crate) type LogHole = (StreamPosition, StreamPosition);

/// A channel of the group, and the pool that processes it.
#[derive(Clone, Debug)]
struct GroupChannel {
    id: ChannelId,
    pool: Arc<dyn ChannelPool>,
    index: usize,
    takeover_shared: Arc<TakeoverShared>,
}

impl GroupHandle {
    /// Fence of the group. Only one thread may open and close it.
    #[must_use]
    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Epochs that this gateway knows to be in use for the group, its own and those of peers.
    #[must_use]
    pub fn epochs(&self) -> &Arc<KnownEpochs> {
        &self.epochs
    }

    /// Of an elected gateway: the highest epoch of the group that its earlier starts knew.
    pub(super) fn start_epoch(&self) -> Epoch {
        self.start_epoch
    }

    /// Ids of the channels of the group, as of now.
    pub(crate) fn channels(&self) -> Vec<ChannelId> {
        self.all().iter().map(|channel| channel.id).collect()
    }

    /// The result of the last opening of the fence, channel by channel, with the [hole](TakeoverShared::log_hole) in the channel's log.
    pub(crate) fn openings(&self) -> Vec<(ChannelId, FenceOpening, Option<LogHole>)> {
        let of = |shared: &TakeoverShared| (shared.opening.get(), shared.log_hole.get().copied());
        let channels = self.all();
        let openings = channels.iter().map(|channel| (channel.id, of(&channel.takeover_shared)));
        openings.map(|(id, (opening, hole))| (id, opening, hole)).collect()
    }

    /// A channel was inserted into that slot of that pool.
    pub(super) fn add(
        &self,
        id: ChannelId,
        pool: Arc<dyn ChannelPool>,
        index: usize,
        takeover_shared: Arc<TakeoverShared>,
    ) {
        let mut channels = self.channels.write().unwrap_or_else(PoisonError::into_inner);
        channels.push(GroupChannel { id, pool, index, takeover_shared });
    }

    /// A channel is about to be retired: no message to it begins from now on, and none is on its way.
    pub(super) fn remove(&self, id: ChannelId) {
        self.channels.write().unwrap_or_else(PoisonError::into_inner).retain(|channel| channel.id != id);
    }

    fn all(&self) -> RwLockReadGuard<'_, Vec<GroupChannel>> {
        self.channels.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to one of the group's channels. Returns the message if that channel has no room or is not in
    /// the group.
    pub(crate) fn send(&self, channel: ChannelId, message: ChannelMessage) -> Result<(), ChannelMessage> {
        match self.all().iter().find(|other| other.id == channel) {
            Some(GroupChannel { pool, index, .. }) => pool.send(*index, message),
            None => Err(message),
        }
    }

    /// Call this after each opening of the fence, and after the closing of a hand-over. Every channel then reads the
    /// fence immediately, instead of with its next packet or heartbeat.
    pub fn on_fence_change(&self) {
        let number = self.drain_requests.fetch_add(1, Relaxed) + 1;
        for channel in self.all().iter() {
            channel.request_drain(number);
        }
    }

    /// Returns the end of each channel's output once no send is outstanding; `None` before that: call it again. To be
    /// called after the fence was closed and [`Self::on_fence_change`] was called.
    ///
    /// A channel that is out of service sends heartbeats at most; its last known position is returned.
    #[must_use]
    pub fn drained(&self) -> Option<BTreeMap<ChannelId, StreamPosition>> {
        let number = self.drain_requests.load(Relaxed);
        let mut all_acknowledged = true;
        for channel in self.all().iter() {
            let is_acknowledged = channel.takeover_shared.drain_ack.get().number >= number;
            if !is_acknowledged && channel.pool.failed(channel.index).is_none() {
                all_acknowledged = false;
                // Requested again, since the channel's inbox may have been full before.
                channel.request_drain(number);
            }
        }
        all_acknowledged.then(|| self.positions())
    }

    /// The known position of each channel's output: the furthest that this gateway has sent or received from the peer.
    #[must_use]
    pub(crate) fn positions(&self) -> BTreeMap<ChannelId, StreamPosition> {
        let position = |channel: &GroupChannel| {
            let status = self.status_table.as_ref().and_then(|table| table.get(channel.id)).unwrap_or_default();
            let sent = channel.takeover_shared.drain_ack.get().position.max(status.published);
            Some((channel.id, sent.max(status.received.received_through)?))
        };
        self.all().iter().filter_map(position).collect()
    }
}

impl GroupChannel {
    fn request_drain(&self, number: u64) {
        // A channel with a full inbox is processing and reads the fence anyway. A caller that waits for the
        // acknowledgement requests it again.
        let _inbox_full = self.pool.send(self.index, ChannelMessage::FenceChanged(number));
    }
}

/// A handle for each group.
pub(super) fn handles(
    config: &Resolved,
    groups: &BTreeMap<GroupId, GroupParts>,
    pools: &[PoolChannels],
    takeover_shared: &BTreeMap<ChannelId, Arc<TakeoverShared>>,
    status_table: Option<&Arc<StatusTable>>,
) -> BTreeMap<GroupId, GroupHandle> {
    let handle = |(group, parts): (&GroupId, &GroupParts)| {
        let is_of = |id: ChannelId| config.channels.iter().any(|setup| setup.id == id && setup.group == *group);
        let channels = pools
            .iter()
            .flat_map(|pool| pool.channels.all().into_iter().map(move |(index, id, _)| (pool, index, id)))
            .filter(|(_, _, id)| is_of(*id))
            .map(|(pool, index, id)| {
                let takeover_shared = takeover_shared.get(&id).cloned().unwrap_or_default();
                GroupChannel { id, pool: Arc::clone(&pool.pool), index, takeover_shared }
            })
            .collect::<Vec<_>>();
        let GroupParts { fence, epochs, start_epoch } = parts.clone();
        (
            *group,
            GroupHandle {
                fence,
                epochs,
                start_epoch,
                channels: Arc::new(RwLock::new(channels)),
                drain_requests: Arc::default(),
                status_table: status_table.cloned(),
            },
        )
    };
    groups.iter().map(handle).collect()
}
