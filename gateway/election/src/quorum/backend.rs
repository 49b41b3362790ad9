//! The backend `quorum` of a gateway: one socket for all of its groups, one vote file for each group.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use mdgw_sys::{
    listener_counters::{ListenerCounters, Refusal},
    scheduler::spawn_short_slice,
};
use mdgw_wire::identity::GroupId;

use super::{
    candidate::{QuorumEvent, QuorumRequest},
    link::{Received, VoteLink},
    vote_file::VoteFile,
    vote_store::{VoteStore, WriteResult},
    wire::DATAGRAM_BYTES_MAX,
};
use crate::{
    core::Input,
    driver::{Backend, Inbox},
};

/// A gateway's socket for votes, and the thread that dispatches received messages.
#[derive(Debug)]
pub struct QuorumTransport {
    link: Arc<VoteLink>,
    inboxes: Arc<Inboxes>,
    stop: Arc<AtomicBool>,
}

type Inboxes = Mutex<BTreeMap<GroupId, Inbox<QuorumEvent>>>;

impl QuorumTransport {
    /// Starts to receive.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(link: VoteLink) -> io::Result<Self> {
        let (link, inboxes, stop) = (Arc::new(link), Arc::<Inboxes>::default(), Arc::new(AtomicBool::new(false)));
        let receiver = Receiver { link: Arc::clone(&link), inboxes: Arc::clone(&inboxes), stop: Arc::clone(&stop) };
        spawn_short_slice("mdgw-quorum", move || receiver.run())?;
        Ok(Self { link, inboxes, stop })
    }

    /// What the socket has received and refused.
    #[must_use]
    pub fn counters(&self) -> &Arc<ListenerCounters> {
        self.link.counters()
    }

    /// The backend of the group's election that `inbox` belongs to.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn backend(
        self: &Arc<Self>,
        group: GroupId,
        file: VoteFile,
        inbox: &Inbox<QuorumEvent>,
    ) -> io::Result<QuorumBackend> {
        let to_election = inbox.clone();
        let store = VoteStore::start(file, move |write_id, result| {
            let event = match result {
                WriteResult::Durable => QuorumEvent::Stored(write_id),
                WriteResult::Failed => QuorumEvent::NotStored(write_id),
            };
            to_election.send(Input::Backend(event));
        })?;
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(group, inbox.clone());
        Ok(QuorumBackend { transport: Arc::clone(self), store })
    }
}

impl Drop for QuorumTransport {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The quorum backend of one group's election. The socket stays open while any backend exists.
#[derive(Debug)]
pub struct QuorumBackend {
    transport: Arc<QuorumTransport>,
    store: VoteStore,
}

impl Backend<QuorumRequest> for QuorumBackend {
    fn ask(&mut self, request: QuorumRequest) {
        match request {
            QuorumRequest::Send(message) => self.transport.link.send(&message),
            QuorumRequest::Store { write_id, durable } => self.store.store(write_id, durable),
        }
    }
}

struct Receiver {
    link: Arc<VoteLink>,
    inboxes: Arc<Inboxes>,
    stop: Arc<AtomicBool>,
}

impl Receiver {
    fn run(self) {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        while !self.stop.load(Ordering::Relaxed) {
            match self.link.receive(&mut buffer) {
                Ok(Some(received)) => self.dispatch(received),
                Ok(None) => {}
                Err(error) => {
                    // Without votes the lease expires; there is no better reaction here.
                    tracing::error!(%error, "votes: the socket failed; no more votes are received");
                    return;
                }
            }
        }
    }

    fn dispatch(&self, received: Received) {
        let (group, input) = match received {
            Received::Message(message) => (message.group, Input::Backend(QuorumEvent::Received(message))),
            Received::Death(announcement) => (announcement.group, Input::Died(announcement.notice)),
        };
        let inbox = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&group).cloned();
        let Some(inbox) = inbox else { return self.link.counters().count(Refusal::UnknownGroup) };
        if !inbox.send_received(input) {
            self.link.counters().count(Refusal::QueueFull);
        }
    }
}
