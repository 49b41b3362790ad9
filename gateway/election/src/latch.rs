//! The interface of an election towards the gateway, after the leader-latch pattern.

use std::{sync::Arc, time::Duration};

use mdgw_wire::identity::Epoch;

use super::{
    core::{CloseReason, ConnectionState, Pin, View},
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId},
};

/// The election of one group, as one gateway sees it, with any backend.
///
/// A new latch is not a candidate until [`start`](Self::start). After [`close`](Self::close) it never is again: a new
/// candidacy needs a new latch.
pub trait LeaderLatch: Send + Sync {
    /// Begins the candidacy. A second call does nothing.
    ///
    /// # Errors
    /// When it was closed before.
    fn start(&self) -> Result<(), Closed>;

    /// Gives up leadership at once, so that others need not wait for the lease, and ends the candidacy. Returns when
    /// the fence is closed, listeners have been notified, and the release was submitted.
    fn close(&self);

    /// Whether this gateway may publish now: reads the fence and the clock.
    fn has_leadership(&self) -> bool;

    /// Waits until this gateway leads.
    ///
    /// # Errors
    /// When the latch is closed, before or meanwhile.
    fn await_leadership(&self) -> Result<Epoch, Closed>;

    /// Waits until this gateway leads, at most for `limit`. `None`: it does not lead yet.
    ///
    /// # Errors
    /// When the latch is closed, before or meanwhile.
    fn await_leadership_for(&self, limit: Duration) -> Result<Option<Epoch>, Closed>;

    /// Notifies `listener` from now on, on the election's own thread for listeners.
    fn listen(&self, listener: Arc<dyn Listener>) -> ListenerId;

    /// Removes a listener.
    fn unlisten(&self, listener: ListenerId);

    /// Candidates, leader, epoch and connection state.
    fn view(&self) -> View;

    /// Hands leadership over to `target`, or to the fittest other gateway. Returns when that gateway leads.
    ///
    /// # Errors
    /// When this gateway does not lead, no gateway is fit to take over, or the hand-over failed.
    fn hand_over(&self, target: Option<NodeId>) -> Result<Member, HandOverError>;

    /// Sets whether leadership may move automatically.
    fn set_pin(&self, pin: Pin);

    /// Sets how fit this gateway is.
    fn set_fitness(&self, fitness: Fitness);

    /// Sets whether this gateway is eligible or still joining.
    fn set_eligibility(&self, eligibility: Eligibility);
}

/// Is notified of leadership and connection: after the fence has closed and before it opens, within a time limit. So a
/// slow listener delays neither stopping nor, without bound, opening. Every event carries its epoch.
pub trait Listener: Send + Sync {
    /// The fence is about to open.
    fn gained(&self, epoch: Epoch) {
        let _ = epoch;
    }

    /// The fence is about to open under a higher epoch: the leadership goes on, and no end of it was notified. A forger can
    /// cause some hundred raises a second. By default as a gained leadership.
    fn raised(&self, epoch: Epoch) {
        self.gained(epoch);
    }

    /// The fence has closed.
    fn lost(&self, epoch: Epoch, reason: CloseReason) {
        let _ = (epoch, reason);
    }

    /// The connection has changed; `epoch` is that of the last known leadership, of any gateway.
    fn connection(&self, epoch: Epoch, state: ConnectionState) {
        let _ = (epoch, state);
    }
}

/// Identifies a listener of one latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// The latch is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this election handle is closed; create a new one")]
pub struct Closed;

/// Why leadership was not handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// This gateway does not lead.
    #[error("this gateway is not the leader")]
    NotLeader,
    /// The hand-over failed; this gateway continues to lead, or its lease has expired.
    #[error("leadership was not handed over: {0}")]
    Failed(String),
}
