//! A channel's publication log before the channel begins, in the order of the steps: opened, its first unpublished entry found, filled
//! from a peer's log, and the position at which the channel continues.

use std::{net::SocketAddrV4, path::PathBuf};

use mdgw_engine::publish::{LogSink, SessionProgress};
use mdgw_feeds::{
    identity::{ChannelId, Sequence, Session},
    published::{
        packet::{PACKET_BYTES_MAX, PACKET_HEADER_BYTES, PacketFlags},
        position::StreamPosition,
        tag::TAG_BYTES,
    },
};
use mdgw_publog::{
    LogError, LogOptions, LogRecovery, Position, Reader, Retention, SegmentMaintenance, create_log_root,
};
use mdgw_sys::clock::unix_now;

use super::{
    GatewayError,
    group::LogHole,
    log_copy::{LogCopy, LogCopyOutcome},
    state_copy::Donors,
};
use crate::{
    config::{
        Resolved,
        resolved::{ChannelSetup, GatewayConfig, OutputConfig},
    },
    state_file::{ResumePosition, StoredChannel},
};

/// A channel's publication log, before the channel begins.
#[derive(Debug)]
pub(super) struct ChannelLog {
    pub(super) sink: LogSink,
    pub(super) maintenance: SegmentMaintenance,
    pub(super) directory: PathBuf,
    /// Most bytes of frames in an entry.
    pub(super) frame_bytes_max: usize,
    /// End of the entries that the log has so far.
    pub(super) end: Option<ResumePosition>,
    channel: ChannelId,
}

impl ChannelLog {
    /// Opens the log, which keeps its entries.
    pub(super) fn open(
        config: &Resolved,
        setup: &ChannelSetup,
        output: Option<&OutputConfig>,
    ) -> Result<Self, GatewayError> {
        let options = log_options(&config.gateway, setup, output)?;
        let frame_bytes_max = options.payload_bytes_max;
        let mdgw_publog::OpenedLog { writer, maintenance, recovered } =
            mdgw_publog::open(options, unix_now().0).map_err(|source| log_error(setup, source))?;
        let LogRecovery { segments, damaged_segments, removed_files, last, last_flags, next_number } = recovered;
        let next = last.map(|(_, next)| next);
        tracing::info!(channel = setup.name, segments, next_entry = next_number, next, "publication log");
        if damaged_segments + removed_files > 0 {
            tracing::warn!(
                channel = setup.name,
                damaged_segments,
                removed_files,
                "the publication log was damaged, as after a power loss: each damaged segment ends before its first damaged entry, \
                 and files without a whole header were removed. Receivers cannot request what is missing from this gateway"
            );
        }
        let logged = last.and_then(|(session, next)| Some((Session::from_bytes(session)?, Sequence(next))));
        let [flags, _] = last_flags.to_le_bytes();
        let has_ended = PacketFlags(flags).contains(PacketFlags::END_OF_SESSION);
        Ok(Self {
            sink: LogSink::new(writer),
            maintenance,
            directory: config.gateway.log_directory(setup.id),
            frame_bytes_max,
            end: logged.map(|(session, next)| ResumePosition { session, next, has_ended }),
            channel: setup.id,
        })
    }

    /// The stored position may know that the session has ended where the log ends.
    pub(super) fn end_with(&mut self, published: Option<ResumePosition>) {
        if let Some(end) = &mut self.end {
            end.has_ended |= is_ended_at(published, Some((end.session, end.next)));
        }
    }

    /// A place in the log. No gateway is known to have published the entries behind it: those behind `published`, or else those that the log
    /// gets from now on.
    pub(super) fn first_unpublished(&self, published: Option<ResumePosition>) -> Result<Position, LogError> {
        let end = self.end.map(|end| (end.session, end.next));
        match published.filter(|published| Some((published.session, published.next)) < end) {
            Some(published) => {
                let mut reader = Reader::open(&self.directory, self.channel.0)?;
                // The first part of a message may lie in an entry that covers only the messages before it.
                reader.seek(published.session.to_bytes(), published.next.0.saturating_sub(1))?;
                Ok(reader.position())
            }
            None => Ok(self.sink.writer().end()),
        }
    }

    /// Copies what the log lacks before a copied state from the log of the peer that the state came from.
    pub(super) fn copy_from_peer(
        &mut self,
        donors: &mut Donors,
        donor: SocketAddrV4,
        setup: &ChannelSetup,
        state: ResumePosition,
        messages_max: u64,
    ) -> LogCopyOutcome {
        if let Some(end) = self.end {
            self.sink.resume(end.session, end.next, end.has_ended);
        }
        let until = StreamPosition::at(state.session, state.next);
        let outcome = LogCopy::new(&mut self.sink, &mut self.maintenance, until).fill(
            donors,
            donor,
            (setup.id, &setup.name),
            messages_max,
        );
        self.end = self.sink.session_progress().and_then(|progress| {
            let session = Session::from_bytes(progress.session)?;
            Some(ResumePosition { session, next: progress.committed, has_ended: progress.has_ended })
        });
        outcome
    }

    /// Where the channel continues that begins with a copied state.
    pub(super) fn position_with_copy(&self, state: ResumePosition) -> ResumePosition {
        // The peer's log may have the session's end already.
        let is_at = |progress: &&SessionProgress| progress.session == state.session.to_bytes() && progress.has_ended;
        let has_ended = state.has_ended || self.sink.session_progress().filter(is_at).is_some();
        ResumePosition { has_ended, ..state }
    }

    /// Where the channel continues that begins without a copied state; `None`: with the first session that it receives.
    ///
    /// The end of the log and the stored positions are used if they belong to the present session. The log may be behind: it may have been
    /// deleted, or lack entries that were kept in private memory.
    pub(super) fn own_position(
        &self,
        stored: StoredChannel,
        published: Option<ResumePosition>,
    ) -> Option<ResumePosition> {
        let from_log = self.end.filter(|end| stored.session.is_none_or(|known| known.session == end.session));
        // Without a log the session continues behind what was published of it, however much more the log had at the shutdown.
        let published = published.filter(|_| from_log.is_none()).and_then(|known| resume_behind(known, stored));
        published.or_else(|| from_log.into_iter().chain(stored.shutdown_position).max_by_key(|position| position.next))
    }

    /// The channel continues at that position.
    pub(super) fn resume(&mut self, position: ResumePosition) {
        self.sink.resume(position.session, position.next, position.has_ended);
    }
}

/// Removes a channel's log, before the whole session is replayed.
pub(super) fn remove_log(config: &Resolved, setup: &ChannelSetup) -> Result<(), GatewayError> {
    let directory = config.gateway.log_directory(setup.id);
    if directory.exists() {
        let act = format!("remove the log of channel {} before a full replay", setup.name);
        std::fs::remove_dir_all(&directory).map_err(GatewayError::io(act))?;
    }
    Ok(())
}

/// Options of a channel's publication log. Makes the directory of the logs.
pub(super) fn log_options(
    gateway: &GatewayConfig,
    setup: &ChannelSetup,
    output: Option<&OutputConfig>,
) -> Result<LogOptions, GatewayError> {
    let mut options = LogOptions::new(gateway.log_directory(setup.id), setup.id.0);
    options.reader_group = gateway.log_reader_group()?;
    create_log_root(&gateway.log_dir, options.reader_group).map_err(|source| log_error(setup, source))?;
    options.segment_bytes = usize::try_from(gateway.segment_bytes).unwrap_or(usize::MAX);
    options.payload_bytes_max =
        output.map_or(PACKET_BYTES_MAX - PACKET_HEADER_BYTES - TAG_BYTES, OutputConfig::frame_bytes_max);
    options.retention = Retention {
        bytes_max: gateway.retention_bytes,
        age_ns_max: gateway.retention_ns,
        protected_bytes_max: 2 * gateway.retention_bytes,
    };
    Ok(options)
}

pub(super) fn log_error(setup: &ChannelSetup, source: LogError) -> GatewayError {
    GatewayError::Log { channel: setup.name.clone(), source }
}

/// What of a hole was not published.
pub(super) fn unpublished((first, next): LogHole, published: Option<ResumePosition>) -> Option<LogHole> {
    let through = published.map(|published| StreamPosition::at(published.session, published.next));
    let first = through.filter(|through| through.session == next.session).map_or(first, |through| through.max(first));
    (first < next).then_some((first, next))
}

/// Whether a stored position says that the session has ended where the log ends.
fn is_ended_at(published: Option<ResumePosition>, logged: Option<(Session, Sequence)>) -> bool {
    published.is_some_and(|published| published.has_ended && logged == Some((published.session, published.next)))
}

/// Where the present session continues that is in no log. After a position of an earlier session: at its first message.
fn resume_behind(published: ResumePosition, stored: StoredChannel) -> Option<ResumePosition> {
    let session = stored.session?.session;
    if published.session == session {
        return Some(published);
    }
    (published.session < session).then_some(ResumePosition { session, next: Sequence(1), has_ended: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_file::tests::known;

    #[test]
    fn the_present_session_continues_behind_its_published_part_or_at_its_first_message() {
        let position =
            |restart, next| ResumePosition { session: known(restart).session, next: Sequence(next), has_ended: false };
        let stored = |session| StoredChannel { session, shutdown_position: None };
        for (published, session, expected) in [
            (position(1, 7), Some(known(1)), Some(position(1, 7))),
            (position(0, 7), Some(known(1)), Some(position(1, 1))),
            (position(2, 7), Some(known(1)), None),
            (position(1, 7), None, None),
        ] {
            assert_eq!(resume_behind(published, stored(session)), expected, "{published:?}");
        }
    }

    #[test]
    fn what_was_published_of_a_hole_is_no_hole() {
        let at = |sequence| StreamPosition::at(known(1).session, Sequence(sequence));
        let published = |restart, next| {
            Some(ResumePosition { session: known(restart).session, next: Sequence(next), has_ended: false })
        };
        for (published, expected) in [
            (None, Some((at(10), at(90)))),
            (published(1, 5), Some((at(10), at(90)))),
            (published(1, 40), Some((at(40), at(90)))),
            (published(1, 90), None),
            (published(0, 70), Some((at(10), at(90)))),
        ] {
            assert_eq!(unpublished((at(10), at(90)), published), expected, "{published:?}");
        }
    }

    #[test]
    fn a_log_has_ended_where_the_published_session_has() {
        let published =
            |next, has_ended| Some(ResumePosition { session: known(1).session, next: Sequence(next), has_ended });
        let logged = Some((known(1).session, Sequence(7)));
        assert!(is_ended_at(published(7, true), logged));
        assert!(!is_ended_at(published(6, true), logged) && !is_ended_at(published(7, false), logged));
        assert!(!is_ended_at(None, logged) && !is_ended_at(published(7, true), None));
    }
}
