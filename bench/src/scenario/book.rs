//! What do decoding and books cost, relative to a plain book?

use anyhow::{Result, ensure};
use mdgw_feeds::{
    book::{
        BookLimits, InstrumentIndex, Level, Side,
        orders::OrderBooks,
        store::{HashStore, OrderStore, WindowStore},
    },
    transport::{Transport, moldudp64::MoldUdp64},
    venue::nasdaq::itch50::{self, Message},
};
use serde_json::json;

use crate::{Options, input::SyntheticDay, reference::ReferenceBooks, report::Rounds};

/// Name of a variant, and its pass over the day. The pass returns a hash of the top of book after each message.
type Variant<S> = (&'static str, fn(&mut OrderBooks<S>, &SyntheticDay) -> u64);

const REFERENCE: &str = "reference";
const HASH: &str = "hash";
const HASH_PREFETCH_IN_PACKET: &str = "hash, prefetch in packet";
const HASH_PREFETCH_IN_REPLAY: &str = "hash, prefetch in replay";
const WINDOW: &str = "window";
const WINDOW_PREFETCH_IN_PACKET: &str = "window, prefetch in packet";
const WINDOW_PREFETCH_IN_REPLAY: &str = "window, prefetch in replay";
const TARGETS: [(&str, f64); 4] =
    [(HASH, 0.50), (HASH_PREFETCH_IN_REPLAY, 0.30), (WINDOW, 0.42), (WINDOW_PREFETCH_IN_REPLAY, 0.24)];

pub(crate) fn run(options: &Options) -> Result<()> {
    let day = SyntheticDay::load(options)?;
    let hash_variants: [Variant<HashStore>; 3] = [
        (HASH, run_plain),
        (HASH_PREFETCH_IN_PACKET, run_prefetch_in_packet),
        (HASH_PREFETCH_IN_REPLAY, run_prefetch_in_replay),
    ];
    let window_variants: [Variant<WindowStore>; 3] = [
        (WINDOW, run_plain),
        (WINDOW_PREFETCH_IN_PACKET, run_prefetch_in_packet),
        (WINDOW_PREFETCH_IN_REPLAY, run_prefetch_in_replay),
    ];
    let names = [
        REFERENCE,
        HASH,
        HASH_PREFETCH_IN_PACKET,
        HASH_PREFETCH_IN_REPLAY,
        WINDOW,
        WINDOW_PREFETCH_IN_PACKET,
        WINDOW_PREFETCH_IN_REPLAY,
    ];
    let mut rounds = Rounds::new(&names, day.message_count);
    let mut hash = OrderBooks::<HashStore>::new(day.limits);
    let mut window = OrderBooks::<WindowStore>::new(day.limits);
    let mut orders_live = 0;
    for _ in 0..options.rounds {
        let mut reference = ReferenceBooks::new();
        let top_hash = rounds.time(REFERENCE, || run_reference(&mut reference, &day));
        ensure!(reference.faults == 0, "the reference found {} faults in a valid day", reference.faults);
        orders_live = reference.order_count();
        for (name, run) in hash_variants {
            hash.clear();
            let found = rounds.time(name, || run(&mut hash, &day));
            ensure!(found == top_hash, "{name}: another top of book than the reference's after some message");
            compare(name, &hash, &reference, &day.limits)?;
        }
        for (name, run) in window_variants {
            window.clear();
            let found = rounds.time(name, || run(&mut window, &day));
            ensure!(found == top_hash, "{name}: another top of book than the reference's after some message");
            compare(name, &window, &reference, &day.limits)?;
        }
    }
    let messages_per_packet = day.message_count as f64 / day.packet_ends.len() as f64;
    let bytes_per_order = |store_bytes: usize| store_bytes as f64 / f64::from(day.limits.orders_max);
    if options.json {
        let memory = json!({
            "orders_max": day.limits.orders_max,
            "hash_bytes_per_order": bytes_per_order(hash.store_bytes()),
            "window_bytes_per_order": bytes_per_order(window.store_bytes()),
            "hash_bytes": hash.memory_bytes(),
            "window_bytes": window.memory_bytes(),
        });
        let result = json!({
            "scenario": "book",
            "messages": day.message_count,
            "messages_per_packet": messages_per_packet,
            "live_orders_at_end": orders_live,
            "scattered_ids": options.scattered_ids,
            "memory": memory,
            "variants": rounds.to_json(),
        });
        println!("{result}");
        return Ok(());
    }
    println!(
        "book: {} messages, {messages_per_packet:.1} to a packet, {orders_live} orders live at the end, {} ids, {} rounds",
        day.message_count,
        if options.scattered_ids { "scattered" } else { "dense" },
        options.rounds
    );
    rounds.print(&TARGETS);
    println!("tops of book after every message and all final levels equal the reference's, no faults");
    for (name, store_bytes, bytes) in
        [(HASH, hash.store_bytes(), hash.memory_bytes()), (WINDOW, window.store_bytes(), window.memory_bytes())]
    {
        println!(
            "{name}: {:.1} bytes of order store per order at the configured {} orders; {:.1} MB in all",
            bytes_per_order(store_bytes),
            day.limits.orders_max,
            bytes as f64 / 1e6
        );
    }
    Ok(())
}

/// Prefetches and applies each message immediately.
#[inline(never)]
pub(crate) fn run_plain<S: OrderStore>(books: &mut OrderBooks<S>, day: &SyntheticDay) -> u64 {
    let mut top_hash = 0;
    let mut block = day.bytes.as_slice();
    while let Some(message) = MoldUdp64::next_message(&mut block) {
        prefetch(books, message);
        top_hash = apply(books, message, top_hash);
    }
    top_hash
}

/// Before each message, prefetches the memory of the message [`PREFETCH_DISTANCE`] ahead, also across packets.
#[inline(never)]
pub(crate) fn run_prefetch_in_replay<S: OrderStore>(books: &mut OrderBooks<S>, day: &SyntheticDay) -> u64 {
    let mut block = day.bytes.as_slice();
    let mut prefetch_block = block;
    for message in core::iter::from_fn(|| MoldUdp64::next_message(&mut prefetch_block)).take(PREFETCH_DISTANCE) {
        prefetch(books, message);
    }
    let mut top_hash = 0;
    while let Some(message) = MoldUdp64::next_message(&mut block) {
        if let Some(message) = MoldUdp64::next_message(&mut prefetch_block) {
            prefetch(books, message);
        }
        top_hash = apply(books, message, top_hash);
    }
    top_hash
}

/// Messages between a prefetch and the message that uses the memory.
const PREFETCH_DISTANCE: usize = 8;

/// Prefetches for all messages of a packet, then applies them. A live channel has only the packet that has arrived.
#[inline(never)]
pub(crate) fn run_prefetch_in_packet<S: OrderStore>(books: &mut OrderBooks<S>, day: &SyntheticDay) -> u64 {
    let mut top_hash = 0;
    for packet in day.packets() {
        let mut prefetch_block = packet;
        while let Some(message) = MoldUdp64::next_message(&mut prefetch_block) {
            prefetch(books, message);
        }
        top_hash = apply_packet(books, packet, top_hash);
    }
    top_hash
}

/// Prefetches the message's order, which is the likeliest to miss the caches, and its instrument.
#[inline(always)]
fn prefetch<S: OrderStore>(books: &OrderBooks<S>, message: &[u8]) {
    if let Some(touched) = itch50::target_of(message) {
        if let Some(order_id) = touched.order_reference_number {
            books.prefetch_order(order_id);
        }
        books.prefetch_instrument(InstrumentIndex(u32::from(touched.stock_locate)));
    }
}

#[inline]
fn apply_packet<S: OrderStore>(books: &mut OrderBooks<S>, mut block: &[u8], mut top_hash: u64) -> u64 {
    while let Some(message) = MoldUdp64::next_message(&mut block) {
        top_hash = apply(books, message, top_hash);
    }
    top_hash
}

/// The plain book, message by message.
#[inline(never)]
pub(crate) fn run_reference(books: &mut ReferenceBooks, day: &SyntheticDay) -> u64 {
    let mut top_hash = 0;
    let mut block = day.bytes.as_slice();
    while let Some(message) = MoldUdp64::next_message(&mut block) {
        let Ok(message) = Message::parse(message) else { continue };
        let locate = message.stock_locate();
        match message {
            Message::AddOrder(m) => add_reference(books, m),
            Message::AddOrderMpid(m) => add_reference(books, &m.order),
            Message::OrderExecuted(m) => books.take(locate, m.order_reference_number.get(), m.executed_shares.get()),
            Message::OrderExecutedWithPrice(m) => {
                books.take(locate, m.order_reference_number.get(), m.executed_shares.get());
            }
            Message::OrderCancel(m) => books.take(locate, m.order_reference_number.get(), m.cancelled_shares.get()),
            Message::OrderDelete(m) => {
                books.delete(locate, m.order_reference_number.get());
            }
            Message::OrderReplace(m) => books.replace(
                locate,
                m.original_order_reference_number.get(),
                m.new_order_reference_number.get(),
                price_e9(m.price_e4.get()),
                m.shares.get(),
            ),
            _ => continue,
        }
        top_hash = fold(top_hash, books.top(locate, Side::Bid), books.top(locate, Side::Ask));
    }
    top_hash
}

fn add_reference(books: &mut ReferenceBooks, message: &itch50::AddOrder) {
    books.add(
        message.stock_locate.get(),
        message.order_reference_number.get(),
        side(message.buy_sell_indicator),
        price_e9(message.price_e4.get()),
        message.shares.get(),
    );
}

/// Decodes and applies one message. Returns `top_hash` extended by the top of book after the message.
#[inline]
fn apply<S: OrderStore>(books: &mut OrderBooks<S>, message: &[u8], top_hash: u64) -> u64 {
    let Ok(message) = Message::parse(message) else { return top_hash };
    let instrument = InstrumentIndex(u32::from(message.stock_locate()));
    match message {
        Message::AddOrder(m) => add(books, instrument, m),
        Message::AddOrderMpid(m) => add(books, instrument, &m.order),
        Message::OrderExecuted(m) => {
            let _counted = books.execute(instrument, m.order_reference_number.get(), m.executed_shares.get());
        }
        Message::OrderExecutedWithPrice(m) => {
            let _counted = books.execute(instrument, m.order_reference_number.get(), m.executed_shares.get());
        }
        Message::OrderCancel(m) => {
            let _counted = books.reduce(instrument, m.order_reference_number.get(), m.cancelled_shares.get());
        }
        Message::OrderDelete(m) => {
            let _counted = books.delete(instrument, m.order_reference_number.get());
        }
        Message::OrderReplace(m) => {
            let _counted = books.replace(
                instrument,
                m.original_order_reference_number.get(),
                m.new_order_reference_number.get(),
                price_e9(m.price_e4.get()),
                m.shares.get(),
            );
        }
        _ => return top_hash,
    }
    let view = books.view(instrument);
    fold(top_hash, view.top(Side::Bid), view.top(Side::Ask))
}

#[inline]
fn add<S: OrderStore>(books: &mut OrderBooks<S>, instrument: InstrumentIndex, message: &itch50::AddOrder) {
    let _counted = books.add(
        instrument,
        message.order_reference_number.get(),
        side(message.buy_sell_indicator),
        price_e9(message.price_e4.get()),
        message.shares.get(),
    );
}

#[inline]
fn side(indicator: u8) -> Side {
    if indicator == b'B' { Side::Bid } else { Side::Ask }
}

#[inline]
fn price_e9(price_e4: u32) -> i64 {
    i64::from(price_e4) * 100_000
}

/// Adds a top of book to a hash that depends on every earlier top and on their order.
#[inline]
fn fold(top_hash: u64, bid: Option<Level>, ask: Option<Level>) -> u64 {
    let number = |level: Option<Level>| {
        level.map_or(0, |level| {
            level.price_e9.cast_unsigned() ^ u64::from(level.size) << 40 ^ u64::from(level.order_count) << 20
        })
    };
    top_hash.rotate_left(5) ^ number(bid) ^ number(ask).rotate_left(32)
}

fn compare<S: OrderStore>(
    name: &str,
    books: &OrderBooks<S>,
    reference: &ReferenceBooks,
    limits: &BookLimits,
) -> Result<()> {
    ensure!(books.faults().total() == 0, "{name}: faults in a valid day: {:?}", books.faults());
    ensure!(books.order_count() == reference.order_count(), "{name}: another number of live orders");
    for locate in (0..=u16::MAX).take_while(|locate| u32::from(*locate) < limits.instruments_max) {
        for side in Side::BOTH {
            let levels: Vec<Level> = books.view(InstrumentIndex(u32::from(locate))).levels(side).collect();
            ensure!(levels == reference.levels(locate, side), "{name}: another book for locate {locate}, {side:?}");
        }
    }
    Ok(())
}
