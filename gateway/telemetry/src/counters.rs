//! Counters: each written by one thread at a time, read by any cold thread.
//!
//! Counters that are written together form a block, 128 bytes apart from all others, so that no two writers ever
//! share a cache line (nor the neighbouring one that the prefetcher brings along). Adding is a plain load and store:
//! there is one writer, so no read-modify-write is needed.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// All counters of the gateway. Blocks are added at start and stay.
#[derive(Debug, Default)]
pub struct Registry {
    blocks: Mutex<Vec<Arc<Block>>>,
}

impl Registry {
    /// A block of counters, one for each name, all 0. `scope` says whose they are: `channel=nasdaq`, `thread=main-0`.
    pub fn register(&self, scope: &str, names: &'static [&'static str]) -> CounterWriter {
        let lines = names.len().div_ceil(COUNTERS_PER_LINE);
        let block = Arc::new(Block {
            scope: scope.to_owned(),
            names,
            lines: std::iter::repeat_with(CounterLine::default).take(lines).collect(),
        });
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&block));
        CounterWriter { block }
    }

    /// The counters as they stand, block by block in the order of their registration. Each value is one that the
    /// counter had; values of one block need not be of the same moment.
    #[must_use]
    pub fn read(&self) -> Vec<Reading> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let readings = |block: &Arc<Block>| {
            let block = Arc::clone(block);
            (0..block.names.len()).map(move |index| Reading {
                scope: block.scope.clone(),
                name: block.names[index],
                value: block.cell(index).map_or(0, |cell| cell.load(Ordering::Relaxed)),
            })
        };
        blocks.iter().flat_map(readings).collect()
    }
}

/// One counter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whose it is.
    pub scope: String,
    /// What is counted.
    pub name: &'static str,
    /// How often.
    pub value: u64,
}

/// The writing end of a block. It can be handed to another thread, but not shared.
#[derive(Debug)]
pub struct CounterWriter {
    block: Arc<Block>,
}

impl CounterWriter {
    /// Adds to the counter with that index among the block's names; one that doesn't exist is ignored.
    #[inline]
    pub fn add(&mut self, index: usize, count: u64) {
        if let Some(cell) = self.block.cell(index) {
            // Relaxed: a count orders nothing else. `&mut self` makes this the only writer.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        }
    }

    /// The counter of that name, for another thread; one that doesn't exist reads as 0.
    #[must_use]
    pub fn reader(&self, name: &str) -> CounterReader {
        let index = self.block.names.iter().position(|known| *known == name).unwrap_or(usize::MAX);
        CounterReader { block: Arc::clone(&self.block), index }
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&mut self, index: usize, value: u64) {
        if let Some(cell) = self.block.cell(index) {
            cell.store(value, Ordering::Relaxed);
        }
    }
}

/// The reading end of one counter, for a cold thread that looks often.
#[derive(Clone, Debug)]
pub struct CounterReader {
    block: Arc<Block>,
    index: usize,
}

impl CounterReader {
    /// As it stands.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.block.cell(self.index).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Block {
    scope: String,
    names: &'static [&'static str],
    lines: Box<[CounterLine]>,
}

impl Block {
    #[inline]
    fn cell(&self, index: usize) -> Option<&AtomicU64> {
        self.lines.get(index / COUNTERS_PER_LINE)?.0.get(index % COUNTERS_PER_LINE)
    }
}

/// Two cache lines: the unit that the adjacent-line prefetcher moves.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterLine([AtomicU64; COUNTERS_PER_LINE]);

const COUNTERS_PER_LINE: usize = 16;
const _: () = assert!(size_of::<CounterLine>() == 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_have_scope_and_name_in_registration_order() {
        let registry = Registry::default();
        let mut first = registry.register("channel=a", &["packets", "duplicates"]);
        let mut second = registry.register("channel=b", &["packets"]);
        first.add(1, 5);
        first.add(1, 2);
        second.set(0, 9);
        second.add(100, 1);
        assert_eq!((first.reader("duplicates").get(), first.reader("neither").get()), (7, 0));
        let readings: Vec<_> = registry.read().into_iter().map(|r| (r.scope, r.name, r.value)).collect();
        let expected = [("channel=a", "packets", 0), ("channel=a", "duplicates", 7), ("channel=b", "packets", 9)];
        assert_eq!(readings, expected.map(|(scope, name, value)| (scope.to_owned(), name, value)));
    }

    #[test]
    fn blocks_longer_than_a_cache_line_pair_keep_their_counters_apart() {
        static NAMES: [&str; 20] = ["n"; 20];
        let registry = Registry::default();
        let mut writer = registry.register("", &NAMES);
        for index in 0..NAMES.len() {
            writer.add(index, index as u64);
        }
        let values: Vec<u64> = registry.read().into_iter().map(|reading| reading.value).collect();
        assert_eq!(values, (0..20).collect::<Vec<u64>>());
    }

    #[test]
    fn a_writer_moves_between_threads_and_loses_nothing() {
        let registry = Registry::default();
        let mut writer = registry.register("", &["n"]);
        for _ in 0..4 {
            writer = std::thread::spawn(move || {
                for _ in 0..10_000 {
                    writer.add(0, 1);
                }
                writer
            })
            .join()
            .unwrap();
        }
        assert_eq!(registry.read()[0].value, 40_000);
    }
}
