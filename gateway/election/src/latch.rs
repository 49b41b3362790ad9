//! The face of an election towards the gateway, after the pattern known as leader latch.

use std::{sync::Arc, time::Duration};

use mdgw_feeds::identity::Epoch;

use super::{
    core::{CloseReason, ConnectionState, Pin, View},
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId},
};

/// The election of one group, as one gateway sees it. Whatever the backend, this is what the gateway asks.
///
/// Made, it does not stand. After [`close`](Self::close) it never stands again: a new candidacy is a new latch.
pub trait LeaderLatch: Send + Sync {
    /// Begins to stand. A second call does nothing.
    ///
    /// # Errors
    /// When it was closed before.
    fn start(&self) -> Result<(), Closed>;

    /// Gives up leadership at once, so that nobody has to wait for the lease, and stands no more. Returns when the fence
    /// is closed, listeners have been told, and the release was handed in.
    fn close(&self);

    /// Whether this gateway may publish now: one atomic read and the clock.
    fn has_leadership(&self) -> bool;

    /// Waits until this gateway leads.
    ///
    /// # Errors
    /// When it is closed, before or meanwhile.
    fn await_leadership(&self) -> Result<Epoch, Closed>;

    /// Waits until this gateway leads, for no longer than `limit`. `None`: it doesn't yet.
    ///
    /// # Errors
    /// When it is closed, before or meanwhile.
    fn await_leadership_for(&self, limit: Duration) -> Result<Option<Epoch>, Closed>;

    /// Tells `listener` from now on, on the election's own thread for listeners.
    fn listen(&self, listener: Arc<dyn Listener>) -> ListenerId;

    /// Tells it no more.
    fn unlisten(&self, listener: ListenerId);

    /// Who may stand, who leads, under which epoch, and how the connection is.
    fn view(&self) -> View;

    /// The other gateway is to lead: the fittest, or that one. Returns when it does.
    ///
    /// # Errors
    /// When this gateway doesn't lead, nobody is fit to take over, or it did not come about.
    fn hand_over(&self, target: Option<NodeId>) -> Result<Member, HandOverError>;

    /// Whether leadership may move by itself.
    fn set_pin(&self, pin: Pin);

    /// How fit this gateway is.
    fn set_fitness(&self, fitness: Fitness);

    /// Whether this gateway stands, or still joins.
    fn set_eligibility(&self, eligibility: Eligibility);
}

/// Who wants to know of leadership and connection. Told after the fence has closed and before it opens, within a time
/// limit: a slow listener makes nobody late to stop, nor silent for ever. Every event carries its epoch.
pub trait Listener: Send + Sync {
    /// The fence is about to open.
    fn gained(&self, epoch: Epoch) {
        let _ = epoch;
    }

    /// The fence has closed.
    fn lost(&self, epoch: Epoch, reason: CloseReason) {
        let _ = (epoch, reason);
    }

    /// The connection has changed; `epoch` is the last known leadership's, whoever leads.
    fn connection(&self, epoch: Epoch, state: ConnectionState) {
        let _ = (epoch, state);
    }
}

/// Names a listener of one latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// The latch is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this candidacy is closed; a new one is a new latch")]
pub struct Closed;

/// Why leadership was not handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// Somebody else leads, or nobody.
    #[error("this gateway does not lead")]
    NotLeader,
    /// It did not come about; this gateway leads on, or its lease has run out.
    #[error("leadership was not handed over: {0}")]
    Failed(String),
}
