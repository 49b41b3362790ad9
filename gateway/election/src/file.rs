//! The register of one host: a directory in which each version is a file.
//!
//! ```text
//!   00000000000000000041   older versions stay for a while
//!   00000000000000000042   the record: the highest version
//!   new/<pid>-<count>-…    being written; becomes a version by link(2), which fails where that version exists
//! ```
//! `link` is the whole compare-and-swap. Only one process can create version n + 1, a stopped process holds no lock,
//! and a version is complete when it appears. A process may be stopped so long that version n + 1 was created *and
//! removed again*; it then finds higher versions afterwards. Files being written are in a directory of their own, so
//! that a watch wakes once for each version.
//!
//! Meant for a memory file system (`/dev/shm`): nothing is synced, since the election ends with the host. Epochs
//! survive in the gateways' state files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use mdgw_sys::scheduler::spawn_short_slice;
use mdgw_wire::identity::GroupId;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
};

use super::{
    record::{RECORD_BYTES_MAX, Record},
    register::{Outcome, Register, RegisterEvent, RegisterSender, RequestId, StoreLink, Version, Versioned},
};

/// Directory of a group's record, within the directory of all groups' records.
#[must_use]
pub fn group_directory(directory: &Path, group: GroupId) -> PathBuf {
    directory.join(format!("group-{}", group.0))
}

/// A group's record in a directory. A cold thread of its own does the work, a second one watches.
#[derive(Debug)]
pub struct FileRegister {
    directory: PathBuf,
    tasks: mpsc::Sender<Task>,
    stop: Arc<AtomicBool>,
}

impl FileRegister {
    /// Opens the directory, or creates it.
    ///
    /// # Errors
    /// When it cannot be created or written, or a thread cannot be started.
    pub fn open(directory: impl Into<PathBuf>, events: RegisterSender) -> io::Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(directory.join(STAGING))?;
        let (tasks, task_receiver) = mpsc::channel();
        let mut store = RecordDirectory { directory: directory.clone(), written: 0, last_reported: Version::NONE };
        // Detects now whether the directory is writable.
        let probe = store.write_new(b"")?;
        fs::remove_file(probe)?;
        spawn_short_slice("mdgw-register", move || {
            events(RegisterEvent::StoreLink(StoreLink::Up));
            for task in task_receiver {
                store.carry_out(task, &events);
            }
        })?;
        Ok(Self { directory, tasks, stop: Arc::new(AtomicBool::new(false)) })
    }

    fn submit(&self, task: Task) {
        // The worker's thread lives as long as this sender.
        let _handed = self.tasks.send(task);
    }

    /// Notifies the worker whenever a version appears.
    fn start_watching(&self) -> io::Result<()> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, &self.directory, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)?;
        let (tasks, stop) = (self.tasks.clone(), Arc::clone(&self.stop));
        spawn_short_slice("mdgw-regwatch", move || {
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4_096];
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            while !stop.load(Ordering::Relaxed) {
                let ready = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&limit));
                let mut reader = inotify::Reader::new(&watch, &mut buffer);
                while reader.next().is_ok() {}
                // Checked even without an event: if a watch is lost or a record removed, changes are seen later, but
                // correctly.
                if ready.is_ok() && tasks.send(Task::CheckForChange).is_err() {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

impl Drop for FileRegister {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Register for FileRegister {
    fn read(&mut self, request_id: RequestId) {
        self.submit(Task::Read(request_id));
    }

    fn compare_and_swap(&mut self, request_id: RequestId, expected: Version, record: &Record) {
        self.submit(Task::Swap { request_id, expected, bytes: record.to_bytes() });
    }

    fn watch(&mut self) {
        if let Err(error) = self.start_watching() {
            tracing::error!(%error, directory = %self.directory.display(), "election: cannot watch the directory; polling instead");
            let (tasks, stop) = (self.tasks.clone(), Arc::clone(&self.stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) && tasks.send(Task::CheckForChange).is_ok() {
                    std::thread::sleep(POLL);
                }
            });
        }
    }

    /// A directory has no connection to replace.
    fn reconnect(&mut self) {}
}

#[derive(Debug)]
enum Task {
    Read(RequestId),
    Swap {
        request_id: RequestId,
        expected: Version,
        bytes: Vec<u8>,
    },
    /// Something may have changed.
    CheckForChange,
}

/// The directory, on the worker's thread.
#[derive(Debug)]
struct RecordDirectory {
    directory: PathBuf,
    written: u64,
    /// The version reported last, as a change or as the answer to our own swap.
    last_reported: Version,
}

impl RecordDirectory {
    fn carry_out(&mut self, task: Task, events: &RegisterSender) {
        match task {
            Task::Read(request_id) => {
                let outcome = match self.highest().and_then(|highest| self.newest(highest)) {
                    Ok(newest) => Outcome::Read(newest),
                    Err(why) => Outcome::Failed(why),
                };
                events(RegisterEvent::Answer { request_id, outcome });
            }
            Task::Swap { request_id, expected, bytes } => {
                let outcome = self.swap(expected, &bytes);
                if let Outcome::Swapped(version) = outcome {
                    self.last_reported = version;
                }
                events(RegisterEvent::Answer { request_id, outcome });
            }
            Task::CheckForChange => {
                let highest = self.highest().unwrap_or_default();
                if highest != self.last_reported
                    && let Ok(newest) = self.newest(highest)
                {
                    self.last_reported = newest.as_ref().map_or(Version::NONE, |newest| newest.version);
                    events(RegisterEvent::Changed(newest));
                }
            }
        }
    }

    fn highest(&self) -> Result<Version, String> {
        highest_in(&self.directory).map_err(|error| self.describe("list", &error))
    }

    /// Reads the record with the highest version. `highest` was the highest version a moment ago.
    fn newest(&self, highest: Version) -> Result<Option<Versioned>, String> {
        let (mut version, mut tries) = (highest, 0);
        loop {
            if version == Version::NONE {
                return Ok(None);
            }
            let path = self.path_of(version);
            let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            if size > RECORD_BYTES_MAX as u64 {
                return Err(format!("{} exceeds the maximum record size", path.display()));
            }
            match fs::read(&path) {
                Ok(bytes) => {
                    let record = Record::from_bytes(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
                    return Ok(Some(Versioned { version, record }));
                }
                // So many versions were added between the two steps that this one was removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 8 => {
                    tries += 1;
                    version = self.highest()?;
                }
                Err(error) => return Err(self.describe("read", &error)),
            }
        }
    }

    fn swap(&mut self, expected: Version, bytes: &[u8]) -> Outcome {
        if expected != Version::NONE && !self.path_of(expected).exists() {
            return Outcome::Refused;
        }
        let new = match self.write_new(bytes) {
            Ok(new) => new,
            Err(error) => return Outcome::Failed(self.describe("write", &error)),
        };
        let version = Version(expected.0 + 1);
        let linked = fs::hard_link(&new, self.path_of(version));
        let _left_behind = fs::remove_file(&new);
        match linked {
            Ok(()) => self.linked(version),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Outcome::Refused,
            Err(error) => Outcome::Failed(self.describe("link", &error)),
        }
    }

    /// This process has created `version`, which did not exist a moment ago. Was it the next version, or had another
    /// process created and removed it before?
    fn linked(&self, version: Version) -> Outcome {
        match highest_in(&self.directory) {
            Ok(highest) if highest.0 < version.0 + VERSIONS_KEPT => {
                if let Some(old) = version.0.checked_sub(VERSIONS_KEPT).filter(|old| *old > 0) {
                    let _gone_already = fs::remove_file(self.path_of(Version(old)));
                }
                Outcome::Swapped(version)
            }
            Ok(highest) => {
                let _gone_already = fs::remove_file(self.path_of(version));
                Outcome::Unknown(format!("version {} was superseded by {}", version.0, highest.0))
            }
            Err(error) => Outcome::Unknown(self.describe("list", &error)),
        }
    }

    fn write_new(&mut self, bytes: &[u8]) -> io::Result<PathBuf> {
        self.written += 1;
        let path = self.directory.join(STAGING).join(format!("{}-{}-{:p}", std::process::id(), self.written, self));
        fs::write(&path, bytes).or_else(|error| match error.kind() {
            // The directory was cleared, with this subdirectory.
            io::ErrorKind::NotFound => {
                fs::create_dir_all(self.directory.join(STAGING)).and_then(|()| fs::write(&path, bytes))
            }
            _ => Err(error),
        })?;
        Ok(path)
    }

    fn path_of(&self, version: Version) -> PathBuf {
        self.directory.join(format!("{:020}", version.0))
    }

    fn describe(&self, act: &str, error: &io::Error) -> String {
        format!("cannot {act} in {}: {error}", self.directory.display())
    }
}

fn highest_in(directory: &Path) -> io::Result<Version> {
    let mut highest = 0;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if let Some(version) = name.to_str().filter(|name| name.len() == 20).and_then(|name| name.parse().ok()) {
            highest = highest.max(version);
        }
    }
    Ok(Version(highest))
}

/// Subdirectory in which versions are written.
const STAGING: &str = "new";
/// How many older versions stay: more than a second's worth at 50 renewals a second.
const VERSIONS_KEPT: u64 = 64;
/// Polling interval where the directory cannot be watched.
const POLL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::tests::{member, record};

    struct TestRegister {
        register: FileRegister,
        events: mpsc::Receiver<RegisterEvent>,
        last_request: u64,
    }

    impl TestRegister {
        fn in_directory(directory: &Path) -> Self {
            let (sender, events) = mpsc::channel();
            let sender: RegisterSender = Arc::new(move |event| drop(sender.send(event)));
            let register = FileRegister::open(directory, sender).unwrap();
            let opened = Self { register, events, last_request: 0 };
            assert_eq!(opened.events.recv().unwrap(), RegisterEvent::StoreLink(StoreLink::Up));
            opened
        }

        fn request_id(&mut self) -> RequestId {
            self.last_request += 1;
            RequestId(self.last_request)
        }

        fn answer(&self, to: RequestId) -> Outcome {
            loop {
                if let RegisterEvent::Answer { request_id, outcome } = self.events.recv().unwrap() {
                    assert_eq!(request_id, to);
                    return outcome;
                }
            }
        }

        fn read(&mut self) -> Option<Versioned> {
            let request_id = self.request_id();
            self.register.read(request_id);
            match self.answer(request_id) {
                Outcome::Read(newest) => newest,
                outcome => panic!("{outcome:?}"),
            }
        }

        fn swap(&mut self, expected: u64, record: &Record) -> Outcome {
            let request_id = self.request_id();
            self.register.compare_and_swap(request_id, Version(expected), record);
            self.answer(request_id)
        }
    }

    #[test]
    fn exactly_one_of_two_writers_wins_each_version() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = [1, 2].map(|_| TestRegister::in_directory(directory.path()));
        assert_eq!(opened[0].read(), None);
        for version in 0..200 {
            let records = [1, 2].map(|node| record(version + 1, &member(node, 1)));
            let requests = [0, 1].map(|side: usize| {
                let request_id = opened[side].request_id();
                opened[side].register.compare_and_swap(request_id, Version(version), &records[side]);
                request_id
            });
            let outcomes = [0, 1].map(|side: usize| opened[side].answer(requests[side]));
            let winner =
                outcomes.iter().position(|outcome| *outcome == Outcome::Swapped(Version(version + 1))).unwrap();
            assert_eq!(outcomes[1 - winner], Outcome::Refused);
            for side in &mut opened {
                let newest = side.read().unwrap();
                assert_eq!((newest.version, &newest.record), (Version(version + 1), &records[winner]));
            }
        }
        let files = fs::read_dir(directory.path()).unwrap().count();
        assert!(files <= usize::try_from(VERSIONS_KEPT).unwrap() + 2, "{files} files");
    }

    #[test]
    fn a_writer_overtaken_by_a_deleted_version_does_not_win() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = TestRegister::in_directory(directory.path());
        let record = record(1, &member(1, 1));
        for version in 0..=VERSIONS_KEPT + 1 {
            assert_eq!(opened.swap(version, &record), Outcome::Swapped(Version(version + 1)));
        }
        assert_eq!(opened.swap(0, &record), Outcome::Unknown("version 1 was superseded by 66".to_owned()));
        assert_eq!(opened.read().unwrap().version, Version(VERSIONS_KEPT + 2));
    }

    #[test]
    fn changes_by_other_processes_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let mut watching = TestRegister::in_directory(directory.path());
        watching.register.watch();
        let mut writing = TestRegister::in_directory(directory.path());
        let record = record(1, &member(1, 1));
        assert_eq!(writing.swap(0, &record), Outcome::Swapped(Version(1)));
        let event = watching.events.recv().unwrap();
        assert_eq!(event, RegisterEvent::Changed(Some(Versioned { version: Version(1), record })));
    }

    #[test]
    fn a_cleared_directory_is_reported_and_writable_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = TestRegister::in_directory(directory.path());
        let record = record(1, &member(1, 1));
        assert_eq!(opened.swap(0, &record), Outcome::Swapped(Version(1)));
        opened.register.watch();
        fs::remove_dir_all(directory.path().join(STAGING)).unwrap();
        fs::remove_file(directory.path().join("00000000000000000001")).unwrap();
        assert_eq!(opened.events.recv().unwrap(), RegisterEvent::Changed(None));
        assert_eq!(opened.swap(1, &record), Outcome::Refused);
        assert_eq!(opened.swap(0, &record), Outcome::Swapped(Version(1)));
    }

    #[test]
    fn an_own_swap_is_reported_only_by_its_answer() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = [1, 2].map(|_| TestRegister::in_directory(directory.path()));
        opened[0].register.watch();
        let record = record(1, &member(1, 1));
        assert_eq!(opened[0].swap(0, &record), Outcome::Swapped(Version(1)));
        assert_eq!(opened[1].swap(1, &record), Outcome::Swapped(Version(2)));
        let newest = Some(Versioned { version: Version(2), record });
        assert_eq!(opened[0].events.recv().unwrap(), RegisterEvent::Changed(newest));
    }

    #[test]
    fn a_foreign_file_is_reported_and_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = TestRegister::in_directory(directory.path());
        let path = directory.path().join("00000000000000000007");
        fs::write(&path, "something else").unwrap();
        let request_id = opened.request_id();
        opened.register.read(request_id);
        let Outcome::Failed(why) = opened.answer(request_id) else { panic!("a foreign file was read as a record") };
        assert!(why.contains("00000000000000000007: not an election record"), "{why}");
        assert_eq!(fs::read_to_string(path).unwrap(), "something else");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Compared with the simplest possible model.
        #[test]
        fn behaves_as_one_versioned_value(swaps in proptest::collection::vec((0_u64..5, 0_usize..2), 1..40)) {
            let directory = tempfile::tempdir().unwrap();
            let mut opened = [1, 2].map(|_| TestRegister::in_directory(directory.path()));
            let mut model = 0;
            for (number, (expected, side)) in (1..).zip(swaps) {
                let record = Record { renewal: number, ..record(1, &member(1, 1)) };
                let outcome = opened[side].swap(expected, &record);
                if expected == model {
                    model += 1;
                    prop_assert_eq!(outcome, Outcome::Swapped(Version(model)));
                } else {
                    prop_assert_eq!(outcome, Outcome::Refused);
                }
                let version = opened[1 - side].read().map_or(Version::NONE, |newest| newest.version);
                prop_assert_eq!(version, Version(model));
            }
        }
    }
}
