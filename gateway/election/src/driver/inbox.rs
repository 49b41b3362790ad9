//! The queue of an election's inputs.
//!
//! A host that can send to this one can make its listeners queue inputs: authentic messages that were recorded and are sent
//! again pass the check of their tag. So inputs that were received have limited room, and one beyond it is lost, as it may be
//! on the network. Inputs of this process have no limit: their number depends on nobody else.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use crate::{core::Input, register::RegisterEvent};

/// Sends inputs to an election. Clones send to the same election.
pub struct Inbox<E> {
    sender: mpsc::Sender<QueuedInput<E>>,
    /// Received inputs in the queue.
    waiting: Arc<AtomicUsize>,
}

/// The receiving end of an [`Inbox`], for [`Election::new`](super::Election::new).
#[derive(Debug)]
pub struct InboxReceiver<E>(mpsc::Receiver<QueuedInput<E>>);

/// Makes an inbox before its election exists, since the backend needs the inbox first.
#[must_use]
pub fn inbox<E>() -> (Inbox<E>, InboxReceiver<E>) {
    let (sender, receiver) = mpsc::channel();
    (Inbox { sender, waiting: Arc::default() }, InboxReceiver(receiver))
}

impl<E> Inbox<E> {
    /// Sends an input of this process to the election. After the election's end the input is dropped.
    pub fn send(&self, input: Input<E>) {
        // An election that has ended needs no input.
        let _ended = self.sender.send(QueuedInput { input, _room: None });
    }

    /// Sends an input that was received from the network. `false`: the election has not yet read [`RECEIVED_MAX`] earlier
    /// ones, so this one is lost.
    #[must_use]
    pub(crate) fn send_received(&self, input: Input<E>) -> bool {
        // Relaxed: the count only bounds the queue, and orders nothing.
        if self.waiting.fetch_add(1, Relaxed) >= RECEIVED_MAX {
            self.waiting.fetch_sub(1, Relaxed);
            return false;
        }
        let room = Some(Room(Arc::clone(&self.waiting)));
        let _ended = self.sender.send(QueuedInput { input, _room: room });
        true
    }
}

impl Inbox<RegisterEvent> {
    /// The sender to open a store with: the store's events come to this inbox.
    #[must_use]
    pub fn register_sender(&self) -> crate::register::RegisterSender {
        let inbox = self.clone();
        Arc::new(move |event| inbox.send(Input::Backend(event)))
    }
}

impl<E> Clone for Inbox<E> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waiting: Arc::clone(&self.waiting) }
    }
}

impl<E> fmt::Debug for Inbox<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

impl<E> InboxReceiver<E> {
    /// The oldest input, if there is one.
    pub(super) fn try_recv(&self) -> Option<Input<E>> {
        self.0.try_recv().ok().map(|queued| queued.input)
    }

    /// Waits for an input, at most for `limit`.
    pub(super) fn recv_timeout(&self, limit: Duration) -> Result<Input<E>, mpsc::RecvTimeoutError> {
        self.0.recv_timeout(limit).map(|queued| queued.input)
    }
}

#[derive(Debug)]
struct QueuedInput<E> {
    input: Input<E>,
    /// The room of a received input; free again once the input is read or dropped.
    _room: Option<Room>,
}

#[derive(Debug)]
struct Room(Arc<AtomicUsize>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Most received inputs that wait for an election: more than all members of the largest group send at a time.
pub(super) const RECEIVED_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use mdgw_wire::identity::Epoch;

    use super::*;
    use crate::{
        core::Pin,
        identity::{DeathNotice, Incarnation, NodeId},
    };

    #[test]
    fn received_inputs_are_bounded_and_own_inputs_are_not() {
        let (inbox, waiting) = inbox::<Infallible>();
        let death = |incarnation| {
            Input::Died(DeathNotice {
                holder: NodeId(1),
                incarnation: Incarnation(incarnation),
                epoch: Epoch::new(1, 1),
            })
        };
        let sent = (0..10 * RECEIVED_MAX as u64).filter(|incarnation| inbox.send_received(death(*incarnation))).count();
        assert_eq!(sent, RECEIVED_MAX);
        (0..RECEIVED_MAX).for_each(|_| inbox.send(Input::Pin(Pin::Pinned)));
        assert_eq!(waiting.try_recv(), Some(death(0)), "the oldest ones are kept");
        assert!(inbox.send_received(death(7)), "an input that was read leaves its room to another one");
        assert!(!inbox.clone().send_received(death(8)));
        assert_eq!(std::iter::from_fn(|| waiting.try_recv()).count(), 2 * RECEIVED_MAX);
        assert!(inbox.send_received(death(9)));
    }
}
