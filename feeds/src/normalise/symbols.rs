//! Symbol table of a channel whose venue does not number its instruments.

use crate::book::InstrumentIndex;
use mdgw_wire::{drop_reason::DropReason, identity::InstrumentId};

/// Instruments by symbol, with dense indices in order of arrival. The table is bounded and allocated once.
#[derive(Debug)]
pub(crate) struct SymbolTable {
    /// Open addressing: index of the instrument plus one, 0 for a free slot. At most half full.
    slots: Vec<u32>,
    instruments: Vec<SymbolEntry>,
    instruments_max: usize,
    configured_ids: Vec<(u64, InstrumentId)>,
}

/// An instrument of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SymbolEntry {
    /// Eight bytes as on the wire, padded with spaces.
    pub symbol: [u8; 8],
    /// Id of the instrument in DBN records.
    pub id: InstrumentId,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SymbolLookup {
    /// Index in the books.
    pub index: InstrumentIndex,
    /// Id in records.
    pub id: InstrumentId,
    /// Whether the symbol was new in this session.
    pub is_new: bool,
}

impl SymbolTable {
    /// Room for `instruments_max` symbols. `configured_ids` resolves collisions: a symbol listed there gets that id
    /// instead of its hash.
    #[must_use]
    pub(crate) fn new(instruments_max: usize, configured_ids: &[(String, u32)]) -> Self {
        let configured_ids =
            configured_ids.iter().map(|(symbol, id)| (pad(symbol.as_bytes()), InstrumentId(*id))).collect();
        let slots = (instruments_max.max(1) * 2).next_power_of_two();
        Self {
            slots: vec![0; slots],
            instruments: Vec::with_capacity(instruments_max),
            instruments_max,
            configured_ids,
        }
    }

    /// Clears all symbols: a new session.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(0);
        self.instruments.clear();
    }

    /// The instrument of that symbol; inserted if it is new.
    ///
    /// # Errors
    /// `InstrumentTableFull`, and `InstrumentIdCollision` if another symbol of this session has the same id.
    pub(crate) fn find_or_insert(&mut self, symbol: [u8; 8]) -> Result<SymbolLookup, DropReason> {
        match self.probe(symbol) {
            Ok((index, id)) => Ok(SymbolLookup { index, id, is_new: false }),
            Err(slot) => self.insert(symbol, slot),
        }
    }

    /// The index of that symbol, if present.
    #[must_use]
    pub(crate) fn find(&self, symbol: [u8; 8]) -> Option<InstrumentIndex> {
        self.probe(symbol).ok().map(|(index, _)| index)
    }

    /// Number of symbols.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.instruments.len()
    }

    /// The instrument at that index.
    #[must_use]
    pub(crate) fn get(&self, index: InstrumentIndex) -> Option<SymbolEntry> {
        self.instruments.get(usize::try_from(index.0).ok()?).copied()
    }

    /// The index of that id. Visits all instruments.
    #[must_use]
    pub(crate) fn index_of(&self, id: InstrumentId) -> Option<InstrumentIndex> {
        let index = self.instruments.iter().position(|entry| entry.id == id)?;
        u32::try_from(index).ok().map(InstrumentIndex)
    }

    /// Index and id of a symbol, or the slot for its insertion.
    fn probe(&self, symbol: [u8; 8]) -> Result<(InstrumentIndex, InstrumentId), usize> {
        let mask = self.slots.len() - 1;
        // Fibonacci hashing; symbols are few and the table is half empty, so runs are short.
        let key = u64::from_le_bytes(symbol).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = usize::try_from(key >> 32).unwrap_or(0) & mask;
        for _ in 0..=mask {
            let Some(entry @ 1..) = self.slots.get(slot).copied() else { break };
            let index = InstrumentIndex(entry - 1);
            if let Some(occupied) = self.get(index).filter(|occupied| occupied.symbol == symbol) {
                return Ok((index, occupied.id));
            }
            slot = (slot + 1) & mask;
        }
        Err(slot)
    }

    fn insert(&mut self, symbol: [u8; 8], slot: usize) -> Result<SymbolLookup, DropReason> {
        if self.instruments.len() >= self.instruments_max {
            return Err(DropReason::InstrumentTableFull);
        }
        let key = u64::from_le_bytes(symbol);
        let configured = self.configured_ids.iter().find(|(known, _)| *known == key).map(|(_, id)| *id);
        let id = configured.unwrap_or_else(|| InstrumentId::from_symbol(trim(&symbol)));
        // Visits all symbols, but only for a new one.
        if self.instruments.iter().any(|entry| entry.id == id) {
            return Err(DropReason::InstrumentIdCollision);
        }
        let index = u32::try_from(self.instruments.len()).map_err(|_| DropReason::InstrumentTableFull)?;
        self.instruments.push(SymbolEntry { symbol, id });
        if let Some(place) = self.slots.get_mut(slot) {
            *place = index + 1;
        }
        Ok(SymbolLookup { index: InstrumentIndex(index), id, is_new: true })
    }
}

/// A symbol without the spaces that pad it on the right.
#[must_use]
pub(crate) fn trim(symbol: &[u8]) -> &[u8] {
    symbol.trim_ascii_end()
}

fn pad(symbol: &[u8]) -> u64 {
    let mut padded = [b' '; 8];
    for (slot, byte) in padded.iter_mut().zip(symbol) {
        *slot = *byte;
    }
    u64::from_le_bytes(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(number: usize) -> [u8; 8] {
        pad(format!("S{number}").as_bytes()).to_le_bytes()
    }

    #[test]
    fn every_symbol_keeps_its_index_and_id() {
        let mut table = SymbolTable::new(1_000, &[]);
        for number in 0..1_000 {
            let found = table.find_or_insert(symbol(number)).unwrap();
            assert!(found.is_new);
            assert_eq!(found.index.0 as usize, number);
            assert_eq!(found.id, InstrumentId::from_symbol(format!("S{number}").as_bytes()));
        }
        for number in 0..1_000 {
            assert!(!table.find_or_insert(symbol(number)).unwrap().is_new);
        }
        assert_eq!(table.find_or_insert(symbol(1_000)), Err(DropReason::InstrumentTableFull));
        table.clear();
        assert!(table.find_or_insert(symbol(1_000)).unwrap().is_new);
    }

    #[test]
    fn an_id_collision_is_refused_unless_configured() {
        let ours = InstrumentId::from_symbol(b"S1").0;
        let mut table = SymbolTable::new(4, &[("S0".to_owned(), ours)]);
        assert_eq!(table.find_or_insert(symbol(0)).unwrap().id, InstrumentId(ours));
        assert_eq!(table.find_or_insert(symbol(1)), Err(DropReason::InstrumentIdCollision));
        let mut full_table = SymbolTable::new(4, &[("S0".to_owned(), ours), ("S1".to_owned(), 7)]);
        assert!(full_table.find_or_insert(symbol(0)).is_ok());
        assert_eq!(full_table.find_or_insert(symbol(1)).unwrap().id, InstrumentId(7));
    }
}
