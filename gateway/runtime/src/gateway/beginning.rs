//! How a channel begins: with a copy of a peer's state, with the whole session, or where its own log ends. Each of the three has a function.

use std::{
    hash::{BuildHasher, RandomState},
    net::SocketAddrV4,
};

use mdgw_feeds::{
    arbiter::RecoveryConfig,
    channel::{Channel, ChannelConfig, ChannelState, KnownSession, LateStart},
    identity::Sequence,
};
use mdgw_publog::Position;

use super::{
    GatewayError, Leadership, Overrides, StartMode,
    channel_log::{ChannelLog, log_error, remove_log, unpublished},
    group::LogHole,
    state_copy::Donors,
    venue_replay::VenueReplay,
};
use crate::{
    config::{
        Resolved,
        resolved::{ChannelSetup, OutputConfig},
    },
    published_positions::PublishedPositions,
    state_file::{ResumePosition, StoredChannel},
};

/// How a channel begins.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) channel: Channel,
    /// Where the channel continues if it is the copy of a peer's.
    pub(super) copied_position: Option<ResumePosition>,
    pub(super) log: ChannelLog,
    /// A place in the log: no gateway is known to have published the entries behind it.
    pub(super) unpublished_from: Position,
    /// What the log lacks before the copy, and no gateway is known to have published.
    pub(super) hole: Option<LogHole>,
}

/// The start of one channel.
#[derive(Debug)]
pub(super) struct ChannelStart<'b> {
    pub(super) config: &'b Resolved,
    pub(super) setup: &'b ChannelSetup,
    pub(super) output: Option<&'b OutputConfig>,
    pub(super) overrides: Overrides,
    /// How far each channel was published at least, if that is known.
    pub(super) published: Option<&'b PublishedPositions>,
    pub(super) donors: &'b mut Donors,
}

/// A peer's state.
struct CopiedState {
    channel: Channel,
    position: ResumePosition,
    /// This gateway may never have followed that session.
    session: Option<KnownSession>,
    donor: SocketAddrV4,
}

impl ChannelStart<'_> {
    /// `stored`: what the state file has of the channel.
    pub(super) fn beginning(&mut self, stored: StoredChannel) -> Result<Beginning, GatewayError> {
        let config = self.channel_config(stored);
        let joining = joining(config.clone());
        let mut replay = VenueReplay::new(self.setup, self.session_to_replay(stored));
        let wants_whole_session = self.overrides.beginning == StartMode::WholeSession;
        let can_replay_input = &mut || wants_whole_session || replay.is_available();
        let copied = self.donors.channel(self.config, self.setup, &joining, can_replay_input);
        if let Some((channel, donor)) = copied
            && let Some(position) = copied_position(&channel)
        {
            let session = channel.known_session();
            return self.with_copy(config, stored, CopiedState { channel, position, session, donor });
        }
        // Without a reachable peer the session cannot be replayed: the peer may have died during the copy.
        if wants_whole_session && !self.donors.are_all_unreachable() {
            let is_elected = self.overrides.leadership == Leadership::Elected;
            return self.with_whole_session(if is_elected { joining } else { config });
        }
        let mut log = self.open_log()?;
        let published = self.published_of(&mut log, stored);
        let unpublished_from = self.first_unpublished(&log, published)?;
        let resumed = log.own_position(stored, published);
        Ok(self.behind_own_log(config, stored, log, (resumed, unpublished_from), replay))
    }

    /// The log is removed, since the replay would publish its messages twice.
    fn with_whole_session(&self, config: ChannelConfig) -> Result<Beginning, GatewayError> {
        remove_log(self.config, self.setup)?;
        let log = self.open_log()?;
        let unpublished_from = self.first_unpublished(&log, None)?;
        let channel = Channel::new(ChannelConfig { log_position: None, ..config });
        Ok(Beginning { channel, copied_position: None, log, unpublished_from, hole: None })
    }

    /// The log stays, and gets from the peer's log what it lacks before the copy.
    fn with_copy(
        &mut self,
        mut config: ChannelConfig,
        stored: StoredChannel,
        copied: CopiedState,
    ) -> Result<Beginning, GatewayError> {
        let CopiedState { channel, position: state, session, donor } = copied;
        let mut log = self.open_log()?;
        let published = self.published_of(&mut log, stored);
        let unpublished_from = self.first_unpublished(&log, published)?;
        // No gateway is known to have published what is behind this.
        let known = published.or(log.end).unwrap_or(ResumePosition { next: Sequence(1), ..state });
        let known = ResumePosition { has_ended: false, ..known };
        if let Some(positions) = self.published {
            positions.begin(self.setup.id, known);
        }
        let outcome = log.copy_from_peer(self.donors, donor, self.setup, state, self.copied_messages_max());
        let hole = outcome.hole.and_then(|hole| unpublished(hole, published));
        // A donor that runs publishes what the hole has, or has published it. A dead one never will.
        if let Some(session) = session.filter(|_| outcome.is_peer_lost && hole.is_some() && !state.has_ended) {
            let shutdown_position = stored.shutdown_position.filter(|position| position.session == session.session);
            let stored = StoredChannel { session: Some(session), shutdown_position };
            let mut replay = VenueReplay::new(self.setup, self.session_to_replay(stored));
            if known.session <= session.session && replay.is_available() {
                tracing::warn!(peer = %donor, channel = self.setup.name, "the copy of the peer's state is not used: the peer died before it had sent its log, and the venue can replay the session");
                let mut unpublished_from = unpublished_from;
                if outcome.hole_before_end.is_some_and(|hole| unpublished(hole, published).is_some()) {
                    // The log goes on behind its last entry: the venue's messages could not fill a hole before that. They replace all of them.
                    drop(log);
                    remove_log(self.config, self.setup)?;
                    log = self.open_log()?;
                    unpublished_from = self.first_unpublished(&log, None)?;
                }
                config.resume = stored.session;
                let resumed = log.own_position(stored, Some(known));
                return Ok(self.behind_own_log(config, stored, log, (resumed, unpublished_from), replay));
            }
        }
        let position = log.position_with_copy(state);
        log.resume(position);
        Ok(Beginning { channel, copied_position: Some(state), log, unpublished_from, hole })
    }

    /// The channel continues at `resumed`; `None`: with the first session that it receives. The venue rebuilds its books, if it can replay
    /// the session.
    fn behind_own_log(
        &self,
        mut config: ChannelConfig,
        stored: StoredChannel,
        mut log: ChannelLog,
        (resumed, unpublished_from): (Option<ResumePosition>, Position),
        mut replay: VenueReplay<'_>,
    ) -> Beginning {
        if let Some(position) = resumed {
            log.resume(position);
        }
        let has_messages = stored.session.is_some_and(|known| known.has_messages);
        let is_mid_session =
            resumed.is_some_and(|position| !position.has_ended && (position.next > Sequence(1) || has_messages));
        let channel = &self.setup.name;
        if is_mid_session && replay.is_available() {
            tracing::info!(channel, "replaying the session from the venue's server to rebuild the books");
            config = replay_config(config);
        } else if is_mid_session {
            tracing::warn!(channel, "starting in mid-session from the local log only: books are suspect");
        }
        config.log_position = resumed.map(|position| (position.session, position.next));
        let channel = Channel::new(config);
        Beginning { channel, copied_position: None, log, unpublished_from, hole: None }
    }

    fn channel_config(&self, stored: StoredChannel) -> ChannelConfig {
        let mut config = self.setup.channel_config();
        config.resume = stored.session;
        config.date = self.overrides.date.or(config.date);
        config.ts_recv = self.overrides.ts_recv;
        if self.overrides.leadership == Leadership::Elected {
            let without_server = RecoveryConfig { attempts_max: 0, ..RecoveryConfig::default() };
            let recovery = config.arbiter.recovery.get_or_insert(without_server);
            recovery.peer_attempts_max = PEER_ATTEMPTS_MAX;
        }
        // The seed is random, so that no outside party can choose order ids that collide.
        config.books.order_hash_seed = RandomState::new().hash_one(self.setup.id.0);
        config
    }

    fn open_log(&self) -> Result<ChannelLog, GatewayError> {
        ChannelLog::open(self.config, self.setup, self.output)
    }

    /// How far the channel is known to be published. The log takes over whether the session has ended there.
    fn published_of(&self, log: &mut ChannelLog, stored: StoredChannel) -> Option<ResumePosition> {
        let session = log.end.map(|end| end.session).or_else(|| stored.session.map(|known| known.session));
        let published = self.published.and_then(|positions| positions.get(self.setup.id, session));
        log.end_with(published);
        published
    }

    fn first_unpublished(&self, log: &ChannelLog, published: Option<ResumePosition>) -> Result<Position, GatewayError> {
        log.first_unpublished(published).map_err(|source| log_error(self.setup, source))
    }

    /// How many messages are copied at most into the log of a channel.
    fn copied_messages_max(&self) -> u64 {
        (COPIED_MESSAGES_MAX / self.config.channels.len().max(1) as u64).max(COPIED_MESSAGES_MIN)
    }

    /// The session whose replay can rebuild the channel's books if no peer supplies them; `None` if no replay is
    /// wanted.
    fn session_to_replay(&self, stored: StoredChannel) -> Option<KnownSession> {
        let Overrides { leadership, copy_peer_state, .. } = self.overrides;
        let is_wanted = leadership == Leadership::Elected && copy_peer_state;
        stored.session.filter(|known| is_wanted && known.has_messages)
    }
}

/// Configuration of a channel that gets the earlier messages of the session from the peer.
fn joining(config: ChannelConfig) -> ChannelConfig {
    let mut config = replay_config(config);
    if let Some(catch_up) = &mut config.arbiter.catch_up {
        // More attempts than for a gap, since the link to the peer has to come up first.
        catch_up.peer_attempts_max = JOIN_PEER_ATTEMPTS_MAX;
    }
    config
}

/// Configuration of a channel for which the venue replays the session from its first message.
fn replay_config(mut config: ChannelConfig) -> ChannelConfig {
    // The limits for gaps do not apply, since a whole day is missing.
    let (gap_messages_max, session_messages_max) = (u64::MAX, u64::MAX);
    config.arbiter.catch_up =
        config.arbiter.recovery.map(|recovery| RecoveryConfig { gap_messages_max, session_messages_max, ..recovery });
    config.late_start = LateStart::WholeSession;
    config
}

/// Position at which a channel continues that was copied from a peer.
fn copied_position(channel: &Channel) -> Option<ResumePosition> {
    let (session, next) = channel.position()?;
    Some(ResumePosition { session, next, has_ended: channel.state() == ChannelState::Ended })
}

/// Requests to the peer for the same gap: the second covers the loss of the first.
const PEER_ATTEMPTS_MAX: u16 = 2;
/// Requests to the peer by a joining gateway: three seconds of attempts, in which the link can come up. After the peer
/// has reported the end of its input, the gateway does not wait for it.
const JOIN_PEER_ATTEMPTS_MAX: u16 = 300;
/// How many of the last messages before a copied state are copied into the log, for all channels together: some 150 MB. Where the own log
/// lacks more, they stay missing.
const COPIED_MESSAGES_MAX: u64 = 1 << 20;
/// The same for each of many channels.
const COPIED_MESSAGES_MIN: u64 = 1 << 14;

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::SocketAddr,
        path::Path,
        time::Duration,
    };

    use mdgw_election::identity::Incarnation;
    use mdgw_engine::publish::{PeerEntries, PeerEntry};
    use mdgw_feeds::{identity::ChannelId, published::position::StreamPosition};
    use mdgw_pair::pair_link::{
        SilenceLimit,
        message::{LinkIdentity, LinkMessage, LoggedEntry},
    };
    use mdgw_publog::Reader;

    use super::*;
    use crate::{
        gateway::{
            log_copy::tests::{entry, key, peer},
            venue_replay::tests::{NAME, known_session, packet, server},
        },
        state_file::StateFile,
    };

    /// A host of a gateway with one channel, over several starts of the gateway.
    struct Host {
        directory: tempfile::TempDir,
        config: Resolved,
    }

    /// What a start of the channel begins with.
    #[derive(Debug, PartialEq, Eq)]
    struct Begun {
        is_copied: bool,
        continues_at: Option<u64>,
        /// Of the entries in the log that no gateway is known to have published.
        unpublished: Vec<(u64, u64)>,
        hole: Option<(u64, u64)>,
        replays_session: bool,
    }

    impl Host {
        /// The first start is over: it has made the file of positions.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let text = include_str!("../../../../ops/config/loopback.toml");
            let mut config = Resolved::from_text(Path::new("x"), text).unwrap();
            config.gateway.log_dir = directory.path().join("log");
            config.channels[0].recovery = None;
            let host = Self { directory, config };
            let mut state = StateFile::open(host.state_file()).unwrap();
            let _first = PublishedPositions::open(&host.state_file(), &state);
            state.set_session(host.config.channels[0].id, known_session()).unwrap();
            host
        }

        fn with_venue(mut self) -> Self {
            self.config.channels[0].recovery = Some(server(vec![packet(NAME, 1); 4]));
            self
        }

        fn state_file(&self) -> std::path::PathBuf {
            self.directory.path().join("state")
        }

        /// The gateway has logged these entries, and was killed.
        fn log(&self, entries: impl IntoIterator<Item = (u64, u64)>) {
            let mut log = ChannelLog::open(&self.config, &self.config.channels[0], None).unwrap();
            let until = StreamPosition::at(known_session().session, Sequence(u64::MAX));
            let mut appended = PeerEntries::new(&mut log.sink, until);
            for (first, next) in entries {
                let LoggedEntry { first, next, flags, frame_count, payload } = &entry(first, next);
                let (first, next, flags, frame_count) = (*first, *next, *flags, *frame_count);
                let session = known_session().session;
                appended.append(&PeerEntry { session, first, next, flags, frame_count, payload }).unwrap();
            }
        }

        fn publish_through(&self, next: u64) {
            let state = StateFile::open(self.state_file()).unwrap();
            let position = ResumePosition { session: known_session().session, next: Sequence(next), has_ended: false };
            PublishedPositions::open(&self.state_file(), &state).begin(self.config.channels[0].id, position);
        }

        /// An orderly stop, of a gateway that may have messages which nobody has published.
        fn stop_at(&self, next: u64) {
            let position = ResumePosition { session: known_session().session, next: Sequence(next), has_ended: false };
            let mut state = StateFile::open(self.state_file()).unwrap();
            state.record_shutdown([(self.config.channels[0].id, position)]).unwrap();
        }

        /// The gateway starts, and the channel begins so. It may find a donor at that address, whose state is copied at 500.
        fn begin(&self, donor: Option<SocketAddrV4>) -> Begun {
            let state = StateFile::open(self.state_file()).unwrap();
            let setup = &self.config.channels[0];
            let positions = PublishedPositions::open(&self.state_file(), &state);
            let mut donors = match donor {
                Some(donor) => {
                    Donors::at(donor, key(), SilenceLimit::new(Duration::from_millis(200), Duration::from_millis(300)))
                }
                None => Donors::of(&self.config, LinkIdentity { node: 1, incarnation: Incarnation(1) }, false),
            };
            let overrides =
                Overrides { leadership: Leadership::Elected, copy_peer_state: true, ..Overrides::default() };
            let mut start = ChannelStart {
                config: &self.config,
                setup,
                output: None,
                overrides,
                published: Some(&positions),
                donors: &mut donors,
            };
            let stored = state.stored(setup.id);
            let Beginning { channel, copied_position, log, unpublished_from, hole } = match donor {
                Some(donor) => {
                    let session = known_session();
                    let config = start.channel_config(stored);
                    let position = ResumePosition { session: session.session, next: Sequence(500), has_ended: false };
                    let channel = Channel::new(config.clone());
                    start.with_copy(config, stored, CopiedState { channel, position, session: Some(session), donor })
                }
                None => start.beginning(stored),
            }
            .unwrap();
            let mut reader = Reader::open(&log.directory, setup.id.0).unwrap();
            assert!(reader.seek_position(unpublished_from).unwrap());
            let mut unpublished = Vec::new();
            while let Some(entry) = reader.next() {
                unpublished.push((entry.first, entry.next));
            }
            Begun {
                is_copied: copied_position.is_some(),
                continues_at: log.sink.session_progress().map(|progress| progress.committed.0),
                unpublished,
                hole: hole.map(|(first, next)| (first.sequence.0, next.sequence.0)),
                replays_session: channel.config().late_start == LateStart::WholeSession,
            }
        }
    }

    /// A peer that has died.
    fn dead() -> SocketAddrV4 {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!("bound to one") };
        address
    }

    /// A peer that sends this entry of its log, and then no more.
    fn dies_after(first: u64, next: u64) -> SocketAddrV4 {
        peer(move |socket, stream| {
            let (channel, session, entries) = (ChannelId(1), known_session().session, vec![entry(first, next)]);
            let sealed = stream.seal(&LinkMessage::LogEntries { channel, session, entries }).unwrap();
            socket.write_all(&sealed).unwrap();
            while socket.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        })
    }

    fn behind_own_log(continues_at: u64, unpublished: &[(u64, u64)], replays_session: bool) -> Begun {
        let (is_copied, hole) = (false, None);
        Begun { is_copied, continues_at: Some(continues_at), unpublished: unpublished.to_vec(), hole, replays_session }
    }

    fn with_copy(unpublished: &[(u64, u64)], hole: (u64, u64)) -> Begun {
        let (continues_at, hole) = (Some(500), Some(hole));
        Begun { is_copied: true, continues_at, unpublished: unpublished.to_vec(), hole, replays_session: false }
    }

    #[test]
    fn without_a_copy_a_channel_continues_where_its_log_ends() {
        let host = Host::new();
        host.log([(1, 30), (30, 100)]);
        assert_eq!(host.begin(None), behind_own_log(100, &[(1, 30), (30, 100)], false));
        let host = Host::new().with_venue();
        host.log([(1, 30), (30, 60), (60, 100)]);
        host.publish_through(40);
        assert_eq!(host.begin(None), behind_own_log(100, &[(30, 60), (60, 100)], true));
    }

    #[test]
    fn without_a_venue_the_hole_before_a_copy_is_named() {
        let host = Host::new();
        host.log([(1, 30)]);
        assert_eq!(host.begin(Some(dies_after(30, 80))), with_copy(&[(1, 30), (30, 80)], (80, 500)));
        let host = Host::new();
        host.log([(1, 30)]);
        assert_eq!(host.begin(Some(dies_after(50, 80))), with_copy(&[(1, 30), (50, 80)], (30, 500)));
    }

    #[test]
    fn a_donor_that_dies_while_it_sends_its_log_is_replaced_by_the_venue() {
        let host = Host::new().with_venue();
        host.log([(1, 30)]);
        assert_eq!(host.begin(Some(dies_after(30, 80))), behind_own_log(80, &[(1, 30), (30, 80)], true));
    }

    /// The gateway was killed before its first position was on disk. The next start copies a peer's state, and both gateways die.
    #[test]
    fn messages_without_a_position_are_published_after_a_start_with_a_copy_too() {
        let host = Host::new();
        host.log([(1, 100)]);
        assert_eq!(host.begin(Some(dead())), with_copy(&[(1, 100)], (100, 500)));
        let begun = host.begin(None);
        assert_eq!(begun.unpublished, [(1, 100)]);
        assert_eq!(begun.continues_at, Some(100));
    }

    /// As after a reboot with the logs in memory.
    #[test]
    fn a_session_without_a_log_and_a_position_is_replayed_and_published_from_its_first_message() {
        assert_eq!(Host::new().with_venue().begin(None), behind_own_log(1, &[], true));
        let host = Host::new().with_venue();
        host.publish_through(30);
        assert_eq!(host.begin(None), behind_own_log(30, &[], true));
        host.stop_at(45);
        assert_eq!(host.begin(None), behind_own_log(30, &[], true), "nobody has published what is before 45");
    }

    /// Entries of the peer's log that begin behind a hole would keep the venue's messages out of it.
    #[test]
    fn a_hole_before_entries_of_a_donor_that_dies_is_filled_by_the_venue() {
        for (published, continues_at) in [(None, 1), (Some(20), 20), (Some(40), 40)] {
            let host = Host::new().with_venue();
            host.log([(1, 30)]);
            published.into_iter().for_each(|next| host.publish_through(next));
            host.stop_at(45);
            let begun = host.begin(Some(dies_after(50, 80)));
            assert_eq!(begun, behind_own_log(continues_at, &[], true), "{published:?}");
        }
        // The hole was published.
        let host = Host::new().with_venue();
        host.log([(1, 30)]);
        host.publish_through(60);
        assert_eq!(host.begin(Some(dies_after(50, 80))), behind_own_log(80, &[(50, 80)], true));
    }
}
