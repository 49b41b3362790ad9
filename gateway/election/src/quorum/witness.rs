//! A witness: a voter for many groups that publishes nothing. Small, on a third host.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use mdgw_sys::{
    clock::mono_now,
    clock_rate::{ClockRate, RateMonitor},
    listener_counters::ListenerCounters,
    scheduler::request_short_slice,
};
use mdgw_wire::{identity::GroupId, time::MonoNs};

use super::{
    link::{Received, VoteLink},
    message::{Body, Message, VoterSession},
    vote_file::{VoteFile, VoteFileError},
    vote_store::{VoteStore, WriteResult},
    voter::{Voter, VoterInput, VoterOutput},
    wire::DATAGRAM_BYTES_MAX,
};
use crate::{auth::Nonce, core::Obstacle, identity::NodeId};

/// Options of a witness.
#[derive(Clone, Debug)]
pub struct WitnessOptions {
    /// The witness's number among the voters.
    pub node: NodeId,
    /// Directory of the vote files: on a disk that survives a power failure.
    pub vote_directory: PathBuf,
    /// ρ, parts per million.
    pub rate_error_ppm: u32,
    /// Maximum number of groups; otherwise a holder of the key could fill the disk.
    pub groups_max: usize,
}

/// A running witness: it votes until it is stopped.
#[derive(Debug)]
pub struct Witness {
    link: VoteLink,
    options: WitnessOptions,
    groups: Mutex<BTreeMap<GroupId, GroupVoter>>,
    /// Messages for groups that the witness cannot vote for.
    unanswered: AtomicU64,
}

/// The witness's voter for one group.
#[derive(Debug)]
struct GroupVoter {
    voter: Voter,
    store: VoteStore,
}

/// Why the witness cannot vote for a group.
#[derive(Debug, thiserror::Error)]
enum GroupVoterError {
    #[error(transparent)]
    File(#[from] VoteFileError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the limit of {0} groups is reached (groups_max)")]
    Groups(usize),
}

impl Witness {
    /// Loads the groups that have vote files, so that defects are reported now; other groups are added on their first
    /// request.
    ///
    /// # Errors
    /// When the directory cannot be read, or one of its vote files cannot be used.
    pub fn new(link: VoteLink, options: WitnessOptions) -> Result<Arc<Self>, String> {
        let witness = Arc::new(Self { link, options, groups: Mutex::default(), unanswered: AtomicU64::new(0) });
        let known = known_groups(&witness.options.vote_directory)
            .map_err(|error| format!("read vote directory {}: {error}", witness.options.vote_directory.display()))?;
        for group in known {
            witness.add_group(&mut witness.groups(), group).map_err(|error| error.to_string())?;
        }
        Ok(witness)
    }

    /// Votes until `stop` is set.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn run(self: &Arc<Self>, stop: &AtomicBool) -> io::Result<()> {
        request_short_slice();
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let (mut monitor, mut clock_rate, mut read_rate_at) = (RateMonitor::default(), ClockRate::Within(0), MonoNs(0));
        while !stop.load(Ordering::Relaxed) {
            if let Some(received) = self.link.receive(&mut buffer)? {
                self.take(received);
            }
            let now = mono_now();
            if now < read_rate_at {
                continue;
            }
            read_rate_at = now.plus(RATE_INTERVAL_NS);
            let rate = monitor.read(now);
            if rate != clock_rate {
                clock_rate = rate;
                if let Some(obstacle) = Obstacle::of_clock(rate, self.options.rate_error_ppm) {
                    tracing::warn!("witness: {obstacle}; promises are extended in proportion");
                }
                for group_voter in self.groups().values_mut() {
                    // A change of the clock rate has no outputs.
                    let _none = group_voter.voter.step(mono_now(), VoterInput::ClockRate(rate));
                }
            }
        }
        Ok(())
    }

    /// Number of groups that the witness votes for.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups().len()
    }

    /// What the witness has received and refused.
    #[must_use]
    pub fn counters(&self) -> &Arc<ListenerCounters> {
        self.link.counters()
    }

    fn take(self: &Arc<Self>, received: Received) {
        let (group, input) = match received {
            Received::Message(Message { group, from, body: Body::Request(request), .. }) => {
                (group, VoterInput::Request { from, request })
            }
            // A witness sends no requests.
            Received::Message(Message { body: Body::Reply(_), .. }) => return,
            Received::Death(announcement) => (announcement.group, VoterInput::Died(announcement.notice)),
        };
        let mut groups = self.groups();
        if !groups.contains_key(&group)
            && let Err(error) = self.add_group(&mut groups, group)
        {
            // A gateway repeats its request many times in a second.
            let count = 1 + self.unanswered.fetch_add(1, Ordering::Relaxed);
            if count.is_power_of_two() {
                tracing::error!(group = group.0, count, "witness: cannot vote: {error}");
            }
            return;
        }
        self.step(&mut groups, group, input);
    }

    fn step(&self, groups: &mut BTreeMap<GroupId, GroupVoter>, group: GroupId, input: VoterInput) {
        let Some(group_voter) = groups.get_mut(&group) else { return };
        for output in group_voter.voter.step(mono_now(), input) {
            match output {
                VoterOutput::Reply { to, reply } => {
                    self.link.send(&Message { group, from: self.options.node, to, body: Body::Reply(reply) });
                }
                VoterOutput::Store { write_id, durable } => {
                    tracing::info!(
                        group = group.0,
                        generation = durable.epoch.count(),
                        node = durable.epoch.0 & 0xff,
                        "votes"
                    );
                    group_voter.store.store(write_id, durable);
                }
            }
        }
    }

    fn add_group(
        self: &Arc<Self>,
        groups: &mut BTreeMap<GroupId, GroupVoter>,
        group: GroupId,
    ) -> Result<(), GroupVoterError> {
        if groups.len() >= self.options.groups_max {
            return Err(GroupVoterError::Groups(groups.len()));
        }
        let file = VoteFile::open(&self.options.vote_directory, group)?;
        let session = VoterSession(Nonce::random()?.number());
        let voter = Voter::new(mono_now(), file.durable(), session, self.options.rate_error_ppm);
        let witness = Arc::downgrade(self);
        let store = VoteStore::start(file, move |write_id, result| {
            let Some(witness) = witness.upgrade() else { return };
            let input = match result {
                WriteResult::Durable => VoterInput::Stored(write_id),
                WriteResult::Failed => VoterInput::NotStored(write_id),
            };
            witness.step(&mut witness.groups(), group, input);
        })?;
        groups.insert(group, GroupVoter { voter, store });
        Ok(())
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<GroupId, GroupVoter>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often the clock's rate is read, ns. Slews count for at least ten times as long, and a flood of datagrams costs no
/// further system calls.
const RATE_INTERVAL_NS: u64 = 100_000_000;

fn known_groups(directory: &std::path::Path) -> io::Result<Vec<GroupId>> {
    std::fs::create_dir_all(directory)?;
    let mut groups = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let group = name.to_str().and_then(|name| name.strip_prefix("group-")?.strip_suffix(".vote")?.parse().ok());
        groups.extend(group.map(GroupId));
    }
    Ok(groups)
}
