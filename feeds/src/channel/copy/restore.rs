//! The joiner's side of a copy: turns slices into a channel that continues at the copied position.

use std::collections::BTreeMap;

use super::{
    BOOK, CopyFault, CoreCounts, END, HEAD, ITEM_BYTES_MAX, MAGIC, ORDER, ORDER_REMOVED, TOUCHED_MAX, VERSION,
};
use crate::{
    book::{InstrumentIndex, OrderView, Side},
    channel::{Channel, ChannelConfig},
    transport::VenueSession,
};
use mdgw_wire::{identity::Session, time::UnixNs};

/// Collects slices in order, then builds a channel from them. Runs on a cold thread: it allocates for what it
/// receives, within the channel's limits.
#[derive(Debug)]
pub struct CopyRestorer {
    config: ChannelConfig,
    has_head: bool,
    received: ReceivedCopy,
    /// Bytes of `received.books`.
    book_bytes: usize,
    end: Option<Vec<u8>>,
}

/// Items as received.
#[derive(Debug, Default)]
pub(in crate::channel) struct ReceivedCopy {
    /// In order of arrival. For entries with the same id, the last one counts.
    pub(in crate::channel) orders: Vec<ReceivedOrder>,
    /// By index; the last one received.
    pub(in crate::channel) books: BTreeMap<u32, Vec<u8>>,
    pub(in crate::channel) counts: CoreCounts,
}

/// An order, or its removal (`None`).
#[derive(Clone, Copy, Debug)]
pub(in crate::channel) struct ReceivedOrder {
    pub(in crate::channel) order_id: u64,
    pub(in crate::channel) resting: Option<OrderView>,
}

/// Bytes allowed for each book besides its levels.
const BOOK_BYTES: usize = 512;
/// Bytes of one level in a book item.
const LEVEL_BYTES: usize = 12;

impl CopyRestorer {
    /// For a channel with that configuration.
    #[must_use]
    pub fn new(config: ChannelConfig) -> Self {
        Self { config, has_head: false, received: ReceivedCopy::default(), book_bytes: 0, end: None }
    }

    /// Processes the next slice. Returns whether it was the last one.
    ///
    /// # Errors
    /// [`CopyFault`]: the whole copy is unusable then.
    pub fn push_slice(&mut self, slice: &[u8]) -> Result<bool, CopyFault> {
        let mut rest = FieldReader(slice);
        while !rest.0.is_empty() {
            let kind = rest.u8()?;
            if self.end.is_some() || self.has_head == (kind == HEAD) {
                return Err(CopyFault::Malformed);
            }
            match kind {
                HEAD => self.head(&mut rest)?,
                ORDER => {
                    let order = rest.order()?;
                    self.add_order(ReceivedOrder { order_id: order.order_id, resting: Some(order) })?;
                }
                ORDER_REMOVED => {
                    let order_id = rest.u64()?;
                    self.add_order(ReceivedOrder { order_id, resting: None })?;
                }
                BOOK => {
                    let index = rest.u32()?;
                    let length = usize::from(rest.u16()?);
                    self.book(index, rest.bytes(length)?)?;
                }
                END => {
                    self.received.counts = rest.counts()?;
                    // The remaining bytes belong to the channel.
                    self.end = Some(std::mem::take(&mut rest.0).to_vec());
                }
                _ => return Err(CopyFault::Malformed),
            }
        }
        Ok(self.end.is_some())
    }

    /// Orders and books received, as a measure of progress.
    #[must_use]
    pub fn items(&self) -> usize {
        self.received.orders.len() + self.received.books.len()
    }

    /// Builds the channel in the copied state, with all its memory.
    ///
    /// # Errors
    /// [`CopyFault`]; `Incomplete` before the last slice was received.
    pub fn into_channel(self) -> Result<Channel, CopyFault> {
        let Self { config, mut received, end, .. } = self;
        let end = end.ok_or(CopyFault::Incomplete)?;
        // The sort is stable, so the last entry of an id stays last.
        received.orders.sort_by_key(|order| order.order_id);
        received.orders.dedup_by(|later, earlier| {
            let is_same = later.order_id == earlier.order_id;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        received.orders.retain(|order| order.resting.is_some());
        let mut channel = Channel::new(config);
        channel.restore(&received, &end)?;
        Ok(channel)
    }

    fn head(&mut self, rest: &mut FieldReader<'_>) -> Result<(), CopyFault> {
        let (magic, numbers) = (rest.array::<8>()?, [rest.u16()?, rest.u16()?, rest.u16()?]);
        if magic != MAGIC {
            return Err(CopyFault::Malformed);
        }
        if numbers != [VERSION, self.config.feed as u16, self.config.schemas.0] {
            return Err(CopyFault::Mismatch);
        }
        self.has_head = true;
        Ok(())
    }

    fn add_order(&mut self, order: ReceivedOrder) -> Result<(), CopyFault> {
        // Orders touched during the copy appear twice, or are removed again.
        let orders_max = (self.config.books.orders_max as usize).saturating_add(TOUCHED_MAX);
        if self.received.orders.len() >= orders_max {
            return Err(CopyFault::NoRoom);
        }
        self.received.orders.push(order);
        Ok(())
    }

    fn book(&mut self, index: u32, body: &[u8]) -> Result<(), CopyFault> {
        if body.len() > ITEM_BYTES_MAX {
            return Err(CopyFault::Malformed);
        }
        let limits = &self.config.books;
        let books_max = if self.config.feed.is_by_order() { 1 << 16 } else { limits.instruments_max as usize };
        let bytes_max = books_max * BOOK_BYTES + limits.levels_max as usize * LEVEL_BYTES;
        if index as usize >= books_max {
            return Err(CopyFault::NoRoom);
        }
        let previous_bytes = self.received.books.insert(index, body.to_vec()).map_or(0, |previous| previous.len());
        self.book_bytes = (self.book_bytes + body.len()).saturating_sub(previous_bytes);
        if self.book_bytes > bytes_max { Err(CopyFault::NoRoom) } else { Ok(()) }
    }
}

impl ReceivedCopy {
    /// Resting orders in order of priority, oldest first.
    pub(in crate::channel) fn orders_by_priority(&self) -> Vec<OrderView> {
        let mut orders: Vec<OrderView> = self.orders.iter().filter_map(|order| order.resting).collect();
        orders.sort_unstable_by_key(|order| order.priority);
        orders
    }
}

/// Reads fields from the front of a byte slice; each read checks the length.
#[derive(Clone, Copy, Debug)]
pub(in crate::channel) struct FieldReader<'a>(pub(in crate::channel) &'a [u8]);

impl<'a> FieldReader<'a> {
    pub(in crate::channel) fn bytes(&mut self, count: usize) -> Result<&'a [u8], CopyFault> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(CopyFault::Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(in crate::channel) fn array<const N: usize>(&mut self) -> Result<[u8; N], CopyFault> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(CopyFault::Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(in crate::channel) fn u8(&mut self) -> Result<u8, CopyFault> {
        self.array().map(u8::from_le_bytes)
    }

    pub(in crate::channel) fn u16(&mut self) -> Result<u16, CopyFault> {
        self.array().map(u16::from_le_bytes)
    }

    pub(in crate::channel) fn u32(&mut self) -> Result<u32, CopyFault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::channel) fn u64(&mut self) -> Result<u64, CopyFault> {
        self.array().map(u64::from_le_bytes)
    }

    pub(in crate::channel) fn i64(&mut self) -> Result<i64, CopyFault> {
        self.array().map(i64::from_le_bytes)
    }

    pub(in crate::channel) fn flag(&mut self) -> Result<bool, CopyFault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CopyFault::Malformed),
        }
    }

    pub(in crate::channel) fn unix_ns(&mut self) -> Result<UnixNs, CopyFault> {
        self.u64().map(UnixNs)
    }

    pub(in crate::channel) fn venue_session(&mut self) -> Result<VenueSession, CopyFault> {
        self.array().map(VenueSession)
    }

    pub(in crate::channel) fn session(&mut self) -> Result<Session, CopyFault> {
        Session::from_bytes(self.array()?).ok_or(CopyFault::Malformed)
    }

    /// Checks that no bytes are left over.
    pub(in crate::channel) fn end(&self) -> Result<(), CopyFault> {
        if self.0.is_empty() { Ok(()) } else { Err(CopyFault::Malformed) }
    }

    fn order(&mut self) -> Result<OrderView, CopyFault> {
        let order_id = self.u64()?;
        let instrument_side = self.u32()?;
        let side = if instrument_side & 1 == 0 { Side::Bid } else { Side::Ask };
        let (price_e9, size, priority) = (self.i64()?, self.u32()?, self.u64()?);
        if size == 0 {
            return Err(CopyFault::Malformed);
        }
        Ok(OrderView { order_id, instrument: InstrumentIndex(instrument_side >> 1), side, price_e9, size, priority })
    }

    fn counts(&mut self) -> Result<CoreCounts, CopyFault> {
        Ok(CoreCounts {
            orders: self.u64()?,
            levels: self.u64()?,
            instruments: self.u32()?,
            priority_next: self.u64()?,
            is_new_book_suspect: self.flag()?,
        })
    }
}
