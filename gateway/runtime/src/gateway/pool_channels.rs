//! The pools with their channels, as the cold threads know them. A reload changes which channels there are.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use mdgw_engine::channel_pool::ChannelPool;
use mdgw_feeds::identity::ChannelId;
use socket2::Socket;

/// A pool with its channels. Only the main thread changes it.
#[derive(Debug)]
pub(super) struct PoolChannels {
    pub(super) name: String,
    pub(super) pool: Arc<dyn ChannelPool>,
    pub(super) channels: PoolChannelList,
    /// The sockets of each channel that the pool watches.
    pub(super) sockets: BTreeMap<ChannelId, Vec<Arc<Socket>>>,
    /// Slots without a channel, the one that has been vacant for longest first: what threads that were idle since have
    /// recorded for its last channel has been collected by then.
    pub(super) vacant: VecDeque<usize>,
    /// Slots whose removed channel a thread still held when it was last looked at.
    pub(super) leaving: Vec<usize>,
}

impl PoolChannels {
    /// Whether the pool has channels, and all of them have failed.
    pub(super) fn have_all_failed(&self) -> bool {
        let channels = self.channels.all();
        !channels.is_empty() && channels.iter().all(|(index, _, _)| self.pool.failed(*index).is_some())
    }

    /// Takes back the slots of removed channels that no thread holds any more.
    pub(super) fn reclaim(&mut self) {
        let Self { pool, vacant, leaving, .. } = self;
        leaving.retain(|index| {
            let is_free = pool.take_retired(*index).is_some();
            vacant.extend(is_free.then_some(*index));
            !is_free
        });
    }
}

/// Id and name of each channel, by its slot in the pool. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolChannelList(Arc<Mutex<BTreeMap<usize, (ChannelId, String)>>>);

impl PoolChannelList {
    /// Channels in the slots from 0 on.
    pub(super) fn of(channels: impl Iterator<Item = (ChannelId, String)>) -> Self {
        Self(Arc::new(Mutex::new(channels.enumerate().collect())))
    }

    /// Slot, id and name of each channel, as of now.
    pub(super) fn all(&self) -> Vec<(usize, ChannelId, String)> {
        self.lock().iter().map(|(index, (id, name))| (*index, *id, name.clone())).collect()
    }

    /// Slot of a channel.
    pub(super) fn index_of(&self, channel: ChannelId) -> Option<usize> {
        self.lock().iter().find(|(_, (id, _))| *id == channel).map(|(index, _)| *index)
    }

    pub(super) fn insert(&self, index: usize, channel: ChannelId, name: String) {
        self.lock().insert(index, (channel, name));
    }

    pub(super) fn remove(&self, index: usize) {
        self.lock().remove(&index);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, (ChannelId, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
