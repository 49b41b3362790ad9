use dbn::{MboMsg, TradeMsg};

use super::*;

const HEADER: &[u8] = b"what is known last";
const RECORDS: usize = 60_000;

/// Records of different types and lengths.
fn records() -> Vec<Vec<u8>> {
    let mbo = |order_id| MboMsg { order_id, ..MboMsg::default() };
    let trade = |ts_recv| TradeMsg { ts_recv, ..TradeMsg::default() };
    let record = |number| if number % 7 == 0 { trade(number).as_ref().to_vec() } else { mbo(number).as_ref().to_vec() };
    (0..RECORDS as u64).map(record).collect()
}

fn spool_reader(records: &[Vec<u8>]) -> SpoolReader {
    let mut spool = Spool::new(tempfile::tempfile().unwrap()).unwrap();
    records.iter().for_each(|record| spool.push(record));
    let (spool_reader, failure) = spool.into_reader().unwrap();
    assert!(failure.is_none());
    spool_reader
}

/// A disk that holds the spool and the output and does not support holes: only truncation frees space.
struct Disk {
    spool: File,
    room: u64,
    content: Vec<u8>,
}

impl Disk {
    fn new(spool_reader: &SpoolReader, more_room: u64) -> Self {
        Self { spool: spool_reader.file.try_clone().unwrap(), room: spool_reader.end + more_room, content: Vec::new() }
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.spool.metadata().unwrap().len() + self.content.len() as u64;
        let fit = usize::try_from(self.room.saturating_sub(taken)).unwrap().min(bytes.len());
        if fit == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.content.extend_from_slice(&bytes[..fit]);
        Ok(fit)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header_and(records: &[Vec<u8>]) -> Vec<u8> {
    [HEADER, &records.concat()].concat()
}

#[test]
fn a_full_disk_without_hole_punching_keeps_the_first_records() {
    let all = records();
    for (compression, least) in [(Compression::None, RECORDS * 4 / 10), (Compression::Zstd, RECORDS * 7 / 10)] {
        let spool_reader = spool_reader(&all);
        let mut disk = Disk::new(&spool_reader, 0);
        let outcome = write_spooled(HEADER.to_vec(), spool_reader, compression, &mut disk);
        assert!(outcome.failure.is_none());
        assert!(outcome.out_of_space.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull));
        assert_eq!(outcome.bytes, disk.content.len() as u64);
        let kept = usize::try_from(outcome.record_count).unwrap();
        assert!((least..RECORDS).contains(&kept), "{compression:?}: {kept} of {RECORDS}");
        let content = match compression {
            Compression::None => disk.content,
            Compression::Zstd => zstd::decode_all(disk.content.as_slice()).unwrap(),
        };
        assert!(content == header_and(&all[..kept]), "{compression:?}: {} bytes", content.len());
    }
}

#[test]
fn with_enough_space_no_record_is_dropped() {
    let all = records();
    let spool_reader = spool_reader(&all);
    let mut disk = Disk::new(&spool_reader, spool_reader.end + HEADER.len() as u64);
    let outcome = write_spooled(HEADER.to_vec(), spool_reader, Compression::None, &mut disk);
    assert!(outcome.failure.is_none() && outcome.out_of_space.is_none());
    assert_eq!(outcome.record_count, RECORDS as u64);
    assert!(disk.content == header_and(&all));
}

#[test]
fn without_space_for_the_header_nothing_is_written() {
    let all = records();
    let spool_reader = spool_reader(&all);
    let mut disk = Disk { room: HEADER.len() as u64 - 1, ..Disk::new(&spool_reader, 0) };
    let outcome = write_spooled(HEADER.to_vec(), spool_reader, Compression::None, &mut disk);
    assert_eq!((outcome.record_count, outcome.bytes), (0, 0));
    assert!(outcome.failure.is_some());
}

/// A disk that fails: no space can be freed.
struct Breaking {
    after: usize,
    content: Vec<u8>,
}

impl Write for Breaking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fit = (self.after - self.content.len()).min(bytes.len());
        if fit == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.content.extend_from_slice(&bytes[..fit]);
        Ok(fit)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_failure_whole_records_are_counted() {
    let all = records();
    let ends: Vec<usize> = all
        .iter()
        .scan(HEADER.len(), |end, record| {
            *end += record.len();
            Some(*end)
        })
        .collect();
    for after in [0, HEADER.len() - 1, HEADER.len(), 100, ends[0], ends[0] + 1, 1 << 20, ends[40_000] - 1, ends[40_000]]
    {
        let mut output = Breaking { after, content: Vec::new() };
        let outcome = write_spooled(HEADER.to_vec(), spool_reader(&all), Compression::None, &mut output);
        let whole = ends.iter().filter(|end| **end <= after).count();
        let bytes =
            if after < HEADER.len() { 0 } else { HEADER.len().max(whole.checked_sub(1).map_or(0, |last| ends[last])) };
        assert_eq!((outcome.record_count, outcome.bytes), (whole as u64, bytes as u64), "{after}");
        assert_eq!(outcome.failure.unwrap().kind(), io::ErrorKind::FileTooLarge);
    }
}
