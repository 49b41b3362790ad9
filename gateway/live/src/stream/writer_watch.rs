//! Whether the gateway that writes the logs has ended.

use std::{
    io,
    time::{Duration, Instant},
};

use mdgw_publog::{LogWriter, find_writer};

use super::channel::ChannelSource;

/// Looks at the locks of a dataset's logs. One gateway writes all logs of a dataset.
#[derive(Debug)]
pub(crate) struct WriterWatch {
    /// Whether a writer was ever seen.
    was_seen: bool,
    absent_since: Option<Instant>,
    presence: Presence,
}

impl WriterWatch {
    /// Nothing was looked at so far.
    pub(crate) fn new() -> Self {
        Self { was_seen: false, absent_since: None, presence: Presence::Present }
    }

    /// Looks whether the writer has ended and has not come back: a gateway that is restarted goes on with its logs. An error says nothing
    /// about the writer.
    pub(crate) fn presence(&mut self, sources: &[ChannelSource], now: Instant) -> Presence {
        find_any(sources).map_or(self.presence, |writer| self.look(writer, now))
    }

    fn look(&mut self, writer: LogWriter, now: Instant) -> Presence {
        self.was_seen |= writer == LogWriter::Present;
        self.presence = match writer {
            LogWriter::Present => {
                self.absent_since = None;
                Presence::Present
            }
            LogWriter::Hidden if !self.was_seen => Presence::Present,
            // Since the start: there are no clients that a quick restart would spare.
            LogWriter::Absent if !self.was_seen => Presence::Lost,
            LogWriter::Absent | LogWriter::Hidden => {
                let absence = now.duration_since(*self.absent_since.get_or_insert(now));
                if absence >= ABSENCE_MAX {
                    Presence::Lost
                } else if absence >= ABSENCE_MAX - CLOSING {
                    Presence::Closing
                } else {
                    Presence::Present
                }
            }
        };
        self.presence
    }
}

/// The writer of any of the logs: one that a reload took away has none any more.
fn find_any(sources: &[ChannelSource]) -> io::Result<LogWriter> {
    let mut found = Ok(LogWriter::Absent);
    for source in sources {
        match find_writer(&source.log_directory) {
            Ok(LogWriter::Present) => return Ok(LogWriter::Present),
            Ok(LogWriter::Absent) => {}
            hidden_or_error => found = hidden_or_error,
        }
    }
    found
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
        for absent in [LogWriter::Absent, LogWriter::Hidden] {
            let (mut watch, start) = (WriterWatch::new(), Instant::now());
            let mut presence = |writer, ms: u64| watch.look(writer, start + Duration::from_millis(ms));
            let mut looks = |has_writer: bool, seconds: u64| {
                let writer = if has_writer { LogWriter::Present } else { absent };
                presence(writer, seconds * 1_000) == Presence::Lost
            };
            assert!(!looks(true, 101) && !looks(false, 102) && !looks(true, 106) && !looks(false, 110));
            assert!(!looks(false, 114) && looks(false, 115), "five seconds without");
            assert!(!looks(true, 116), "it is back");
            assert!(!looks(false, 117));
            assert_eq!(presence(absent, 121_499), Presence::Present);
            assert_eq!(presence(absent, 121_500), Presence::Closing, "clients that are sent away must not come back");
        }
    }

    #[test]
    fn without_a_writer_since_the_start_nobody_is_served_unless_it_may_be_hidden() {
        let (mut watch, start) = (WriterWatch::new(), Instant::now());
        assert_eq!(watch.look(LogWriter::Hidden, start), Presence::Present);
        assert_eq!(watch.look(LogWriter::Hidden, start + 2 * ABSENCE_MAX), Presence::Present);
        assert_eq!(watch.look(LogWriter::Absent, start), Presence::Lost);
        assert_eq!(watch.look(LogWriter::Present, start), Presence::Present);
        assert_eq!(watch.look(LogWriter::Absent, start), Presence::Present, "it may come back");
    }

    /// The lock goes with the log.
    #[test]
    fn the_writer_of_a_log_that_was_removed_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let log = TestLog::at(&directory.path().join("log"));
        let sources = [log.source.clone()];
        let (mut watch, start) = (WriterWatch::new(), Instant::now());
        assert_eq!(watch.presence(&sources, start), Presence::Present);
        std::fs::remove_dir_all(&log.source.log_directory).unwrap();
        assert_eq!(watch.presence(&sources, start), Presence::Present);
        assert_eq!(watch.presence(&sources, start + ABSENCE_MAX), Presence::Lost);
    }

    #[test]
    fn one_log_with_a_writer_is_enough() {
        let directory = tempfile::tempdir().unwrap();
        let log = TestLog::at(&directory.path().join("log"));
        let removed = ChannelSource { log_directory: directory.path().join("none"), ..log.source.clone() };
        assert_eq!(find_any(std::slice::from_ref(&removed)).unwrap(), LogWriter::Absent);
        assert_eq!(find_any(&[removed, log.source.clone()]).unwrap(), LogWriter::Present);
    }
}
