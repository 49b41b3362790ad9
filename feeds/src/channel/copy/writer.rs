//! The donor's side: visits a channel's state in slices.

use super::{
    BOOK, CopyFault, CoreCounts, END, HEAD, ITEM_BYTES_MAX, MAGIC, ORDER, ORDER_REMOVED, SLICE_BYTES_MAX, TOUCHED_MAX,
    VERSION,
};
use crate::{
    book::{InstrumentIndex, OrderView, Side},
    channel::{ChannelConfig, feed_core::FeedCore},
    transport::Transport,
};
use mdgw_wire::identity::Sequence;

/// Memory of one copy. A cold thread makes it, so that the channel's thread allocates nothing.
#[derive(Debug)]
pub struct CopyBuffer(Box<CopyWriter>);

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// More slices follow.
    More,
    /// This was the last slice. The copy is the state before `next` of the channel's session.
    Done {
        /// The next sequence to be delivered.
        next: Sequence,
    },
    /// The copy ended early, and what was written of it is useless.
    Failed(CopyFault),
}

/// An entry that a message may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channel) enum TouchedEntry {
    /// An instrument's state.
    Book(InstrumentIndex),
    /// An order, and its instrument's state.
    Order(u64),
}

/// A copy in progress.
#[derive(Debug)]
pub(in crate::channel) struct CopyWriter {
    has_written_head: bool,
    /// The next slot to visit.
    cursor: usize,
    /// Entries touched since the copy began, and how many of them were rewritten.
    touched: Vec<TouchedEntry>,
    rewritten: usize,
    fault: Option<CopyFault>,
    budget: SliceBudget,
}

/// Work limits of one slice.
#[derive(Clone, Copy, Debug)]
struct SliceBudget {
    /// Slots visited, in order slots; a book counts [`BOOK_COST`].
    cost: usize,
    /// Touched entries rewritten.
    touched: usize,
}

/// Budget of a slice while the channel runs: some microseconds of processor time.
const SLICE_BUDGET: SliceBudget = SliceBudget { cost: 2_048, touched: 256 };
/// Cost of a book, in order slots: a book lies on pages of its own.
const BOOK_COST: usize = 8;

impl CopyBuffer {
    /// Buffer for one copy.
    #[must_use]
    pub fn new() -> Self {
        Self::with_budget(SLICE_BUDGET)
    }

    /// With a small budget, so that a copy takes many slices.
    #[cfg(test)]
    pub(in crate::channel) fn in_small_slices() -> Self {
        Self::with_budget(SliceBudget { cost: 64, touched: 2 })
    }

    fn with_budget(budget: SliceBudget) -> Self {
        // Written once, so that the channel's thread takes no page fault.
        let mut touched = vec![TouchedEntry::Order(0); TOUCHED_MAX];
        touched.clear();
        Self(Box::new(CopyWriter { has_written_head: false, cursor: 0, touched, rewritten: 0, fault: None, budget }))
    }

    pub(in crate::channel) fn into_writer(self) -> Box<CopyWriter> {
        self.0
    }

    pub(in crate::channel) fn from_writer(writer: Box<CopyWriter>) -> Self {
        Self(writer)
    }
}

impl Default for CopyBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl CopyWriter {
    /// Marks the copy as invalid: an input touched every book.
    #[cold]
    pub(in crate::channel) fn invalidate(&mut self) {
        self.fault.get_or_insert(CopyFault::Invalidated);
    }

    /// Records the entries touched by messages `[from, until)` of a block that begins with `first`.
    #[cold]
    pub(in crate::channel) fn record_touched<C: FeedCore>(
        &mut self,
        core: &C,
        (first, from, until): (Sequence, Sequence, Sequence),
        block: &[u8],
    ) {
        let (mut rest, mut sequence) = (block, first);
        while sequence < until && self.fault.is_none() {
            let Some(message) = C::Transport::next_message(&mut rest) else { break };
            if sequence >= from {
                core.visit_touched(message, &mut |touched| self.record_entry(touched));
            }
            sequence = sequence.plus(1);
        }
    }

    fn record_entry(&mut self, touched: TouchedEntry) {
        // The earlier rewrite does not include this change.
        let is_written = self.rewritten == self.touched.len();
        if !is_written && self.touched.last() == Some(&touched) {
            return;
        }
        if self.touched.len() == self.touched.capacity() {
            self.fault = Some(CopyFault::TooBusy);
            return;
        }
        self.touched.push(touched);
    }

    /// Writes the next slice into an empty buffer with room for [`SLICE_BYTES_MAX`]. `end` writes the channel's part
    /// of the end item; it returns `None` while the channel has no position.
    pub(in crate::channel) fn slice<C: FeedCore>(
        &mut self,
        core: &C,
        config: &ChannelConfig,
        out: &mut Vec<u8>,
        end: impl FnOnce(&mut Vec<u8>) -> Option<Sequence>,
    ) -> CopyStep {
        debug_assert!(out.is_empty() && out.capacity() >= SLICE_BYTES_MAX, "room is the caller's to make");
        if let Some(fault) = self.fault {
            return CopyStep::Failed(fault);
        }
        match self.write(core, config, out) {
            Err(fault) => {
                self.fault = Some(fault);
                CopyStep::Failed(fault)
            }
            Ok(false) => CopyStep::More,
            Ok(true) => {
                out.push(END);
                write_counts(core.counts(), out);
                end(out).map_or(CopyStep::Failed(CopyFault::NoState), |next| CopyStep::Done { next })
            }
        }
    }

    /// Whether all entries have been written.
    fn write<C: FeedCore>(&mut self, core: &C, config: &ChannelConfig, out: &mut Vec<u8>) -> Result<bool, CopyFault> {
        if !self.has_written_head {
            self.has_written_head = true;
            out.push(HEAD);
            out.extend(MAGIC);
            for number in [VERSION, config.feed as u16, config.schemas.0] {
                out.extend(number.to_le_bytes());
            }
        }
        let places = core.copy_extent();
        let mut cost = 0;
        while self.cursor < places.books + places.orders && cost < self.budget.cost && has_room(out) {
            if self.cursor < places.books {
                write_book(core, self.cursor, false, out)?;
                cost += BOOK_COST;
            } else {
                if let Some(order) = core.order_in_slot(self.cursor - places.books) {
                    write_order(&order, out);
                }
                cost += 1;
            }
            self.cursor += 1;
        }
        if self.cursor < places.books + places.orders {
            return Ok(false);
        }
        for _ in 0..self.budget.touched {
            if !has_room(out) {
                return Ok(false);
            }
            let Some(touched) = self.touched.get(self.rewritten).copied() else { return Ok(true) };
            self.rewritten += 1;
            match touched {
                TouchedEntry::Book(InstrumentIndex(index)) => write_book(core, index as usize, true, out)?,
                TouchedEntry::Order(order_id) => match core.order(order_id) {
                    Some(order) => {
                        write_order(&order, out);
                        write_book(core, order.instrument.0 as usize, true, out)?;
                    }
                    None => {
                        out.push(ORDER_REMOVED);
                        out.extend(order_id.to_le_bytes());
                    }
                },
            }
        }
        Ok(self.rewritten == self.touched.len() && has_room(out))
    }
}

/// Room for the two longest items. A touched entry may be an order and its book; the end item is shorter than a book.
fn has_room(out: &Vec<u8>) -> bool {
    out.capacity() - out.len() >= 2 * ITEM_BYTES_MAX
}

fn write_order(order: &OrderView, out: &mut Vec<u8>) {
    let OrderView { order_id, instrument, side, price_e9, size, priority } = *order;
    out.push(ORDER);
    out.extend(order_id.to_le_bytes());
    out.extend((instrument.0 << 1 | u32::from(side == Side::Ask)).to_le_bytes());
    out.extend(price_e9.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend(priority.to_le_bytes());
}

/// Writes nothing for an empty state, unless an earlier item may have to be overridden.
fn write_book<C: FeedCore>(core: &C, index: usize, was_written: bool, out: &mut Vec<u8>) -> Result<(), CopyFault> {
    let begin = out.len();
    out.push(BOOK);
    out.extend(u32::try_from(index).unwrap_or(u32::MAX).to_le_bytes());
    out.extend([0; 2]);
    let body = out.len();
    core.write_book(InstrumentIndex(u32::try_from(index).unwrap_or(u32::MAX)), out)?;
    let length = u16::try_from(out.len() - body).map_err(|_| CopyFault::BookTooDeep)?;
    if let Some(place) = out.get_mut(body - size_of::<u16>()..body) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    if length == 0 && !was_written {
        out.truncate(begin);
    }
    Ok(())
}

fn write_counts(counts: CoreCounts, out: &mut Vec<u8>) {
    let CoreCounts { orders, levels, instruments, priority_next, is_new_book_suspect } = counts;
    out.extend(orders.to_le_bytes());
    out.extend(levels.to_le_bytes());
    out.extend(instruments.to_le_bytes());
    out.extend(priority_next.to_le_bytes());
    out.push(is_new_book_suspect.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_touched_after_it_was_written_is_recorded_again() {
        let mut writer = CopyBuffer::in_small_slices().into_writer();
        let book = TouchedEntry::Book(InstrumentIndex(7));
        writer.record_entry(book);
        writer.record_entry(book);
        assert_eq!(writer.touched, [book]);
        // The slice has no room for the end item; another slice follows.
        writer.rewritten = 1;
        writer.record_entry(book);
        assert_eq!(writer.touched, [book; 2]);
    }
}
