//! A voter's state on disk, synced before a vote is answered.
//!
//! ```text
//!      0  slot 0 │ 2,048  its copy │ 4,096  slot 1 │ 6,144  its copy       8,192 bytes, written whole when the file is made
//!   slot: 0 magic "MDGVOTE1" │ 8 writes u64 │ 16 epoch u64 │ 24 incarnation u64 │ 32 longest lease ns u64
//!         40 group u16 │ 42 zero u16 │ 44 CRC-32C of 0..44 u32                                     little-endian
//! ```
//! Writes alternate between the two slots, so that a torn write leaves the previous state; the slot with more writes
//! counts. Each slot has a copy in the same block, in another disk sector, written by the same write. Without the copy, one
//! changed bit in the newest slot would look like a torn write: the voter would return to its previous vote, and could vote a
//! second time in a generation. (Versions that write no copy leave zeros or an older state there, which never counts.)
//!
//! The file has its full size from the beginning, so a disk that fills up later stops no vote. If a write fails, the vote
//! is not answered.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use mdgw_sys::file_lock::try_lock;
use mdgw_wire::identity::{Epoch, GroupId};

use super::voter::DurableVote;
use crate::{identity::Incarnation, timing::LEASE_NS_MAX};

/// The file of one voter and one group. Locked while this value lives: two voters with one file would vote twice.
#[derive(Debug)]
pub struct VoteFile {
    path: PathBuf,
    file: File,
    group: GroupId,
    writes: u64,
    durable: DurableVote,
}

/// Why votes cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum VoteFileError {
    /// The operating system refused.
    #[error("cannot {act} vote file {}: {source}", path.display())]
    Io {
        /// What the program tried to do, for the error text.
        act: &'static str,
        /// Path of the vote file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The content is not what this program writes.
    #[error(
        "vote file {} is damaged: {reason}. Without it this voter could vote twice. Restore the file, or remove it while \
         no gateway of the group runs",
        path.display()
    )]
    Damaged {
        /// Path of the vote file.
        path: PathBuf,
        /// Which part of the file is invalid, and why.
        reason: &'static str,
    },
    /// Another process uses the file.
    #[error("vote file {} is in use by another process", path.display())]
    Busy {
        /// Path of the vote file.
        path: PathBuf,
    },
}

impl VoteFile {
    /// Opens the group's file in `directory`, or creates it for a voter that has never voted.
    ///
    /// # Errors
    /// When the file cannot be read, created or locked, or its content is not valid.
    pub fn open(directory: &Path, group: GroupId) -> Result<Self, VoteFileError> {
        let path = directory.join(format!("group-{}.vote", group.0));
        let failed = |act| {
            let path = path.clone();
            move |source| VoteFileError::Io { act, path, source }
        };
        fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
        let file = loop {
            match File::options().read(true).write(true).open(&path) {
                Ok(file) if try_lock(&file).map_err(failed("lock"))? => break file,
                Ok(_) => return Err(VoteFileError::Busy { path }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match make(directory, &path, group).map_err(failed("make"))? {
                        Made::Locked(file) => break file,
                        Made::ByAnother => {}
                        Made::Busy => return Err(VoteFileError::Busy { path }),
                    }
                }
                Err(error) => return Err(failed("open")(error)),
            }
        };
        let length = file.metadata().map_err(failed("read"))?.len();
        let damaged = |reason| VoteFileError::Damaged { path: path.clone(), reason };
        if length != FILE_BYTES {
            return Err(damaged("wrong file length"));
        }
        let mut found: Option<Slot> = None;
        for offset in (0..FILE_BYTES).step_by(COPY_STRIDE_BYTES) {
            let mut bytes = [0; SLOT_BYTES];
            file.read_exact_at(&mut bytes, offset).map_err(failed("read"))?;
            found = found.into_iter().chain(Slot::parse(&bytes)).max_by_key(|slot| slot.writes);
        }
        let Some(Slot { writes, group: written, durable }) = found else {
            return Err(damaged("no copy of its state is intact"));
        };
        if written != group {
            return Err(damaged("belongs to another group"));
        }
        if durable.lease_ns_max > LEASE_NS_MAX {
            return Err(damaged("lease length out of range"));
        }
        Ok(Self { path, file, group, writes, durable })
    }

    /// The state on disk, as last written or read.
    #[must_use]
    pub fn durable(&self) -> DurableVote {
        self.durable
    }

    /// Writes and syncs the state. It is on disk when this returns.
    ///
    /// # Errors
    /// When the state may not be on disk. Then the previous state is on disk, or this one.
    pub fn store(&mut self, durable: DurableVote) -> Result<(), VoteFileError> {
        let failed = |act| {
            let path = self.path.clone();
            move |source| VoteFileError::Io { act, path, source }
        };
        let writes = self.writes + 1;
        let bytes = Slot { writes, group: self.group, durable }.with_copy();
        self.file.write_all_at(&bytes, (writes % 2) * SLOT_STRIDE_BYTES).map_err(failed("write"))?;
        self.file.sync_data().map_err(failed("sync"))?;
        // After a failure the same slot is written again: the other slot certainly holds the previous state.
        (self.writes, self.durable) = (writes, durable);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    writes: u64,
    group: GroupId,
    durable: DurableVote,
}

impl Slot {
    fn parse(bytes: &[u8; SLOT_BYTES]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<4>()?;
        let (magic, body) = body.split_first_chunk::<8>()?;
        let (numbers, rest) = body.as_chunks::<8>();
        let [writes, epoch, incarnation, lease_ns_max] = numbers else { return None };
        let [low, high, 0, 0] = rest else { return None };
        let is_whole = magic == MAGIC && u32::from_le_bytes(*sum) == crc32c::crc32c(&bytes[..SLOT_BYTES - 4]);
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let durable = DurableVote {
            epoch: Epoch(number(epoch)),
            incarnation: Incarnation(number(incarnation)),
            lease_ns_max: number(lease_ns_max),
        };
        is_whole.then(|| Self { writes: number(writes), group: GroupId(u16::from_le_bytes([*low, *high])), durable })
    }

    fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let DurableVote { epoch, incarnation, lease_ns_max } = self.durable;
        let mut bytes = MAGIC.to_vec();
        bytes
            .extend([self.writes, epoch.0, incarnation.0, lease_ns_max].iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(self.group.0.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.try_into().unwrap_or_else(|_| unreachable!("8 + 4 x 8 + 2 + 2 + 4 bytes"))
    }

    /// The bytes of the slot and its copy.
    fn with_copy(self) -> Vec<u8> {
        let mut bytes = self.to_bytes().to_vec();
        bytes.resize(COPY_STRIDE_BYTES, 0);
        bytes.extend(self.to_bytes());
        bytes
    }
}

/// Result of [`make`].
enum Made {
    /// The file was made, and is locked.
    Locked(File),
    /// Another process has made it meanwhile.
    ByAnother,
    /// Another process is making it.
    Busy,
}

/// Makes the file. It is written whole under another name first, so that a crash leaves no partial file. It is locked under
/// that name: of two processes that find no file, one would otherwise replace the file in which the other votes.
fn make(directory: &Path, path: &Path, group: GroupId) -> io::Result<Made> {
    let new_path = path.with_extension("new");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&new_path)?;
    if !try_lock(&file)? {
        return Ok(Made::Busy);
    }
    if path.try_exists()? {
        return Ok(Made::ByAnother);
    }
    let mut bytes = Slot { writes: 0, group, durable: DurableVote::default() }.with_copy();
    bytes.resize(usize::try_from(FILE_BYTES).unwrap_or_else(|_| unreachable!("8 KiB")), 0);
    // A crash may have left a part of a file under this name.
    file.set_len(0)?;
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    fs::rename(&new_path, path)?;
    File::open(directory)?.sync_all()?;
    Ok(Made::Locked(file))
}

const MAGIC: &[u8; 8] = b"MDGVOTE1";
const SLOT_BYTES: usize = 48;
/// One disk block each, so that writing one slot cannot tear the other.
const SLOT_STRIDE_BYTES: u64 = 4_096;
/// Another sector of the same block, whether sectors have 512 bytes or 2,048.
const COPY_STRIDE_BYTES: usize = 2_048;
const FILE_BYTES: u64 = 2 * SLOT_STRIDE_BYTES;

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;
    use crate::formats::check;

    const GROUP: GroupId = GroupId(7);

    fn durable(count: u64) -> DurableVote {
        DurableVote { epoch: Epoch::new(count, 2), incarnation: Incarnation(count + 1), lease_ns_max: 100_000_000 }
    }

    #[test]
    fn votes_survive_a_restart_and_a_torn_write_leaves_the_previous_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = VoteFile::open(directory.path(), GROUP).unwrap();
        assert_eq!(file.durable(), DurableVote::default());
        for count in 1..=5 {
            file.store(durable(count)).unwrap();
        }
        drop(file);
        let mut file = VoteFile::open(directory.path(), GROUP).unwrap();
        assert_eq!(file.durable(), durable(5));
        file.store(durable(6)).unwrap();
        let path = file.path.clone();
        drop(file);
        // All ways in which the last write, to the first slot and its copy, can be torn: a prefix of its bytes is new.
        let whole = fs::read(&path).unwrap();
        let old = Slot { writes: 4, group: GROUP, durable: durable(4) }.with_copy();
        for new_bytes in 0..old.len() {
            let mut torn = whole.clone();
            torn[new_bytes..old.len()].copy_from_slice(&old[new_bytes..]);
            fs::write(&path, &torn).unwrap();
            let found = VoteFile::open(directory.path(), GROUP).unwrap().durable();
            let expected = if torn[..SLOT_BYTES] == whole[..SLOT_BYTES] { durable(6) } else { durable(5) };
            assert_eq!(found, expected, "{new_bytes} bytes");
        }
    }

    /// The voter answered its last vote, so no damage of one byte may take it back. Returns where one does.
    fn takes_back_a_vote(stored: fn(Slot) -> Vec<u8>) -> Vec<usize> {
        let directory = tempfile::tempdir().unwrap();
        let path = VoteFile::open(directory.path(), GROUP).unwrap().path.clone();
        let mut whole = fs::read(&path).unwrap();
        for writes in 1..=5 {
            let bytes = stored(Slot { writes, group: GROUP, durable: durable(writes) });
            let begin = usize::try_from(writes % 2 * SLOT_STRIDE_BYTES).unwrap();
            whole[begin..begin + bytes.len()].copy_from_slice(&bytes);
        }
        fs::write(&path, &whole).unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        let mut found = Vec::new();
        // Each byte of the copies, and a share of the unused ones.
        for position in (0..whole.len()).filter(|at| at % COPY_STRIDE_BYTES < SLOT_BYTES + 8 || at.is_multiple_of(31)) {
            let mask = if position.is_multiple_of(3) { 0xff } else { 1 << (position % 8) };
            writer.write_all_at(&[whole[position] ^ mask], position as u64).unwrap();
            match VoteFile::open(directory.path(), GROUP) {
                Ok(file) if file.durable() == durable(5) => {}
                Ok(_) => found.push(position),
                Err(VoteFileError::Damaged { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            writer.write_all_at(&whole[position..=position], position as u64).unwrap();
        }
        found
    }

    #[test]
    fn no_changed_byte_takes_back_a_vote() {
        assert_eq!(takes_back_a_vote(Slot::with_copy), Vec::<usize>::new());
    }

    #[test]
    fn without_the_copy_a_changed_byte_takes_back_a_vote() {
        let newest = 4_096..4_096 + SLOT_BYTES;
        assert_eq!(takes_back_a_vote(|slot| slot.to_bytes().to_vec()), newest.collect::<Vec<_>>());
    }

    #[test]
    fn a_file_cut_at_any_byte_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = VoteFile::open(directory.path(), GROUP).unwrap();
        file.store(durable(1)).unwrap();
        let path = file.path.clone();
        drop(file);
        let writer = File::options().write(true).open(&path).unwrap();
        for length in (0..FILE_BYTES).rev() {
            writer.set_len(length).unwrap();
            let error = VoteFile::open(directory.path(), GROUP).unwrap_err();
            assert!(matches!(error, VoteFileError::Damaged { reason: "wrong file length", .. }), "{length}: {error}");
        }
    }

    #[test]
    fn of_voters_that_find_no_file_one_gets_it_and_keeps_its_votes() {
        for round in 1..=30 {
            let directory = tempfile::tempdir().unwrap();
            let barrier = Barrier::new(4);
            let mut opened: Vec<VoteFile> = thread::scope(|scope| {
                let open = || {
                    barrier.wait();
                    VoteFile::open(directory.path(), GROUP)
                };
                let threads = [(); 4].map(|()| scope.spawn(open));
                let results = threads.map(|thread| thread.join().unwrap());
                for error in results.iter().filter_map(|result| result.as_ref().err()) {
                    assert!(matches!(error, VoteFileError::Busy { .. }), "{error}");
                }
                results.into_iter().flatten().collect()
            });
            assert_eq!(opened.len(), 1, "round {round}: voters with one file");
            opened[0].store(durable(round)).unwrap();
            opened.clear();
            assert_eq!(VoteFile::open(directory.path(), GROUP).unwrap().durable(), durable(round));
        }
    }

    #[test]
    fn a_file_left_unfinished_by_a_crash_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("group-7.new"), vec![0xff; 10_000]).unwrap();
        let mut file = VoteFile::open(directory.path(), GROUP).unwrap();
        file.store(durable(1)).unwrap();
        drop(file);
        assert_eq!(VoteFile::open(directory.path(), GROUP).unwrap().durable(), durable(1));
    }

    #[test]
    fn a_second_process_or_a_damaged_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = VoteFile::open(directory.path(), GROUP).unwrap();
        let path = file.path.clone();
        assert!(matches!(VoteFile::open(directory.path(), GROUP), Err(VoteFileError::Busy { .. })));
        drop(file);
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = VoteFile::open(directory.path(), GROUP).unwrap_err();
            assert!(matches!(error, VoteFileError::Damaged { .. }), "{error}");
        };
        refused(&whole[..whole.len() - 1]);
        refused(&[]);
        for index in 0..SLOT_BYTES {
            let mut damaged = whole.clone();
            damaged[index] ^= 1;
            damaged[COPY_STRIDE_BYTES + SLOT_BYTES - 1 - index] ^= 1;
            refused(&damaged);
        }
        let mut other = whole.clone();
        // Another version of the format.
        for begin in [0, COPY_STRIDE_BYTES] {
            other[begin..begin + 8].copy_from_slice(b"MDGVOTE2");
        }
        refused(&other);
        other[..SLOT_BYTES].copy_from_slice(&Slot { writes: 9, group: GroupId(8), durable: durable(1) }.to_bytes());
        refused(&other);
    }

    #[test]
    fn a_failed_write_leaves_the_vote_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = VoteFile::open(directory.path(), GROUP).unwrap();
        file.store(durable(1)).unwrap();
        // Simulates a failing disk: a descriptor that cannot be written.
        file.file = File::open(&file.path).unwrap();
        assert!(matches!(file.store(durable(2)), Err(VoteFileError::Io { act: "write", .. })));
        assert_eq!(file.durable(), durable(1));
    }

    #[test]
    fn a_vote_file_written_by_0_1_0_is_read() {
        let slots = [2, 1].map(|writes| Slot { writes, group: GROUP, durable: durable(writes) });
        check(
            include_str!("../../../../tests/data/formats/vote_file.hex"),
            &slots,
            |bytes| Slot::parse(bytes.try_into().unwrap()).unwrap(),
            |slot| slot.to_bytes().to_vec(),
        );
        let [newer, older] = slots.map(Slot::to_bytes);
        let mut bytes = vec![0; 8_192];
        bytes[..48].copy_from_slice(&newer);
        bytes[4_096..4_096 + 48].copy_from_slice(&older);
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("group-7.vote"), bytes).unwrap();
        assert_eq!(VoteFile::open(directory.path(), GROUP).unwrap().durable(), durable(2));
    }
}
