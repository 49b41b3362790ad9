//! One group of channels, as whoever decides about its leadership sees it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use mdgw_engine::{
    pipeline::ChannelMessage,
    publish::{Opening, TakeoverWords},
};
use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId},
    published::position::StreamPosition,
};
use mdgw_pair::standby::{Board, KnownEpochs};
use mdgw_sys::fence::Fence;

use super::{PoolOfChannels, pool::RunningPool, wiring::GroupParts};
use crate::config::Resolved;

/// The fence of a group and its epochs, and a bell for its channels.
#[derive(Clone, Debug)]
pub struct GroupDesk {
    fence: Arc<Fence>,
    epochs: Arc<KnownEpochs>,
    channels: Vec<GroupChannel>,
    /// Questions asked of the channels so far.
    asked: Arc<AtomicU64>,
    board: Option<Arc<Board>>,
}

/// Where a channel of the group is processed.
#[derive(Clone, Debug)]
struct GroupChannel {
    id: ChannelId,
    pool: Arc<dyn RunningPool>,
    index: usize,
    words: Arc<TakeoverWords>,
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

    /// What the last opening of the fence has come to, channel by channel.
    pub fn openings(&self) -> impl Iterator<Item = (ChannelId, Opening)> {
        self.channels.iter().map(|channel| (channel.id, channel.words.opening.get()))
    }

    /// Tells one of its channels something; the message comes back when that has no room for it, or isn't of this group.
    pub(crate) fn tell(&self, channel: ChannelId, message: ChannelMessage) -> Result<(), ChannelMessage> {
        match self.channels.iter().find(|other| other.id == channel) {
            Some(GroupChannel { pool, index, .. }) => pool.tell(*index, message),
            None => Err(message),
        }
    }

    /// The fence has just been opened or closed: every channel looks at once, instead of with its next packet or
    /// heartbeat. Call it after each opening, and after the closing of a hand-over.
    pub fn fence_moved(&self) {
        let number = self.asked.fetch_add(1, Relaxed) + 1;
        for channel in &self.channels {
            channel.ask(number);
        }
    }

    /// After the fence was closed and [`Self::fence_moved`] called: where each channel's output ended, once no send is
    /// outstanding. `None` before; to be asked again.
    ///
    /// A channel that is out of service sends heartbeats at most, and stands where it was last known to.
    #[must_use]
    pub fn drained(&self) -> Option<BTreeMap<ChannelId, StreamPosition>> {
        let number = self.asked.load(Relaxed);
        let mut all_answered = true;
        for channel in &self.channels {
            let has_answered = channel.words.looks.get().number >= number;
            if !has_answered && channel.pool.failed(channel.index).is_none() {
                all_answered = false;
                // Its inbox may have been full when it was asked.
                channel.ask(number);
            }
        }
        all_answered.then(|| self.positions())
    }

    /// A gateway that led under that epoch has said where its output ended: channels go on there when the fence opens next.
    pub fn others_ended(&self, epoch: Epoch, positions: &BTreeMap<u16, StreamPosition>) {
        for GroupChannel { id, words, .. } in &self.channels {
            if let Some(position) = positions.get(&id.0) {
                words.ended.advance(epoch, *position);
            }
        }
    }

    /// Where each channel's output stands, as far as is known: as sent by this gateway, else as heard of the other.
    #[must_use]
    pub fn positions(&self) -> BTreeMap<ChannelId, StreamPosition> {
        let position = |channel: &GroupChannel| {
            let board = self.board.as_ref().and_then(|board| board.get(channel.id)).unwrap_or_default();
            let sent = channel.words.looks.get().position.max(board.published);
            let heard = board.heard.credible(board.ready);
            Some((channel.id, sent.max(heard)?))
        };
        self.channels.iter().filter_map(position).collect()
    }
}

impl GroupChannel {
    fn ask(&self, number: u64) {
        // A channel whose inbox is full is at work, and looks by itself; whoever waits for its answer asks again.
        let _at_work = self.pool.tell(self.index, ChannelMessage::FenceMoved(number));
    }
}

/// A desk for each group.
pub(super) fn desks(
    config: &Resolved,
    groups: &BTreeMap<GroupId, GroupParts>,
    pools: &[PoolOfChannels],
    words: &BTreeMap<ChannelId, Arc<TakeoverWords>>,
    board: Option<&Arc<Board>>,
) -> BTreeMap<GroupId, GroupDesk> {
    let desk = |(group, parts): (&GroupId, &GroupParts)| {
        let is_of = |id: ChannelId| config.channels.iter().any(|setup| setup.id == id && setup.group == *group);
        let channels = pools
            .iter()
            .flat_map(|pool| pool.channels.iter().enumerate().map(move |(index, (id, _))| (pool, index, *id)))
            .filter(|(_, _, id)| is_of(*id))
            .map(|(pool, index, id)| {
                let words = words.get(&id).cloned().unwrap_or_default();
                GroupChannel { id, pool: Arc::clone(&pool.pool), index, words }
            })
            .collect();
        let GroupParts { fence, epochs } = parts.clone();
        (*group, GroupDesk { fence, epochs, channels, asked: Arc::default(), board: board.cloned() })
    };
    groups.iter().map(desk).collect()
}
