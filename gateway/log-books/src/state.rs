//! The state of one channel at the end of its log.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::offset_of,
    path::Path,
};

use dbn::enums::rtype;
use mdgw_feeds::book::{BookLimits, OrderView};
use mdgw_publog::{Entry, LogError, Reader, SessionBytes};
use mdgw_wire::{
    frame::{FrameFlags, FrameHeader, FrameKind},
    identity::ChannelId,
    published::packet::Frames,
};

use crate::{
    books::{Books, Mbo, SnapshotHead},
    record,
};

/// Follows the log of a channel and keeps its state: the books by order, if it publishes mbo, and the latest record of mbp-10, mbp-1
/// and status of each instrument. Beside the state it keeps the latest symbol mapping and definition of each instrument.
#[derive(Debug)]
pub struct ChannelState {
    reader: Reader,
    contents: Contents,
}

#[derive(Debug)]
struct Contents {
    limits: BookLimits,
    /// What the log lacks, until the log reaches its position.
    initial: Option<InitialState>,
    /// Allocated with the first mbo record.
    books: Option<Box<Books>>,
    /// Instruments that had an order in the session.
    ordered: BTreeSet<u32>,
    latest: BTreeMap<(u32, u8), Latest>,
    /// Of each instrument of the session: its symbol mapping, then, with `true`, its definition.
    names: BTreeMap<(u32, bool), Vec<u8>>,
    /// Records of the message in progress, of which not all parts were read.
    message: Vec<u8>,
    session: Option<SessionBytes>,
    next_entry: u64,
    /// First message that is not part of the state.
    next: u64,
    /// Whether the books by order may lack orders: the log begins after its session did, or lacks a message.
    is_incomplete: bool,
    /// Instruments whose last message was marked suspect by the gateway.
    suspect: BTreeSet<u32>,
    head: SnapshotHead,
    ts_recv: u64,
}

#[derive(Clone, Debug)]
struct Latest {
    record: Vec<u8>,
    is_suspect: bool,
}

/// The state at one position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateSnapshot {
    /// DBN records, back to back: the books by order, each after a clear; then the latest records, by instrument. Before all of them
    /// symbol mappings and definitions, if they were asked for.
    pub records: Vec<u8>,
    /// How many of them are resting orders.
    pub order_count: u64,
    /// Instruments that have a record.
    pub instrument_count: u32,
    /// Whether any of the books is suspect.
    pub is_suspect: bool,
    /// Receive time of the last message before the position, ns since 1970 UTC.
    pub ts_recv: u64,
}

/// The books of a gateway that began with a copy of its peer's state: the log lacks what was published before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialState {
    /// Session of the copy.
    pub session: SessionBytes,
    /// First message that is not part of the copy.
    pub next: u64,
    /// All resting orders, by ascending priority.
    pub orders: Vec<OrderView>,
    /// Whether the copy's books are suspect.
    pub is_suspect: bool,
}

impl ChannelState {
    /// Begins at the oldest entry of the log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn open(directory: &Path, channel: ChannelId, limits: BookLimits) -> Result<Self, LogError> {
        let contents = Contents {
            limits,
            initial: None,
            books: None,
            ordered: BTreeSet::new(),
            latest: BTreeMap::new(),
            names: BTreeMap::new(),
            message: Vec::new(),
            session: None,
            next_entry: 0,
            next: FIRST_SEQUENCE,
            is_incomplete: false,
            suspect: BTreeSet::new(),
            head: SnapshotHead::default(),
            ts_recv: 0,
        };
        Ok(Self { reader: Reader::open(directory, channel.0)?, contents })
    }

    /// The gateway began with a copy of its peer's state. The books of the copy replace those of the log at the copy's position.
    pub fn begin_with(&mut self, initial: InitialState) {
        self.contents.initial = Some(initial);
    }

    /// Reads at most that many entries. Returns whether there may be more.
    pub fn follow(&mut self, entries_max: usize) -> bool {
        for _ in 0..entries_max {
            let Some(entry) = self.reader.next() else { return false };
            self.contents.apply(&entry);
        }
        true
    }

    /// Session and first message that is not part of the state; `None` before the first entry.
    #[must_use]
    pub fn position(&self) -> Option<(SessionBytes, u64)> {
        Some((self.contents.session?, self.contents.next))
    }

    /// The state at [`Self::position`].
    #[must_use]
    pub fn snapshot(&self) -> StateSnapshot {
        self.contents.snapshot(false)
    }

    /// As [`Self::snapshot`], with the symbol mapping and the definition of each instrument that the log has.
    #[must_use]
    pub fn snapshot_with_names(&self) -> StateSnapshot {
        self.contents.snapshot(true)
    }
}

impl Contents {
    fn snapshot(&self, has_names: bool) -> StateSnapshot {
        let mut snapshot = StateSnapshot { ts_recv: self.ts_recv, ..Default::default() };
        let out = &mut snapshot.records;
        let mut instruments: BTreeSet<u32> = self.latest.keys().map(|(instrument, _)| *instrument).collect();
        if has_names {
            instruments.extend(self.names.keys().map(|(instrument, _)| *instrument));
            self.names.values().for_each(|record| out.extend_from_slice(record));
        }
        if let Some(books) = &self.books {
            let begin = out.len();
            out.reserve((books.order_count() + instruments.len()) * size_of::<dbn::MboMsg>());
            let is_suspect = |instrument| self.is_incomplete || self.suspect.contains(&instrument);
            books.append_all(&self.ordered, &self.head, is_suspect, out);
            let (records, _) = out[begin..].as_chunks::<{ size_of::<dbn::MboMsg>() }>();
            instruments.extend(records.iter().map(|record| record::instrument_id(record)));
            snapshot.order_count = books.order_count() as u64;
            snapshot.is_suspect = !self.suspect.is_empty();
        }
        for ((_, kind), latest) in &self.latest {
            let begin = out.len();
            out.extend_from_slice(&latest.record);
            if let Some(flags) = flags_offset(*kind).and_then(|offset| out.get_mut(begin + offset)) {
                let suspect = if latest.is_suspect { dbn::flags::MAYBE_BAD_BOOK } else { 0 };
                *flags |= dbn::flags::SNAPSHOT | dbn::flags::BAD_TS_RECV | suspect;
                snapshot.is_suspect |= latest.is_suspect;
            }
        }
        // Instruments may be missing as a whole.
        snapshot.is_suspect |= self.is_incomplete;
        snapshot.instrument_count = u32::try_from(instruments.len()).unwrap_or(u32::MAX);
        snapshot
    }

    fn apply(&mut self, entry: &Entry<'_>) {
        let has_hole = self.next_entry != 0 && entry.number > self.next_entry;
        self.next_entry = entry.number + 1;
        if self.session != Some(entry.session) {
            self.begin_session(entry.session);
        }
        self.restore_initial(entry);
        if has_hole || entry.first > self.next {
            self.lose_messages();
        }
        for (header, body) in Frames::of_body(entry.payload) {
            let flags = FrameFlags(header.flags);
            match FrameKind::from_number(header.kind) {
                Some(FrameKind::Message) if !flags.contains(FrameFlags::LATE_FILL) => self.part(header, body),
                Some(FrameKind::Gap) => self.lose_messages(),
                _ => {}
            }
        }
        self.next = self.next.max(entry.next);
    }

    /// Takes the books of the copy once the log has reached its position.
    fn restore_initial(&mut self, entry: &Entry<'_>) {
        let is_reached = |initial: &mut InitialState| initial.session == entry.session && initial.next <= entry.first;
        let Some(initial) = self.initial.take_if(is_reached) else { return };
        if initial.next < self.next {
            // The log has what the copy has.
            return;
        }
        self.begin_session(initial.session);
        (self.next, self.is_incomplete) = (initial.next, initial.is_suspect);
        if !initial.orders.is_empty() {
            let limits = self.limits;
            let books = self.books.get_or_insert_with(|| Box::new(Books::new(limits)));
            for order in &initial.orders {
                self.is_incomplete |= books.restore(order).is_err();
                self.ordered.insert(order.instrument.0);
            }
        }
    }

    fn begin_session(&mut self, session: SessionBytes) {
        self.session = Some(session);
        if let Some(books) = &mut self.books {
            books.clear();
        }
        self.ordered.clear();
        self.latest.clear();
        self.names.clear();
        self.message.clear();
        self.suspect.clear();
        (self.next, self.is_incomplete) = (FIRST_SEQUENCE, false);
    }

    /// The rest of a message in progress is lost too.
    fn lose_messages(&mut self) {
        self.message.clear();
        self.is_incomplete = true;
        // Until the instrument's next record, which has all levels.
        self.latest.values_mut().for_each(|latest| latest.is_suspect = true);
    }

    fn part(&mut self, header: &FrameHeader, body: &[u8]) {
        let flags = FrameFlags(header.flags);
        if flags.contains(FrameFlags::FIRST_PART) {
            self.message.clear();
        }
        let is_suspect = flags.contains(FrameFlags::SUSPECT);
        if !flags.contains(FrameFlags::LAST_PART) {
            self.message.extend_from_slice(body);
            return;
        }
        if header.ts_recv.get() != u64::MAX {
            self.ts_recv = self.ts_recv.max(header.ts_recv.get());
        }
        if self.message.is_empty() && body.is_empty() {
            // The gateway could not decode the message, or its book could not apply it.
            return self.lose_messages();
        }
        if self.message.is_empty() {
            return self.message(body, is_suspect);
        }
        let mut message = std::mem::take(&mut self.message);
        message.extend_from_slice(body);
        self.message(&message, is_suspect);
        message.clear();
        self.message = message;
    }

    /// All records of one message.
    fn message(&mut self, body: &[u8], is_suspect: bool) {
        let mut orders = OrderRecords::default();
        let mut rest = body;
        while let Some((record, others)) = split_record(rest) {
            rest = others;
            let kind = record.get(1).copied().unwrap_or_default();
            match kind {
                rtype::MBO => {
                    if let Some(mbo) = Mbo::read(record) {
                        self.order_record(&mbo, is_suspect, &mut orders);
                    }
                }
                rtype::MBP_1 | rtype::MBP_10 | rtype::STATUS => self.keep_latest(kind, record, is_suspect),
                rtype::SYMBOL_MAPPING | rtype::INSTRUMENT_DEF => self.keep_name(kind, record),
                _ => {}
            }
        }
        self.finish_orders(orders);
    }

    fn order_record(&mut self, mbo: &Mbo, is_suspect: bool, orders: &mut OrderRecords) {
        self.head.publisher_id = mbo.publisher_id;
        self.head.ts_event = self.head.ts_event.max(mbo.ts_event);
        if is_suspect {
            self.suspect.insert(mbo.instrument_id);
        } else {
            self.suspect.remove(&mbo.instrument_id);
        }
        let limits = self.limits;
        if mbo.action == b'A' && self.ordered.len() < limits.instruments_max as usize {
            self.ordered.insert(mbo.instrument_id);
        }
        let books = self.books.get_or_insert_with(|| Box::new(Books::new(limits)));
        // A cancel that is not the last of its event and an add are one replacement, which keeps nothing of the priority.
        let replaced = orders.cancelled.take();
        let outcome = match (mbo.action, replaced) {
            (b'A', Some(cancel)) => books.replace(&cancel, mbo).map(|replaced| replaced.added.is_ok()),
            (action, replaced) => {
                let before = replaced.map_or(Ok(()), |cancel| books.cancel(&cancel).map(|_| ()));
                let this = match action {
                    b'A' => books.add(mbo).map(|_| ()),
                    b'C' if mbo.is_last() => books.cancel(mbo).map(|_| ()),
                    b'C' => {
                        orders.cancelled = Some(*mbo);
                        Ok(())
                    }
                    _ => Ok(()),
                };
                before.and(this).map(|()| true)
            }
        };
        // As in the gateway's own books, whose frame then says that the book is suspect.
        if outcome != Ok(true) {
            self.suspect.insert(mbo.instrument_id);
        }
    }

    fn finish_orders(&mut self, orders: OrderRecords) {
        if let (Some(cancel), Some(books)) = (orders.cancelled, &mut self.books)
            && books.cancel(&cancel).is_err()
        {
            self.suspect.insert(cancel.instrument_id);
        }
    }

    fn keep_name(&mut self, kind: u8, record: &[u8]) {
        let key = (record::instrument_id(record), kind == rtype::INSTRUMENT_DEF);
        if self.names.len() < NAME_KINDS * self.limits.instruments_max as usize || self.names.contains_key(&key) {
            self.names.insert(key, record.to_vec());
        }
    }

    fn keep_latest(&mut self, kind: u8, record: &[u8], is_suspect: bool) {
        // The levels of a trade are those before its effect, and nobody must count the trade again.
        let action = record.get(offset_of!(dbn::Mbp1Msg, action));
        if kind != rtype::STATUS && action == Some(&b'T') {
            return;
        }
        let key = (record::instrument_id(record), kind);
        let records_max = RECORD_KINDS * self.limits.instruments_max as usize;
        if let Some(latest) = self.latest.get_mut(&key) {
            latest.record.clear();
            latest.record.extend_from_slice(record);
            latest.is_suspect = is_suspect;
        } else if self.latest.len() < records_max {
            self.latest.insert(key, Latest { record: record.to_vec(), is_suspect });
        }
    }
}

/// The mbo records of the message in progress.
#[derive(Debug, Default)]
struct OrderRecords {
    /// A cancel record after which more of its event follows.
    cancelled: Option<Mbo>,
}

/// The first record of a message's body, and the rest.
fn split_record(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let bytes = usize::from(*body.first()?) * dbn::RecordHeader::LENGTH_MULTIPLIER;
    if bytes == 0 { None } else { body.split_at_checked(bytes) }
}

/// Where a record has its flags.
fn flags_offset(kind: u8) -> Option<usize> {
    match kind {
        rtype::MBP_1 => Some(offset_of!(dbn::Mbp1Msg, flags)),
        rtype::MBP_10 => Some(offset_of!(dbn::Mbp10Msg, flags)),
        _ => None,
    }
}

/// Sequence of a session's first message.
const FIRST_SEQUENCE: u64 = 1;
/// Kinds of records of which the latest is kept.
const RECORD_KINDS: usize = 3;
/// Symbol mappings and definitions.
const NAME_KINDS: usize = 2;

#[cfg(test)]
mod tests;
