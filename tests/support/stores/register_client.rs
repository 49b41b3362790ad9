//! A client of a register that makes one request at a time.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    time::Instant,
};

use mdgw_election::{
    fitness::Fitness,
    identity::{Incarnation, Member, NodeId, NodeName},
    record::{ConfigVersion, Record},
    register::{Outcome, Register, RegisterEvent, RegisterSender, RequestId, StoreLink, Version, Versioned},
};
use mdgw_feeds::identity::Epoch;

use crate::process::TEST_TIMEOUT;

/// A register with a queue of its events.
pub struct RegisterClient {
    register: Box<dyn Register>,
    events: Receiver<RegisterEvent>,
    request_id: u64,
    /// Watch notifications that arrived while the client waited for an answer, oldest first.
    changes: Vec<Option<Versioned>>,
    /// The last reported state of the connection.
    link: Option<StoreLink>,
}

impl RegisterClient {
    /// Opens a register.
    #[must_use]
    pub fn open<R: Register + 'static>(open: impl FnOnce(RegisterSender) -> R) -> Self {
        let (sender, events) = mpsc::channel();
        let sender = Mutex::new(sender);
        let sender_callback: RegisterSender = Arc::new(move |event| {
            // Sending fails only while the client is dropped, which also ends the register.
            let _ = sender.lock().expect("nobody panics while sending").send(event);
        });
        Self { register: Box::new(open(sender_callback)), events, request_id: 0, changes: Vec::new(), link: None }
    }

    /// Reads the record once.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn try_read(&mut self) -> Outcome {
        let request_id = self.next_request_id();
        self.register.read(request_id);
        self.answer(request_id)
    }

    /// Reads until there is an answer.
    ///
    /// # Panics
    /// When there is none within [`TEST_TIMEOUT`].
    pub fn read(&mut self) -> Option<Versioned> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.try_read() {
                Outcome::Read(found) => return found,
                other => assert!(Instant::now() < deadline, "the store does not answer: {other:?}"),
            }
        }
    }

    /// Swaps once.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn swap(&mut self, expected: Version, record: &Record) -> Outcome {
        let request_id = self.next_request_id();
        self.register.compare_and_swap(request_id, expected, record);
        self.answer(request_id)
    }

    /// Makes a swap that must succeed.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn put(&mut self, expected: Version, record: &Record) -> Version {
        match self.swap(expected, record) {
            Outcome::Swapped(version) => version,
            other => panic!("not swapped: {other:?}"),
        }
    }

    /// Increments a counter in the record until `count` swaps have succeeded. After an unknown outcome it reads the record,
    /// which shows whether its own swap took effect. Returns how many outcomes were unknown.
    ///
    /// # Panics
    /// When a swap that was reported as successful did not take effect, or the store does not answer.
    pub fn increment_until(&mut self, node: u8, count: u64) -> u64 {
        let (mut done, mut unknown) = (0, 0);
        while done < count {
            let found = self.read().expect("the record is there");
            let next = Record { renewal: found.record.renewal + 1, epoch: Epoch::new(1 + done, node), ..record(node) };
            match self.swap(found.version, &next) {
                Outcome::Swapped(version) => {
                    assert!(version > found.version, "{version:?} in the place of {:?}", found.version);
                    done += 1;
                }
                Outcome::Unknown(_) => {
                    unknown += 1;
                    // The swap may have taken effect. If the version is unchanged, a new swap prevents it from taking effect later.
                    let now = self.read().expect("the record is there");
                    done += u64::from(now.record == next);
                    if now.version == found.version {
                        self.supersede(&found);
                    }
                }
                Outcome::Refused | Outcome::Failed(_) => {}
                Outcome::Read(read) => panic!("a read answers a swap: {read:?}"),
            }
        }
        unknown
    }

    /// Makes a swap that invalidates the expected version of a swap with unknown outcome.
    fn supersede(&mut self, found: &Versioned) {
        // The outcome does not matter, only the new version.
        let _ = self.swap(found.version, &found.record);
    }

    /// Starts the watch.
    pub fn watch(&mut self) {
        self.register.watch();
    }

    /// Drops the present connection.
    pub fn reconnect(&mut self) {
        self.register.reconnect();
    }

    /// Waits for a watch notification that `is_wanted`, and returns it.
    ///
    /// # Panics
    /// When it doesn't within [`TEST_TIMEOUT`].
    pub fn wait_for_change(&mut self, mut is_wanted: impl FnMut(Option<&Versioned>) -> bool) -> Option<Versioned> {
        loop {
            while !self.changes.is_empty() {
                let change = self.changes.remove(0);
                if is_wanted(change.as_ref()) {
                    return change;
                }
            }
            self.take_event("a watch notification");
        }
    }

    /// Waits for that connection state.
    ///
    /// # Panics
    /// When it doesn't come within [`TEST_TIMEOUT`].
    pub fn await_link(&mut self, link: StoreLink) {
        while self.link != Some(link) {
            self.take_event("a state of the connection");
        }
    }

    fn next_request_id(&mut self) -> RequestId {
        self.request_id += 1;
        RequestId(self.request_id)
    }

    fn answer(&mut self, request_id: RequestId) -> Outcome {
        loop {
            match self.take_event("an answer") {
                Some((answered, outcome)) if answered == request_id => return outcome,
                Some((answered, _)) => assert!(answered < request_id, "an answer to an unknown request"),
                None => {}
            }
        }
    }

    /// Handles one event; `Some` if it is an answer.
    fn take_event(&mut self, what: &str) -> Option<(RequestId, Outcome)> {
        match self.events.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|error| panic!("waited for {what}: {error}")) {
            RegisterEvent::Answer { request_id, outcome } => return Some((request_id, outcome)),
            RegisterEvent::Changed(found) => self.changes.push(found),
            RegisterEvent::StoreLink(link) => self.link = Some(link),
        }
        None
    }
}

impl fmt::Debug for RegisterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterClient")
            .field("request_id", &self.request_id)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// A record held by that node.
///
/// # Panics
/// Never: the name is valid.
#[must_use]
pub fn record(node: u8) -> Record {
    let name = NodeName::new(&format!("gw{node}")).expect("a plain name");
    Record {
        epoch: Epoch::new(1, node),
        holder: Some(Member { node: NodeId(node), name: name.clone(), incarnation: Incarnation(1) }),
        renewal: 0,
        lease_ns: 100_000_000,
        fitness: Fitness::default(),
        candidates: BTreeMap::from([(NodeId(node), name)]),
        successor: None,
        pinned: false,
        automatic_moves: 0,
        configuration: ConfigVersion { hash: 1, revision: 1, output_version: 1 },
    }
}
