//! A running pool, whichever backend its handle set has.

use std::fmt;

use crate::{
    engine::{
        dispatch::{Dispatch, FailReason},
        pool::Pool,
        roles::Gauges,
    },
    net::handle_set::{ChannelIndex, HandleSet},
    pipeline::ChannelPipeline,
};

/// What the gateway wants of a pool once it runs. The backend was chosen at the start and is not asked for again.
pub(super) trait RunningPool: fmt::Debug + Send {
    fn gauges(&self) -> Gauges;
    fn fault(&self) -> Option<String>;
    fn failed(&self, index: usize) -> Option<FailReason>;
    fn shutdown(self: Box<Self>) -> Vec<ChannelPipeline>;
}

/// A pool over one kind of handle set.
pub(super) struct PoolOf<S: HandleSet + 'static>(pub(super) Pool<S, ChannelPipeline>);

impl<S: HandleSet + 'static> fmt::Debug for PoolOf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolOf").finish_non_exhaustive()
    }
}

impl<S: HandleSet + 'static> RunningPool for PoolOf<S> {
    fn gauges(&self) -> Gauges {
        self.0.gauges()
    }

    fn fault(&self) -> Option<String> {
        self.0.fault()
    }

    fn failed(&self, index: usize) -> Option<FailReason> {
        self.0.failed(ChannelIndex(u32::try_from(index).ok()?))
    }

    fn shutdown(self: Box<Self>) -> Vec<ChannelPipeline> {
        self.0.shutdown()
    }
}
