//! Counters: each written by one thread at a time, read by any cold thread.
//!
//! [`counter_block!`](crate::counter_block) declares a block: for each counter one line with its name, kind, unit and
//! help text. The macro makes a struct with a field per counter and an enum with a key per counter. A writer publishes
//! the struct, so a missing or surplus value does not compile; a reader names a key, so an unknown counter or a counter
//! of another block does not compile.
//!
//! Counters of one block lie 128 bytes apart from all others, so no two writers share a cache line (nor the adjacent
//! line that the prefetcher loads). Adding is a plain load and store: there is one writer, so no read-modify-write is
//! needed.

use std::{
    any::TypeId,
    marker::PhantomData,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// All counters of the gateway. Blocks are added at the start, and with each channel that is added later.
#[derive(Debug, Default)]
pub struct Registry {
    blocks: Mutex<Vec<Arc<BlockStorage>>>,
}

impl Registry {
    /// Adds a block of counters, all 0. `scope` names their owner: a channel's name, `group 1`. Several blocks of
    /// different types may have the same scope.
    pub fn register<B: CounterBlock>(&self, scope: &str) -> CounterWriter<B> {
        let lines = B::DESCRIPTORS.len().div_ceil(COUNTERS_PER_LINE);
        let block = Arc::new(BlockStorage {
            scope: scope.to_owned(),
            block_type: TypeId::of::<B>(),
            descriptors: B::DESCRIPTORS,
            lines: std::iter::repeat_with(CounterLine::default).take(lines).collect(),
        });
        self.lock().push(Arc::clone(&block));
        CounterWriter { block, values: PhantomData }
    }

    /// Removes all blocks of that scope. Their writers and readers keep them, and nobody else sees them.
    pub fn remove(&self, scope: &str) {
        self.lock().retain(|block| block.scope != scope);
    }

    /// The present values, block by block in the order of registration. Values of one block may be of slightly
    /// different times.
    #[must_use]
    pub fn read(&self) -> Vec<Reading> {
        let readings = |block: &Arc<BlockStorage>| {
            let block = Arc::clone(block);
            block.descriptors.iter().enumerate().map(move |(index, descriptor)| Reading {
                scope: block.scope.clone(),
                descriptor,
                value: block.value(index),
            })
        };
        self.lock().iter().flat_map(readings).collect()
    }

    /// The present values of all blocks of one type, each with its scope, in the order of registration.
    #[must_use]
    pub fn values<B: CounterBlock>(&self) -> Vec<(String, B)> {
        let blocks = self.lock();
        let of_type = blocks.iter().filter(|block| block.block_type == TypeId::of::<B>());
        of_type.map(|block| (block.scope.clone(), B::from_values(|index| block.value(index)))).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<BlockStorage>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One counter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Owner of the counter, as registered.
    pub scope: String,
    /// Declaration of the counter.
    pub descriptor: &'static Descriptor,
    /// The value, in the counter's unit.
    pub value: u64,
}

/// Declaration of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Name as printed, unique in its block.
    pub name: &'static str,
    /// How the value changes.
    pub kind: Kind,
    /// Unit of the value.
    pub unit: Unit,
    /// Meaning, one line.
    pub help: &'static str,
}

/// How a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Only grows, from 0.
    Counter,
    /// Any value at any time.
    Gauge,
    /// A set of bits.
    Mask,
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Occurrences, or a number without a unit.
    None,
    /// Datagrams or published packets.
    Packets,
    /// Messages of a venue.
    Messages,
    /// DBN records.
    Records,
    /// Entries of the publication log.
    Entries,
    /// Segments of the publication log.
    Segments,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// A sequence of the input.
    Sequence,
}

/// The values of one block of counters. Implemented by [`counter_block!`](crate::counter_block), and for
/// [counts by reason](crate::reason_counts).
pub trait CounterBlock: Copy + Default + 'static {
    /// Declarations, in the order of the fields.
    const DESCRIPTORS: &'static [Descriptor];

    /// The values, in the order of the fields.
    fn values(&self) -> impl Iterator<Item = u64>;

    /// The block whose fields have the values `value(index)`.
    fn from_values(value: impl Fn(usize) -> u64) -> Self;
}

/// Key of one counter of a block. Implemented by [`counter_block!`](crate::counter_block) alone.
pub trait CounterKey: Copy {
    /// The block that has the counter.
    type Block: CounterBlock;

    /// Index of the counter in its block's [`CounterBlock::DESCRIPTORS`].
    fn index(self) -> usize;

    /// Declaration of the counter.
    fn descriptor(self) -> &'static Descriptor {
        &Self::Block::DESCRIPTORS[self.index()]
    }
}

/// Declares a block of counters: a struct with the values and an enum with the keys. Each line gives a counter's name
/// (of the field, of the key, and as printed), its [`Kind`](crate::counters::Kind), its
/// [`Unit`](crate::counters::Unit) and its help text.
///
/// ```
/// mdgw_telemetry::counter_block! {
///     /// Counters of a cache.
///     pub struct CacheCounters, key CacheCounter {
///         hits: Counter, None, "look-ups that found an entry";
///         entries: Gauge, Entries, "entries at present";
///     }
/// }
/// let registry = mdgw_telemetry::counters::Registry::default();
/// let mut writer = registry.register::<CacheCounters>("main");
/// writer.publish(&CacheCounters { hits: 3, entries: 2 });
/// assert_eq!(writer.reader(CacheCounter::hits).get(), 3);
/// ```
/// A counter that is not declared does not compile:
/// ```compile_fail
/// # mdgw_telemetry::counter_block! {
/// #     /// Counters of a cache.
/// #     pub struct CacheCounters, key CacheCounter {
/// #         hits: Counter, None, "look-ups that found an entry";
/// #     }
/// # }
/// let registry = mdgw_telemetry::counters::Registry::default();
/// let writer = registry.register::<CacheCounters>("main");
/// let reader = writer.reader(CacheCounter::misses);
/// ```
#[macro_export]
macro_rules! counter_block {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $block:ident, key $key:ident {
            $($name:ident: $kind:ident, $unit:ident, $help:literal;)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visibility struct $block {
            $(#[doc = $help] $visibility $name: u64,)+
        }

        #[doc = concat!("Keys of [`", stringify!($block), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, dead_code, reason = "spelled as the field and the printed name; a complete list")]
        $visibility enum $key {
            $(#[doc = $help] $name,)+
        }

        impl $crate::counters::CounterBlock for $block {
            const DESCRIPTORS: &'static [$crate::counters::Descriptor] = &[$($crate::counters::Descriptor {
                name: stringify!($name),
                kind: $crate::counters::Kind::$kind,
                unit: $crate::counters::Unit::$unit,
                help: $help,
            }),+];

            fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),+].into_iter()
            }

            fn from_values(value: impl Fn(usize) -> u64) -> Self {
                Self { $($name: value($key::$name as usize)),+ }
            }
        }

        impl $crate::counters::CounterKey for $key {
            type Block = $block;

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// The writing end of a block. It can be moved to another thread, but not shared.
#[derive(Debug)]
pub struct CounterWriter<B> {
    block: Arc<BlockStorage>,
    values: PhantomData<fn(B)>,
}

impl<B: CounterBlock> CounterWriter<B> {
    /// Publishes all values of the block.
    #[inline]
    pub fn publish(&mut self, values: &B) {
        for (index, value) in values.values().enumerate() {
            self.block.set(index, value);
        }
    }

    /// Adds to one counter.
    #[inline]
    pub fn add(&mut self, key: impl CounterKey<Block = B>, count: u64) {
        // `&mut self` makes this the only writer.
        self.block.set(key.index(), self.block.value(key.index()).wrapping_add(count));
    }

    /// Sets one counter or gauge.
    #[inline]
    pub fn set(&mut self, key: impl CounterKey<Block = B>, value: u64) {
        self.block.set(key.index(), value);
    }

    /// A reader of one counter, for another thread.
    #[must_use]
    pub fn reader(&self, key: impl CounterKey<Block = B>) -> CounterReader {
        CounterReader { block: Arc::clone(&self.block), index: key.index() }
    }
}

/// The reading end of one counter, for a cold thread that reads often.
#[derive(Clone, Debug)]
pub struct CounterReader {
    block: Arc<BlockStorage>,
    index: usize,
}

impl CounterReader {
    /// The counter's value when this is called; other counters of the block may be from another moment.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.block.value(self.index)
    }
}

#[derive(Debug)]
struct BlockStorage {
    scope: String,
    block_type: TypeId,
    descriptors: &'static [Descriptor],
    lines: Box<[CounterLine]>,
}

impl BlockStorage {
    // `index` is always in range: keys and writers have the type of the block. Relaxed: a count orders no other access.
    #[inline]
    fn value(&self, index: usize) -> u64 {
        self.lines[index / COUNTERS_PER_LINE].0[index % COUNTERS_PER_LINE].load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, index: usize, value: u64) {
        self.lines[index / COUNTERS_PER_LINE].0[index % COUNTERS_PER_LINE].store(value, Ordering::Relaxed);
    }
}

/// Two cache lines: the unit that the adjacent-line prefetcher loads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterLine([AtomicU64; COUNTERS_PER_LINE]);

const COUNTERS_PER_LINE: usize = 16;
const _: () = assert!(size_of::<CounterLine>() == 128);

#[cfg(test)]
mod tests {
    use super::*;

    counter_block! {
        /// Two counters.
        struct PacketCounters, key PacketCounter {
            packets: Counter, Packets, "packets received";
            duplicates: Counter, Packets, "packets received twice";
        }
    }

    counter_block! {
        /// One more counter than a pair of cache lines holds.
        struct ManyCounters, key ManyCounter {
            c0: Counter, None, "c"; c1: Counter, None, "c"; c2: Counter, None, "c"; c3: Counter, None, "c";
            c4: Counter, None, "c"; c5: Counter, None, "c"; c6: Counter, None, "c"; c7: Counter, None, "c";
            c8: Counter, None, "c"; c9: Counter, None, "c"; c10: Counter, None, "c"; c11: Counter, None, "c";
            c12: Counter, None, "c"; c13: Counter, None, "c"; c14: Counter, None, "c"; c15: Counter, None, "c";
            c16: Gauge, None, "c";
        }
    }

    #[test]
    fn readings_have_scope_and_descriptor_in_registration_order() {
        let registry = Registry::default();
        let mut first = registry.register::<PacketCounters>("a");
        let mut second = registry.register::<PacketCounters>("b");
        first.add(PacketCounter::duplicates, 5);
        first.add(PacketCounter::duplicates, 2);
        second.set(PacketCounter::packets, 9);
        assert_eq!(first.reader(PacketCounter::duplicates).get(), 7);
        let readings: Vec<_> = registry.read().into_iter().map(|r| (r.scope, r.descriptor.name, r.value)).collect();
        let expected = [("a", "packets", 0), ("a", "duplicates", 7), ("b", "packets", 9), ("b", "duplicates", 0)];
        assert_eq!(readings, expected.map(|(scope, name, value)| (scope.to_owned(), name, value)));
        let descriptor = registry.read()[1].descriptor;
        assert_eq!(descriptor, PacketCounter::duplicates.descriptor());
        assert_eq!(
            (descriptor.kind, descriptor.unit, descriptor.help),
            (Kind::Counter, Unit::Packets, "packets received twice")
        );
    }

    #[test]
    fn each_field_is_read_back_under_its_own_key_in_long_blocks_too() {
        let registry = Registry::default();
        let mut writer = registry.register::<ManyCounters>("many");
        let published = ManyCounters::from_values(|index| index as u64 + 100);
        writer.publish(&published);
        assert_eq!((published.c0, published.c9, published.c16), (100, 109, 116));
        for (key, value) in [(ManyCounter::c0, 100), (ManyCounter::c15, 115), (ManyCounter::c16, 116)] {
            assert_eq!(writer.reader(key).get(), value, "{key:?}");
        }
        assert_eq!(registry.values::<ManyCounters>(), [("many".to_owned(), published)]);
        let values: Vec<u64> = registry.read().into_iter().map(|reading| reading.value).collect();
        assert_eq!(values, (100..117).collect::<Vec<u64>>());
    }

    #[test]
    fn values_of_one_type_leave_out_other_blocks_of_the_same_scope() {
        let registry = Registry::default();
        let mut packets = registry.register::<PacketCounters>("a");
        let _many = registry.register::<ManyCounters>("a");
        let published = PacketCounters { packets: 3, duplicates: 1 };
        packets.publish(&published);
        assert_eq!(registry.values::<PacketCounters>(), [("a".to_owned(), published)]);
    }

    #[test]
    fn a_writer_moves_between_threads_and_loses_nothing() {
        let registry = Registry::default();
        let mut writer = registry.register::<PacketCounters>("");
        for _ in 0..4 {
            writer = std::thread::spawn(move || {
                for _ in 0..10_000 {
                    writer.add(PacketCounter::packets, 1);
                }
                writer
            })
            .join()
            .unwrap();
        }
        assert_eq!(registry.read()[0].value, 40_000);
    }
}
