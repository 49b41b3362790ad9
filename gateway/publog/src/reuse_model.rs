//! Model of a file that is reused while readers open it: the lock of the file, its name, and the number in its header.

#![allow(unsafe_code, reason = "access to plain memory, which the model checks")]

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use crate::commit::{CommitState, commit, observe};

/// A file of one entry.
struct SegmentFile {
    /// Number by which readers find the file; 0 while it is set aside. A directory orders its look-ups and renames.
    name: RwLock<u64>,
    /// The lock of the file, never waited for.
    lock: RwLock<()>,
    number: AtomicU64,
    words: [AtomicU64; 2],
    /// A payload as readers see it: plain memory, in which a write during a read is an error.
    payload: UnsafeCell<u64>,
}

/// What a reader, or maintenance, leaves out.
#[derive(Clone, Copy, Default)]
struct Omitted {
    reader_lock: bool,
    number_check: bool,
    reuse_lock: bool,
}

const PAYLOAD_OF_SEGMENT: [u64; 3] = [0, 11, 22];

/// Reads segment `number` as [`crate::Reader`] does.
fn read(file: &SegmentFile, number: u64, omitted: Omitted) {
    if *file.name.read().unwrap() != number {
        return;
    }
    // Here maintenance may set the file aside and reuse it.
    let lock = if omitted.reader_lock { None } else { Some(file.lock.try_read()) };
    if matches!(lock, Some(Err(_))) {
        return;
    }
    if !omitted.number_check && file.number.load(Relaxed) != number {
        return;
    }
    if let CommitState::Committed { .. } = observe(&file.words[0]) {
        let payload = file.payload.with(|payload| {
            // SAFETY: the model checks that nobody writes meanwhile.
            unsafe { *payload }
        });
        assert_eq!(payload, PAYLOAD_OF_SEGMENT[usize::try_from(number).unwrap()], "the entry is another segment's");
    }
}

/// Makes segment 2 from the file of segment 1, and writes its entry.
fn reuse(file: &SegmentFile, omitted: Omitted) {
    *file.name.write().unwrap() = 0;
    let lock = if omitted.reuse_lock { None } else { Some(file.lock.try_write()) };
    if matches!(lock, Some(Err(_))) {
        return;
    }
    file.words[0].store(0, Relaxed);
    file.number.store(2, Relaxed);
    *file.name.write().unwrap() = 2;
    drop(lock);
    file.payload.with_mut(|payload| {
        // SAFETY: the model checks that nobody reads or writes meanwhile.
        unsafe { *payload = PAYLOAD_OF_SEGMENT[2] };
    });
    commit(&file.words[0], &file.words[1], 64, 2);
}

fn check(omitted: Omitted) {
    loom::model(move || {
        let file = Arc::new(SegmentFile {
            name: RwLock::new(1),
            lock: RwLock::new(()),
            number: AtomicU64::new(1),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            payload: UnsafeCell::new(PAYLOAD_OF_SEGMENT[1]),
        });
        commit(&file.words[0], &file.words[1], 64, 1);
        let maintenance = {
            let file = Arc::clone(&file);
            thread::spawn(move || reuse(&file, omitted))
        };
        read(&file, 1, omitted);
        read(&file, 2, omitted);
        maintenance.join().unwrap();
    });
}

#[test]
fn no_reader_sees_a_file_that_is_reused() {
    check(Omitted::default());
}

#[test]
#[should_panic]
fn a_reader_without_the_lock_is_caught() {
    check(Omitted { reader_lock: true, ..Omitted::default() });
}

#[test]
#[should_panic]
fn maintenance_without_the_lock_is_caught() {
    check(Omitted { reuse_lock: true, ..Omitted::default() });
}

#[test]
#[should_panic(expected = "another segment's")]
fn a_reader_that_does_not_check_the_number_is_caught() {
    check(Omitted { number_check: true, ..Omitted::default() });
}
