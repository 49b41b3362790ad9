//! One group of channels, as whoever decides about its leadership sees it.

use std::{collections::BTreeMap, sync::Arc};

use mdgw_feeds::identity::{ChannelId, GroupId};

use super::{PoolOfChannels, pool::RunningPool, wiring::GroupParts};
use crate::{config::Resolved, fence::Fence, pipeline::ChannelMessage, standby::KnownEpochs};

/// The fence of a group and its epochs, and a bell for its channels.
#[derive(Clone, Debug)]
pub struct GroupDesk {
    fence: Arc<Fence>,
    epochs: Arc<KnownEpochs>,
    channels: Vec<GroupChannel>,
}

/// Where a channel of the group is processed.
#[derive(Clone, Debug)]
struct GroupChannel {
    id: ChannelId,
    pool: Arc<dyn RunningPool>,
    index: usize,
}

impl GroupDesk {
    /// For the one thread that opens and closes it.
    #[must_use]
    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// What is known of the group's epochs.
    #[must_use]
    pub fn epochs(&self) -> &Arc<KnownEpochs> {
        &self.epochs
    }

    /// Its channels.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.channels.iter().map(|channel| channel.id)
    }

    /// The fence has just been opened, or closed: every channel looks at once, instead of with its next packet or
    /// heartbeat. Call it after each opening.
    pub fn fence_moved(&self) {
        for GroupChannel { pool, index, .. } in &self.channels {
            // A channel whose inbox is full is at work, and looks by itself.
            let _at_work = pool.tell(*index, ChannelMessage::FenceMoved);
        }
    }
}

/// A desk for each group.
pub(super) fn desks(
    config: &Resolved,
    groups: &BTreeMap<GroupId, GroupParts>,
    pools: &[PoolOfChannels],
) -> BTreeMap<GroupId, GroupDesk> {
    let desk = |(group, parts): (&GroupId, &GroupParts)| {
        let is_of = |id: ChannelId| config.channels.iter().any(|setup| setup.id == id && setup.group == *group);
        let channels = pools
            .iter()
            .flat_map(|pool| pool.channels.iter().enumerate().map(move |(index, (id, _))| (pool, index, *id)))
            .filter(|(_, _, id)| is_of(*id))
            .map(|(pool, index, id)| GroupChannel { id, pool: Arc::clone(&pool.pool), index })
            .collect();
        let GroupParts { fence, epochs } = parts;
        (*group, GroupDesk { fence: Arc::clone(fence), epochs: Arc::clone(epochs), channels })
    };
    groups.iter().map(desk).collect()
}
