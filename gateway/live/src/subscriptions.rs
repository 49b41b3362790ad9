//! What a session gets: schemas of all instruments, of symbols, of instrument ids.

use std::{collections::HashMap, sync::Arc};

use crate::{
    protocol::{SymbolType, Symbols},
    schema::Schemas,
    stream::chunk::ChunkRecord,
};

/// Subscriptions of one session.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    all: Wanted,
    by_symbol: HashMap<Arc<str>, SymbolEntry>,
    by_id: HashMap<u32, Instrument>,
    /// Every schema that occurs above.
    any: Schemas,
}

#[derive(Debug, Default)]
struct SymbolEntry {
    wanted: Wanted,
    /// The instrument, once its symbol is known.
    id: Option<u32>,
}

/// What is wanted of an instrument. Both kinds of subscriptions end on their own.
#[derive(Debug, Default)]
struct Instrument {
    /// By its symbol.
    of_symbol: Wanted,
    /// By its id.
    of_id: Wanted,
}

impl Instrument {
    fn both(&self) -> [&Wanted; 2] {
        [&self.of_symbol, &self.of_id]
    }

    fn both_mut(&mut self) -> [&mut Wanted; 2] {
        [&mut self.of_symbol, &mut self.of_id]
    }

    fn passes(&self, schemas: Schemas, ts_event: u64, phase: Phase) -> bool {
        self.both().into_iter().any(|wanted| wanted.passes(schemas, ts_event, phase))
    }

    fn is_unused(&self) -> bool {
        self.both().into_iter().all(Wanted::is_empty)
    }
}

/// Schemas, by where their records begin. A schema may be in both.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Schemas that begin with the session.
    live: Schemas,
    /// Schemas that begin at an event time, which may be past, or still to come.
    starts: Vec<(Schemas, u64)>,
}

/// Which records of a stream a session gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Those from before the session: for subscriptions with a start alone.
    Replay,
    /// Those since the session's start.
    Live,
}

impl Wanted {
    fn add(&mut self, schema: Schemas, start: Option<u64>) {
        let Some(start) = start else {
            self.live = self.live.with(schema);
            return;
        };
        match self.starts.iter_mut().find(|(started, _)| *started == schema) {
            Some((_, first)) => *first = start.min(*first),
            None => self.starts.push((schema, start)),
        }
    }

    fn remove(&mut self, schema: Schemas) {
        self.live = self.live.without(schema);
        self.starts.retain(|(started, _)| *started != schema);
    }

    fn schemas(&self) -> Schemas {
        self.starts.iter().fold(self.live, |schemas, (started, _)| schemas.with(*started))
    }

    fn is_empty(&self) -> bool {
        self.live.is_empty() && self.starts.is_empty()
    }

    /// A start holds for as long as the subscription: it may lie in the future, and records of one time may come after later ones.
    fn passes(&self, schemas: Schemas, ts_event: u64, phase: Phase) -> bool {
        phase == Phase::Live && !self.live.and(schemas).is_empty()
            || self.starts.iter().any(|(started, start)| schemas.contains(*started) && ts_event >= *start)
    }
}

impl Subscriptions {
    /// Subscribes to all instruments.
    pub(crate) fn add_all(&mut self, schema: Schemas, start: Option<u64>) {
        self.any = self.any.with(schema);
        self.all.add(schema, start);
    }

    /// Subscribes to a symbol, whose instrument may not be known yet.
    pub(crate) fn add_symbol(&mut self, symbol: Arc<str>, id: Option<u32>, schema: Schemas, start: Option<u64>) {
        self.any = self.any.with(schema);
        let entry = self.by_symbol.entry(symbol).or_default();
        entry.wanted.add(schema, start);
        entry.id = id.or(entry.id);
        if let Some(id) = entry.id {
            self.by_id.entry(id).or_default().of_symbol.add(schema, start);
        }
    }

    /// Subscribes to an instrument id.
    pub(crate) fn add_id(&mut self, id: u32, schema: Schemas, start: Option<u64>) {
        self.any = self.any.with(schema);
        self.by_id.entry(id).or_default().of_id.add(schema, start);
    }

    /// Ends the subscriptions of a schema to all instruments and to each.
    pub(crate) fn remove_all(&mut self, schema: Schemas) {
        self.any = self.any.without(schema);
        self.all.remove(schema);
        let instruments = self.by_id.values_mut().flat_map(Instrument::both_mut);
        for wanted in self.by_symbol.values_mut().map(|entry| &mut entry.wanted).chain(instruments) {
            wanted.remove(schema);
        }
        self.by_symbol.retain(|_, entry| !entry.wanted.is_empty());
        self.by_id.retain(|_, instrument| !instrument.is_unused());
    }

    /// Ends the subscription of a schema to a symbol.
    pub(crate) fn remove_symbol(&mut self, symbol: &str, schema: Schemas) {
        let Some(entry) = self.by_symbol.get_mut(symbol) else { return };
        entry.wanted.remove(schema);
        let (id, is_unused) = (entry.id, entry.wanted.is_empty());
        if is_unused {
            self.by_symbol.remove(symbol);
        }
        if let Some(id) = id {
            self.change(id, |instrument| instrument.of_symbol.remove(schema));
        }
    }

    /// Ends the subscription of a schema to an instrument id.
    pub(crate) fn remove_id(&mut self, id: u32, schema: Schemas) {
        self.change(id, |instrument| instrument.of_id.remove(schema));
    }

    /// Changes what is wanted of an instrument, and forgets the instrument if nothing is left.
    fn change(&mut self, id: u32, change: impl FnOnce(&mut Instrument)) {
        let Some(instrument) = self.by_id.get_mut(&id) else { return };
        change(instrument);
        if instrument.is_unused() {
            self.by_id.remove(&id);
        }
    }

    /// Symbols and ids subscribed to.
    pub(crate) fn count(&self) -> usize {
        let ids = self.by_id.values().filter(|instrument| !instrument.of_id.is_empty());
        self.by_symbol.len() + ids.count()
    }

    /// The same with those of a request, of which some may be subscribed to with another schema.
    pub(crate) fn count_with(&self, symbol_type: SymbolType, symbols: &Symbols) -> usize {
        let Symbols::List(list) = symbols else { return self.count() };
        let is_new = |text: &&String| match symbol_type {
            SymbolType::RawSymbol => !self.by_symbol.contains_key(text.as_str()),
            SymbolType::InstrumentId => {
                let instrument = text.parse().ok().and_then(|id: u32| self.by_id.get(&id));
                instrument.is_none_or(|instrument| instrument.of_id.is_empty())
            }
        };
        self.count() + list.iter().filter(is_new).count()
    }

    /// Every schema subscribed to.
    pub(crate) fn schemas(&self) -> Schemas {
        self.any
    }

    /// Whether all instruments of some schema are subscribed to.
    pub(crate) fn has_all_of_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Whether all instruments of any of the schemas are subscribed to.
    pub(crate) fn has_all(&self, schema: Schemas) -> bool {
        self.all.schemas().contains(schema)
    }

    /// Instruments subscribed to one by one with that schema.
    pub(crate) fn instruments(&self, schema: Schemas) -> Vec<u32> {
        let has_schema =
            |instrument: &Instrument| instrument.both().into_iter().any(|wanted| wanted.schemas().contains(schema));
        self.by_id.iter().filter(|(_, instrument)| has_schema(instrument)).map(|(id, _)| *id).collect()
    }

    /// A symbol's id became known or changed. Returns how the client asked for the instrument, if it did.
    pub(crate) fn map(&mut self, id: u32, symbol: &str) -> Option<SymbolType> {
        // The id belongs to another symbol from now on.
        if self.by_id.get(&id).is_some_and(|instrument| !instrument.of_symbol.is_empty())
            && self.by_symbol.get(symbol).is_none_or(|entry| entry.id != Some(id))
            && let Some(former) = self.by_symbol.values_mut().find(|entry| entry.id == Some(id))
        {
            former.id = None;
            self.change(id, |instrument| instrument.of_symbol = Wanted::default());
        }
        let Some(entry) = self.by_symbol.get_mut(symbol) else {
            let has_id = self.by_id.get(&id).is_some_and(|instrument| !instrument.of_id.is_empty());
            return if !self.all.is_empty() {
                Some(SymbolType::RawSymbol)
            } else {
                has_id.then_some(SymbolType::InstrumentId)
            };
        };
        if let Some(former) = entry.id.replace(id).filter(|former| *former != id) {
            self.change(former, |instrument| instrument.of_symbol = Wanted::default());
        }
        if let Some(entry) = self.by_symbol.get(symbol) {
            self.by_id.entry(id).or_default().of_symbol = entry.wanted.clone();
        }
        Some(SymbolType::RawSymbol)
    }

    /// Whether the session gets every record of these schemas from that event time on, whatever its instrument is.
    pub(crate) fn passes_all(&self, schemas: Schemas, ts_event_min: u64, phase: Phase) -> bool {
        self.all.passes(schemas, ts_event_min, phase)
    }

    /// Whether the session gets a record.
    pub(crate) fn passes(&self, record: &ChunkRecord<'_>, ts_event: u64, phase: Phase) -> bool {
        if self.any.and(record.schemas).is_empty() {
            return false;
        }
        if self.all.passes(record.schemas, ts_event, phase) {
            return true;
        }
        if record.is_control() {
            return self.by_id.values().any(|instrument| instrument.passes(record.schemas, ts_event, phase));
        }
        let instrument = self.by_id.get(&record.instrument_id);
        instrument.is_some_and(|instrument| instrument.passes(record.schemas, ts_event, phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{control, stream::chunk::Chunk};

    fn passes(subscriptions: &Subscriptions, id: u32, schema: Schemas, ts_event: u64, phase: Phase) -> bool {
        let mut chunk = Chunk::default();
        let mapping = control::mapping(ts_event, id, (dbn::SType::RawSymbol, "X"), "X");
        chunk.push(mapping.as_ref(), schema);
        let record = chunk.records().next().unwrap();
        subscriptions.passes(&record, ts_event, phase)
    }

    #[test]
    fn only_what_was_subscribed_passes_and_nothing_after_the_end() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add_symbol("A".into(), Some(1), Schemas::MBO, None);
        subscriptions.add_id(2, Schemas::TRADES, None);
        let live = |subscriptions: &Subscriptions, id, schema| passes(subscriptions, id, schema, 5, Phase::Live);
        assert!(live(&subscriptions, 1, Schemas::MBO) && live(&subscriptions, 2, Schemas::TRADES));
        assert!(!live(&subscriptions, 2, Schemas::MBO) && !live(&subscriptions, 1, Schemas::TRADES));
        subscriptions.add_all(Schemas::STATUS, None);
        assert!(live(&subscriptions, 77, Schemas::STATUS) && !live(&subscriptions, 77, Schemas::MBO));
        subscriptions.remove_symbol("A", Schemas::MBO);
        assert!(!live(&subscriptions, 1, Schemas::MBO));
        subscriptions.remove_all(Schemas::TRADES);
        subscriptions.remove_all(Schemas::STATUS);
        assert!(!live(&subscriptions, 2, Schemas::TRADES) && !live(&subscriptions, 77, Schemas::STATUS));
        assert_eq!(subscriptions.count(), 0);
    }

    #[test]
    fn a_symbol_follows_its_instrument_to_the_next_day() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add_symbol("A".into(), Some(1), Schemas::MBO, None);
        subscriptions.add_symbol("LATER".into(), None, Schemas::MBO, None);
        let live = |subscriptions: &Subscriptions, id| passes(subscriptions, id, Schemas::MBO, 5, Phase::Live);
        assert_eq!(subscriptions.map(1, "B"), None, "B has the id now, and nobody asked for B");
        assert!(!live(&subscriptions, 1));
        assert_eq!(subscriptions.map(9, "A"), Some(SymbolType::RawSymbol));
        assert_eq!(subscriptions.map(3, "LATER"), Some(SymbolType::RawSymbol));
        assert!(live(&subscriptions, 9) && live(&subscriptions, 3) && !live(&subscriptions, 1));
        assert!(subscriptions.map(9, "LATER").is_some(), "two symbols that were asked for change places");
        assert!(live(&subscriptions, 9) && !live(&subscriptions, 3));
    }

    #[test]
    fn a_symbol_and_its_id_are_subscriptions_of_their_own() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add_symbol("A".into(), Some(1), Schemas::MBO, None);
        subscriptions.add_id(1, Schemas::MBO, None);
        subscriptions.add_id(1, Schemas::TRADES, None);
        assert_eq!(subscriptions.count(), 2);
        let list = |texts: [&str; 2]| Symbols::List(texts.map(str::to_owned).into());
        assert_eq!(subscriptions.count_with(SymbolType::InstrumentId, &list(["1", "2"])), 3);
        assert_eq!(subscriptions.count_with(SymbolType::RawSymbol, &list(["A", "1"])), 3);
        let live = |subscriptions: &Subscriptions, schema| passes(subscriptions, 1, schema, 5, Phase::Live);
        subscriptions.remove_symbol("A", Schemas::MBO);
        assert!(live(&subscriptions, Schemas::MBO), "the id is still subscribed to");
        assert_eq!(subscriptions.map(1, "A"), Some(SymbolType::InstrumentId));
        subscriptions.add_symbol("A".into(), Some(1), Schemas::MBO, None);
        subscriptions.remove_id(1, Schemas::MBO);
        assert!(live(&subscriptions, Schemas::MBO), "the symbol is still subscribed to");
        assert_eq!(subscriptions.map(2, "A"), Some(SymbolType::RawSymbol));
        assert!(!live(&subscriptions, Schemas::MBO) && live(&subscriptions, Schemas::TRADES));
    }

    #[test]
    fn a_replay_begins_at_its_start_and_others_with_the_session() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add_all(Schemas::MBO, Some(100));
        subscriptions.add_all(Schemas::TRADES, None);
        let at = |schema, ts_event, phase| passes(&subscriptions, 1, schema, ts_event, phase);
        assert!(!at(Schemas::MBO, 99, Phase::Replay) && at(Schemas::MBO, 100, Phase::Replay));
        assert!(!at(Schemas::TRADES, 200, Phase::Replay) && at(Schemas::TRADES, 50, Phase::Live));
    }

    #[test]
    fn all_records_pass_only_for_a_subscription_to_all_symbols() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add_symbol("A".into(), Some(1), Schemas::MBO, None);
        assert!(!subscriptions.passes_all(Schemas::MBO, 5, Phase::Live));
        subscriptions.add_all(Schemas::MBO, Some(100));
        assert!(!subscriptions.passes_all(Schemas::MBO, 99, Phase::Replay), "one of them is earlier");
        assert!(subscriptions.passes_all(Schemas::MBO, 100, Phase::Replay));
        assert!(!subscriptions.passes_all(Schemas::TRADES, 100, Phase::Live));
    }

    /// A start in the future, or of a client that comes from a gateway that was ahead.
    #[test]
    fn records_before_the_start_of_a_subscription_do_not_pass_after_its_replay() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add_all(Schemas::OHLCV_1S, Some(100));
        subscriptions.add_symbol("A".into(), None, Schemas::MBO, Some(200));
        subscriptions.map(1, "A");
        let live =
            |subscriptions: &Subscriptions, schema, ts_event| passes(subscriptions, 1, schema, ts_event, Phase::Live);
        assert!(!live(&subscriptions, Schemas::OHLCV_1S, 99) && live(&subscriptions, Schemas::OHLCV_1S, 100));
        assert!(!live(&subscriptions, Schemas::MBO, 199) && live(&subscriptions, Schemas::MBO, 200));
        assert!(!live(&subscriptions, Schemas::MBO, 199), "another channel may be behind");
        // The same schema once more, from the session's start on.
        subscriptions.add_id(1, Schemas::MBO, None);
        assert!(live(&subscriptions, Schemas::MBO, 5));
        subscriptions.remove_id(1, Schemas::MBO);
        assert!(!live(&subscriptions, Schemas::MBO, 5) && live(&subscriptions, Schemas::MBO, 200));
        subscriptions.remove_symbol("A", Schemas::MBO);
        assert!(!live(&subscriptions, Schemas::MBO, 200));
    }
}
