//! Whether the gateway that writes the logs has ended.

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use mdgw_publog::has_writer;

use super::channel::ChannelSource;

/// Looks at the lock of a dataset's first log. One gateway writes all logs of a dataset.
#[derive(Debug, Default)]
pub(crate) struct WriterWatch {
    looked_at: Option<Instant>,
    /// Whether a writer was ever seen. A log that is served after its gateway's end has none, and neither has one whose writer is hidden.
    was_seen: bool,
    absent_since: Option<Instant>,
}

impl WriterWatch {
    /// Whether it is time to look again.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.looked_at.is_none_or(|looked_at| now.duration_since(looked_at) >= INTERVAL);
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }

    /// Looks whether the writer has ended and has not come back: a gateway that is restarted goes on with its logs.
    pub(crate) fn presence(&mut self, sources: &[ChannelSource], now: Instant) -> Presence {
        let has_writer = sources.first().is_none_or(|source| match has_writer(&source.log_directory) {
            Ok(has_writer) => has_writer,
            // Without its lock, which somebody removed with the log, there is none. Other errors say nothing about the writer.
            Err(error) => error.kind() != ErrorKind::NotFound,
        });
        self.look(has_writer, now)
    }

    fn look(&mut self, has_writer: bool, now: Instant) -> Presence {
        self.was_seen |= has_writer;
        self.absent_since = (!has_writer && self.was_seen).then(|| self.absent_since.unwrap_or(now));
        match self.absent_since.map(|since| now.duration_since(since)) {
            Some(absence) if absence >= ABSENCE_MAX => Presence::Lost,
            Some(absence) if absence >= ABSENCE_MAX - CLOSING => Presence::Closing,
            _ => Presence::Present,
        }
    }
}

/// Whether the gateway is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It is, or may come back.
    Present,
    /// Its clients are about to be sent elsewhere: none may come any more, since they would come back here.
    Closing,
    /// Its clients are sent elsewhere.
    Lost,
}

/// Time between two looks at the lock.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a gateway may take for its restart before its clients are sent elsewhere.
const ABSENCE_MAX: Duration = Duration::from_secs(5);
/// How long before that the port is closed.
const CLOSING: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::channel::tests::TestLog;

    #[test]
    fn a_writer_that_comes_back_in_time_is_not_lost() {
        let (mut watch, start) = (WriterWatch::default(), Instant::now());
        let mut presence = |has_writer: bool, ms: u64| watch.look(has_writer, start + Duration::from_millis(ms));
        let mut looks = |has_writer: bool, seconds: u64| presence(has_writer, seconds * 1_000) == Presence::Lost;
        assert!(!looks(false, 0) && !looks(false, 100), "nobody has written yet");
        assert!(!looks(true, 101) && !looks(false, 102) && !looks(true, 106) && !looks(false, 110));
        assert!(!looks(false, 114) && looks(false, 115), "five seconds without");
        assert!(!looks(true, 116), "it is back");
        assert!(!looks(false, 117));
        assert_eq!(presence(false, 121_499), Presence::Present);
        assert_eq!(presence(false, 121_500), Presence::Closing, "clients that are sent away must not come back");
    }

    /// The lock goes with the log.
    #[test]
    fn the_writer_of_a_log_that_was_removed_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let log = TestLog::at(&directory.path().join("log"));
        let sources = [log.source.clone()];
        let (mut watch, start) = (WriterWatch::default(), Instant::now());
        assert_eq!(watch.presence(&sources, start), Presence::Present);
        std::fs::remove_dir_all(&log.source.log_directory).unwrap();
        assert_eq!(watch.presence(&sources, start), Presence::Present);
        assert_eq!(watch.presence(&sources, start + ABSENCE_MAX), Presence::Lost);
    }
}
