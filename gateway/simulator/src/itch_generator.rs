//! A synthetic Nasdaq session: ITCH 5.0 messages from a seed, in a realistic mix, valid at every point.
//!
//! **What is realistic.** About 43 % of the messages add orders, 40 % delete, 8 % replace and 5 % execute them. The
//! rest reduce orders, report trades against hidden orders, or report auction imbalances. Stocks are drawn by Zipf's
//! law (exponent 1). Messages come in bursts, within microseconds of each other and mostly about one stock. Three of
//! four orders that are removed are among the latest of their stock. The others are drawn from all of its orders, so
//! that a few live all day. Prices lie near a fair value that drifts within the spread: most within a few cents of it,
//! some a dollar away.
//!
//! **What is valid.** The day begins with the system events and the stock directory, and ends with the system events.
//! Every order that a message names is live and belongs to that stock. No message removes more than the order's
//! remaining size. No book is ever locked or crossed. So if a book reports a fault in this stream, the fault is the
//! book's.
//!
//! **What is simplified.** An execution takes the better of a few orders of the stock, not always the best one. There
//! are no auctions and no halts.
//!
//! Memory grows with the live orders only, whatever the number of messages.

use std::io::{self, Write};

use mdgw_captures::random::{Random, mix};
use mdgw_feeds::transport::moldudp64::{self, MoldSession, PacketWriter};
use mdgw_wire::identity::Sequence;

/// Parameters of a synthetic session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItchDay {
    /// The same seed generates the same session.
    pub seed: u64,
    /// Number of messages; a session is never shorter than its directory.
    pub message_count: u64,
    /// Number of stocks; their locates begin at 1. At most 65,535.
    pub stock_count: u16,
    /// Live orders that the session grows to and then keeps.
    pub live_orders: u32,
    /// Pattern of order ids.
    pub order_ids: OrderIds,
    /// Mean time between bursts, ns.
    pub burst_interval_ns: u64,
    /// MoldUDP64 session name in its packets.
    pub session: MoldSession,
}

/// Pattern of order ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderIds {
    /// 1, 2, 3 and so on, in the order of their messages, as Nasdaq assigns them.
    Dense,
    /// Spread over all 64 bits without visible pattern: the same session under other ids.
    Scattered,
}

impl Default for ItchDay {
    fn default() -> Self {
        Self {
            seed: 1,
            message_count: 20_000_000,
            stock_count: 8_000,
            live_orders: 500_000,
            order_ids: OrderIds::Dense,
            burst_interval_ns: 10_000,
            session: *b"MDGWSIM001",
        }
    }
}

/// Generates the messages of a session, one after the other.
#[derive(Debug)]
pub struct ItchGenerator {
    day: ItchDay,
    random: Random,
    /// Messages generated so far.
    generated: u64,
    time_ns: u64,
    /// Messages left in the current burst, and the stock of the burst.
    burst_left: u64,
    burst_stock: usize,
    stocks: Vec<Stock>,
    /// Zipf distribution: `cumulative[rank]` is the share of all ranks up to this one, as a fraction of 2^32.
    cumulative: Vec<u32>,
    orders: Vec<Order>,
    orders_free: Vec<u32>,
    live: u32,
    orders_added: u64,
    matches: u64,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    id: u64,
    stock: u16,
    tick: u16,
    size: u32,
    is_bid: bool,
}

/// One stock. Its prices lie on a ladder of [`TICKS`] ticks of one cent.
#[derive(Clone, Debug)]
struct Stock {
    base_e4: u32,
    fair: u16,
    /// Live orders, the latest towards the end.
    orders: Vec<u32>,
    order_counts: Box<[u32; TICKS]>,
    bids: Ticks,
    asks: Ticks,
}

/// Ticks on a ladder.
const TICKS: usize = 1_024;
const TICK_MAX: u16 = 1_023;
const TICK_E4: u32 = 100;

/// Bit set: the ticks of one side that have orders.
#[derive(Clone, Debug, Default)]
struct Ticks([u64; TICKS / 64]);

impl ItchGenerator {
    /// Starts a session at its first message.
    #[must_use]
    pub fn new(day: ItchDay) -> Self {
        let mut random = Random::new(day.seed);
        let stocks: Vec<Stock> = (0..day.stock_count).map(|_| Stock::new(&mut random)).collect();
        Self {
            day,
            random,
            generated: 0,
            time_ns: START_NS,
            burst_left: 0,
            burst_stock: 0,
            stocks,
            cumulative: zipf(day.stock_count),
            orders: Vec::with_capacity(day.live_orders as usize + 1),
            orders_free: Vec::new(),
            live: 0,
            orders_added: 0,
            matches: 0,
        }
    }

    /// Replaces the content of `out` by the next message. Returns its time in ns since midnight; `None` after the last
    /// message.
    pub fn next_message(&mut self, out: &mut Vec<u8>) -> Option<u64> {
        out.clear();
        let directory = 2 * u64::from(self.day.stock_count);
        let head = OPENING.len() as u64 + directory;
        let count = self.day.message_count.max(head + CLOSING.len() as u64);
        let closing = count - CLOSING.len() as u64;
        match self.generated {
            0 => self.system_event(out, OPENING[0]),
            generated if generated <= directory => self.directory_entry(out, generated - 1),
            generated if generated < head => {
                self.system_event(out, OPENING[usize::try_from(generated - directory).ok()?])
            }
            generated if generated < closing => self.market_message(out),
            generated if generated < count => {
                self.time_ns += CLOSING_INTERVAL_NS;
                self.system_event(out, CLOSING[usize::try_from(generated - closing).ok()?]);
            }
            _ => return None,
        }
        self.generated += 1;
        Some(self.time_ns)
    }

    /// Messages generated so far.
    #[must_use]
    pub fn generated(&self) -> u64 {
        self.generated
    }

    /// Live orders now.
    #[must_use]
    pub fn live_orders(&self) -> u32 {
        self.live
    }

    fn system_event(&self, out: &mut Vec<u8>, code: u8) {
        self.head(out, b'S', 0);
        out.push(code);
    }

    /// Stock directory, then trading action, stock by stock.
    fn directory_entry(&mut self, out: &mut Vec<u8>, index: u64) {
        self.time_ns += 1_000;
        let stock = usize::try_from(index / 2).unwrap_or(0);
        if index.is_multiple_of(2) {
            self.head(out, b'R', stock);
            out.extend_from_slice(&symbol(stock));
            out.extend_from_slice(b"QN");
            out.extend_from_slice(&100_u32.to_be_bytes());
            out.extend_from_slice(b"NCZ PNN1N");
            out.extend_from_slice(&0_u32.to_be_bytes());
            out.push(b'N');
        } else {
            self.head(out, b'H', stock);
            out.extend_from_slice(&symbol(stock));
            out.extend_from_slice(b"T     ");
        }
    }

    fn market_message(&mut self, out: &mut Vec<u8>) {
        let stock = self.advance();
        let roll = self.random.unit();
        // The share of deletions keeps the number of live orders near the configured one.
        let surplus = f64::from(self.live) / f64::from(self.day.live_orders.max(1));
        let delete = if surplus < 1.0 { SHARE_DELETE - SHARE_RAMP } else { SHARE_DELETE + SHARE_RAMP };
        let add = SHARE_ADD + SHARE_DELETE - delete;
        let mut shares = [add, delete, SHARE_REPLACE, SHARE_EXECUTE, SHARE_REDUCE].into_iter();
        let mut threshold = 0.0;
        let kind = shares.position(|share| {
            threshold += share;
            roll < threshold
        });
        if self.stocks[stock].orders.is_empty() {
            return if kind.is_none() { self.hidden_trade(out, stock) } else { self.add(out, stock) };
        }
        match kind {
            Some(0) => self.add(out, stock),
            Some(1) => self.delete(out, stock),
            Some(2) => self.replace(out, stock),
            Some(3) => self.execute(out, stock),
            Some(4) => self.reduce(out, stock),
            _ if self.random.chance(0.2) => self.imbalance(out, stock),
            _ => self.hidden_trade(out, stock),
        }
    }

    /// Advances the time and draws the stock of the next message.
    fn advance(&mut self) -> usize {
        if self.burst_left == 0 {
            self.time_ns += self.random.exponential(self.day.burst_interval_ns);
            self.burst_left = 1 + self.random.exponential(BURST_MESSAGES_MEAN);
            self.burst_stock = self.draw_stock();
        } else {
            self.time_ns += 100 + self.random.exponential(BURST_STEP_NS_MEAN);
        }
        self.burst_left -= 1;
        if self.random.chance(0.3) { self.draw_stock() } else { self.burst_stock }
    }

    fn draw_stock(&mut self) -> usize {
        let share = u32::try_from(self.random.below(1 << 32)).unwrap_or(u32::MAX);
        let rank = self.cumulative.partition_point(|cumulative| *cumulative <= share);
        // Spreads the busy stocks over the locates; the multiplier shares no factor with any count up to 65,535.
        rank.min(self.stocks.len() - 1) * 65_537 % self.stocks.len()
    }

    fn add(&mut self, out: &mut Vec<u8>, stock: usize) {
        let is_bid = self.random.chance(0.5);
        let tick = self.draw_tick(stock, is_bid);
        let size = self.draw_size();
        let id = self.insert(stock, is_bid, tick, size);
        let with_attribution = self.random.chance(0.02);
        self.head(out, if with_attribution { b'F' } else { b'A' }, stock);
        out.extend_from_slice(&id.to_be_bytes());
        out.push(if is_bid { b'B' } else { b'S' });
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&symbol(stock));
        out.extend_from_slice(&self.price_e4(stock, tick).to_be_bytes());
        if with_attribution {
            out.extend_from_slice(b"MDGW");
        }
    }

    fn delete(&mut self, out: &mut Vec<u8>, stock: usize) {
        let position = self.draw_order(stock);
        let order = self.remove_order(stock, position);
        self.head(out, b'D', stock);
        out.extend_from_slice(&order.id.to_be_bytes());
    }

    fn replace(&mut self, out: &mut Vec<u8>, stock: usize) {
        let position = self.draw_order(stock);
        let old = self.remove_order(stock, position);
        let tick = self.draw_tick(stock, old.is_bid);
        let size = if self.random.chance(0.5) { old.size } else { self.draw_size() };
        let id = self.insert(stock, old.is_bid, tick, size);
        self.head(out, b'U', stock);
        out.extend_from_slice(&old.id.to_be_bytes());
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&self.price_e4(stock, tick).to_be_bytes());
    }

    fn execute(&mut self, out: &mut Vec<u8>, stock: usize) {
        let mut position = self.draw_order(stock);
        for _ in 0..7 {
            let other = self.draw_order(stock);
            if self.is_closer_to_fair(stock, other, position) {
                position = other;
            }
        }
        let is_whole = self.random.chance(0.6);
        let (order, size) = self.take_size(stock, position, is_whole);
        let with_price = self.random.chance(0.02);
        self.matches += 1;
        self.head(out, if with_price { b'C' } else { b'E' }, stock);
        out.extend_from_slice(&order.id.to_be_bytes());
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&self.matches.to_be_bytes());
        if with_price {
            out.push(b'Y');
            out.extend_from_slice(&self.price_e4(stock, order.tick).to_be_bytes());
        }
    }

    fn reduce(&mut self, out: &mut Vec<u8>, stock: usize) {
        let position = self.draw_order(stock);
        let index = self.stocks[stock].orders[position];
        if self.orders[index as usize].size < 2 {
            return self.hidden_trade(out, stock);
        }
        let (order, size) = self.take_size(stock, position, false);
        self.head(out, b'X', stock);
        out.extend_from_slice(&order.id.to_be_bytes());
        out.extend_from_slice(&size.to_be_bytes());
    }

    fn hidden_trade(&mut self, out: &mut Vec<u8>, stock: usize) {
        self.matches += 1;
        let size = self.draw_size();
        self.head(out, b'P', stock);
        out.extend_from_slice(&0_u64.to_be_bytes());
        out.push(b'B');
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&symbol(stock));
        out.extend_from_slice(&self.price_e4(stock, self.stocks[stock].fair).to_be_bytes());
        out.extend_from_slice(&self.matches.to_be_bytes());
    }

    fn imbalance(&mut self, out: &mut Vec<u8>, stock: usize) {
        let paired = u64::from(self.draw_size()) * 10;
        let price = self.price_e4(stock, self.stocks[stock].fair).to_be_bytes();
        self.head(out, b'I', stock);
        out.extend_from_slice(&paired.to_be_bytes());
        out.extend_from_slice(&u64::from(self.draw_size()).to_be_bytes());
        out.push(b'B');
        out.extend_from_slice(&symbol(stock));
        out.extend_from_slice(&price);
        out.extend_from_slice(&price);
        out.extend_from_slice(&price);
        out.extend_from_slice(b"CL");
    }

    /// Writes the fields that every message begins with: type, locate, tracking number and time.
    fn head(&self, out: &mut Vec<u8>, message_type: u8, stock: usize) {
        let locate = if message_type == b'S' { 0 } else { u16::try_from(stock + 1).unwrap_or(u16::MAX) };
        out.push(message_type);
        out.extend_from_slice(&locate.to_be_bytes());
        out.extend_from_slice(&0_u16.to_be_bytes());
        out.extend_from_slice(&self.time_ns.to_be_bytes()[2..]);
    }

    fn price_e4(&self, stock: usize, tick: u16) -> u32 {
        self.stocks[stock].base_e4 + u32::from(tick) * TICK_E4
    }

    /// Draws a price on that side that neither locks nor crosses the book.
    fn draw_tick(&mut self, stock: usize, is_bid: bool) -> u16 {
        let distance = match self.random.unit() {
            roll if roll < 0.4 => 0,
            roll if roll < 0.9 => 1 + self.random.exponential(4).min(60),
            _ => 1 + self.random.below(120),
        };
        let distance = u16::try_from(distance).unwrap_or(0);
        let stock = &mut self.stocks[stock];
        let (best_bid, best_ask) = (stock.best_bid(), stock.best_ask());
        // The fair value drifts, but never past the resting orders.
        let wandered = stock.fair.saturating_add_signed(if self.random.chance(0.5) { 1 } else { -1 });
        stock.fair = wandered.clamp(best_bid.max(FAIR_MIN), best_ask.min(FAIR_MAX));
        if is_bid { (stock.fair - distance).min(best_ask - 1) } else { (stock.fair + distance).max(best_bid + 1) }
    }

    fn draw_size(&mut self) -> u32 {
        let size = if self.random.chance(0.6) { 100 } else { 1 + self.random.below(900) };
        u32::try_from(size).unwrap_or(1)
    }

    /// Draws one of the stock's orders, mostly one of the latest.
    fn draw_order(&mut self, stock: usize) -> usize {
        let count = self.stocks[stock].orders.len();
        let back = if self.random.chance(0.75) {
            self.random.exponential(RECENT_ORDERS_MEAN)
        } else {
            self.random.below(count as u64)
        };
        count - 1 - usize::try_from(back).unwrap_or(0).min(count - 1)
    }

    fn is_closer_to_fair(&self, stock: usize, position: usize, than: usize) -> bool {
        let stock = &self.stocks[stock];
        let distance = |position: usize| self.orders[stock.orders[position] as usize].tick.abs_diff(stock.fair);
        distance(position) < distance(than)
    }

    fn insert(&mut self, stock: usize, is_bid: bool, tick: u16, size: u32) -> u64 {
        self.orders_added += 1;
        let id = match self.day.order_ids {
            OrderIds::Dense => self.orders_added,
            OrderIds::Scattered => mix(self.orders_added ^ self.day.seed << 40),
        };
        let order = Order { id, stock: u16::try_from(stock).unwrap_or(0), tick, size, is_bid };
        let index = match self.orders_free.pop() {
            Some(index) => {
                self.orders[index as usize] = order;
                index
            }
            None => {
                self.orders.push(order);
                u32::try_from(self.orders.len() - 1).expect("fewer live orders than 2^32")
            }
        };
        let stock = &mut self.stocks[stock];
        stock.orders.push(index);
        let count = &mut stock.order_counts[usize::from(tick)];
        *count += 1;
        if *count == 1 {
            stock.side_mut(is_bid).set(tick);
        }
        self.live += 1;
        id
    }

    /// Removes an order and keeps the remaining ones nearly in age order: its position is filled with an order that is
    /// not much younger.
    fn remove_order(&mut self, stock: usize, position: usize) -> Order {
        let stock = &mut self.stocks[stock];
        let last = stock.orders.len() - 1;
        let index = if last - position <= 64 {
            stock.orders.remove(position)
        } else {
            let (near, index) = (position + 32, stock.orders[position]);
            stock.orders[position] = stock.orders[near];
            stock.orders[near] = stock.orders[last - 32];
            stock.orders.remove(last - 32);
            index
        };
        let order = self.orders[index as usize];
        self.orders_free.push(index);
        let count = &mut stock.order_counts[usize::from(order.tick)];
        *count -= 1;
        if *count == 0 {
            stock.side_mut(order.is_bid).unset(order.tick);
        }
        self.live -= 1;
        order
    }

    /// Reduces an order by part of its size, or all of it. Returns the order as it was, and the size removed.
    fn take_size(&mut self, stock: usize, position: usize, is_whole: bool) -> (Order, u32) {
        let index = self.stocks[stock].orders[position] as usize;
        let order = self.orders[index];
        debug_assert_eq!(usize::from(order.stock), stock);
        if is_whole || order.size < 2 {
            return (self.remove_order(stock, position), order.size);
        }
        let size = 1 + u32::try_from(self.random.below(u64::from(order.size) - 1)).unwrap_or(0);
        self.orders[index].size -= size;
        (order, size)
    }
}

/// 04:00 in New York.
const START_NS: u64 = 4 * 3_600 * 1_000_000_000;
const CLOSING_INTERVAL_NS: u64 = 1_000_000_000;
/// Start of messages; after the directory: start of system hours and of market hours.
const OPENING: [u8; 3] = *b"OSQ";
/// End of market hours, of system hours and of messages.
const CLOSING: [u8; 3] = *b"MEC";

const SHARE_ADD: f64 = 0.43;
const SHARE_DELETE: f64 = 0.40;
const SHARE_REPLACE: f64 = 0.08;
const SHARE_EXECUTE: f64 = 0.05;
const SHARE_REDUCE: f64 = 0.015;
/// Share of the messages that are additions instead of deletions while there are too few live orders, and deletions
/// instead of additions while there are too many.
const SHARE_RAMP: f64 = 0.06;

const BURST_MESSAGES_MEAN: u64 = 8;
const BURST_STEP_NS_MEAN: u64 = 900;
const RECENT_ORDERS_MEAN: u64 = 6;

/// Least distance of the fair value from the ends of the ladder, so that every drawn distance fits.
const FAIR_MIN: u16 = 200;
const FAIR_MAX: u16 = TICK_MAX - 200;

impl Stock {
    fn new(random: &mut Random) -> Self {
        let base_e4 = u32::try_from(10_000 * (1 + random.below(300))).unwrap_or(10_000);
        Self {
            base_e4,
            fair: u16::try_from(TICKS / 2).unwrap_or(FAIR_MIN),
            orders: Vec::new(),
            order_counts: Box::new([0; TICKS]),
            bids: Ticks::default(),
            asks: Ticks::default(),
        }
    }

    fn side_mut(&mut self, is_bid: bool) -> &mut Ticks {
        if is_bid { &mut self.bids } else { &mut self.asks }
    }

    /// The highest bid; without bids, the lowest tick of the ladder.
    fn best_bid(&self) -> u16 {
        let words = self.bids.0.iter().enumerate().rev();
        words
            .filter(|(_, word)| **word != 0)
            .map(|(index, word)| tick(index, 63 - word.leading_zeros()))
            .next()
            .unwrap_or(0)
    }

    /// The lowest ask; without asks, the highest tick of the ladder.
    fn best_ask(&self) -> u16 {
        let words = self.asks.0.iter().enumerate();
        words
            .filter(|(_, word)| **word != 0)
            .map(|(index, word)| tick(index, word.trailing_zeros()))
            .next()
            .unwrap_or(TICK_MAX)
    }
}

impl Ticks {
    fn set(&mut self, tick: u16) {
        self.0[usize::from(tick / 64)] |= 1 << (tick % 64);
    }

    fn unset(&mut self, tick: u16) {
        self.0[usize::from(tick / 64)] &= !(1 << (tick % 64));
    }
}

fn tick(word: usize, bit: u32) -> u16 {
    u16::try_from(word * 64).unwrap_or(0) + u16::try_from(bit).unwrap_or(0)
}

/// Four letters, padded with blanks.
fn symbol(stock: usize) -> [u8; 8] {
    let mut symbol = *b"        ";
    let mut rest = stock;
    for place in symbol[..4].iter_mut().rev() {
        *place = b'A' + u8::try_from(rest % 26).unwrap_or(0);
        rest /= 26;
    }
    symbol
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 2^32, held at the maximum")]
fn zipf(count: u16) -> Vec<u32> {
    let total: f64 = (1..=u32::from(count)).map(|rank| 1.0 / f64::from(rank)).sum();
    (1..=u32::from(count))
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / f64::from(rank);
            Some((*sum / total * f64::from(u32::MAX)) as u32)
        })
        .collect()
}

/// Writes the rest of the session as a day file: each message preceded by its length, two bytes big-endian. Returns the
/// number of messages written.
///
/// # Errors
/// Errors of the writer.
pub fn write_day_file(generator: &mut ItchGenerator, writer: &mut impl Write) -> io::Result<u64> {
    let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
    let mut count = 0;
    while generator.next_message(&mut message).is_some() {
        writer.write_all(&u16::try_from(message.len()).map_err(io::Error::other)?.to_be_bytes())?;
        writer.write_all(&message)?;
        count += 1;
    }
    Ok(count)
}

const MESSAGE_BYTES_MAX: usize = 64;

/// A session as MoldUDP64 packets: messages close together in time share a packet, as far as they fit.
#[derive(Debug)]
pub struct ItchPackets {
    generator: ItchGenerator,
    session: MoldSession,
    next: Sequence,
    /// The first message of the next packet, generated ahead.
    message: Vec<u8>,
    message_time_ns: Option<u64>,
}

/// Content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Send time: the time of its last message, in ns since midnight.
    pub time_ns: u64,
    /// Sequence of its first message.
    pub first: Sequence,
    /// Number of messages.
    pub count: u16,
}

/// Largest packet, bytes.
pub const PACKET_BYTES_MAX: usize = 1_400;

/// Messages further apart than this don't share a packet.
const MESSAGE_INTERVAL_NS_MAX: u64 = 4_000;

impl ItchPackets {
    /// Starts with the generator's next message, which gets sequence 1.
    #[must_use]
    pub fn new(mut generator: ItchGenerator, session: MoldSession) -> Self {
        let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let message_time_ns = generator.next_message(&mut message);
        Self { generator, session, next: Sequence(1), message, message_time_ns }
    }

    /// Replaces the content of `out` by the next packet. `None` after the last message.
    pub fn next_packet(&mut self, out: &mut Vec<u8>) -> Option<PacketInfo> {
        let first = self.next;
        let mut time_ns = self.message_time_ns?;
        let mut writer = PacketWriter::begin(out, self.session, first, PACKET_BYTES_MAX);
        while let Some(message_time_ns) = self.message_time_ns
            && message_time_ns - time_ns <= MESSAGE_INTERVAL_NS_MAX
            && writer.push(&self.message)
        {
            time_ns = message_time_ns;
            self.message_time_ns = self.generator.next_message(&mut self.message);
        }
        let count = writer.finish();
        self.next = first.plus(u64::from(count));
        Some(PacketInfo { time_ns, first, count })
    }

    /// Replaces the content of `out` by the End of Session packet.
    pub fn write_end_of_session(&self, out: &mut Vec<u8>) {
        moldudp64::write_end_of_session(out, self.session, self.next);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mdgw_feeds::{
        book::{BookLimits, InstrumentIndex, Side, orders::OrderBooks},
        transport::{PacketKind, Transport, moldudp64::MoldUdp64},
        venue::nasdaq::itch50,
    };

    use super::*;

    const DAY: ItchDay = ItchDay {
        seed: 5,
        message_count: 300_000,
        stock_count: 50,
        live_orders: 5_000,
        order_ids: OrderIds::Scattered,
        burst_interval_ns: 10_000,
        session: *b"MDGWSIM001",
    };

    fn u32_at(message: &[u8], offset: usize) -> u32 {
        u32::from_be_bytes(message[offset..offset + 4].try_into().unwrap())
    }

    fn u64_at(message: &[u8], offset: usize) -> u64 {
        u64::from_be_bytes(message[offset..offset + 8].try_into().unwrap())
    }

    #[test]
    fn a_synthetic_day_is_valid_at_every_message_with_the_documented_mix() {
        let mut generator = ItchGenerator::new(DAY);
        let limits =
            BookLimits { instruments_max: 51, orders_max: 10_000, levels_max: 10_000, ..BookLimits::default() };
        let mut books: OrderBooks = OrderBooks::new(limits);
        let mut message = Vec::new();
        let mut counts = BTreeMap::new();
        let mut last_ns = 0;
        while let Some(time_ns) = generator.next_message(&mut message) {
            assert!(itch50::has_known_length(&message), "{message:?}");
            assert!(time_ns >= last_ns);
            last_ns = time_ns;
            let kind = message[0];
            *counts.entry(kind).or_insert(0_u32) += 1;
            let instrument = InstrumentIndex(u32::from(u16::from_be_bytes([message[1], message[2]])));
            if !b"AFEXCDU".contains(&kind) {
                continue;
            }
            let id = u64_at(&message, 11);
            match kind {
                b'A' | b'F' => {
                    let side = if message[19] == b'B' { Side::Bid } else { Side::Ask };
                    let price = i64::from(u32_at(&message, 32)) * 100_000;
                    books.add(instrument, id, side, price, u32_at(&message, 20)).map(|_| ())
                }
                b'E' | b'C' => books.execute(instrument, id, u32_at(&message, 19)).map(|_| ()),
                b'X' => books.reduce(instrument, id, u32_at(&message, 19)).map(|_| ()),
                b'D' => books.delete(instrument, id).map(|_| ()),
                _ => {
                    let price = i64::from(u32_at(&message, 31)) * 100_000;
                    let new_id = u64_at(&message, 19);
                    books.replace(instrument, id, new_id, price, u32_at(&message, 27)).map(|_| ())
                }
            }
            .expect("valid");
            let view = books.view(instrument);
            if let (Some(bid), Some(ask)) = (view.top(Side::Bid), view.top(Side::Ask)) {
                assert!(bid.price_e9 < ask.price_e9, "neither locked nor crossed");
            }
        }
        assert_eq!(books.faults().total(), 0);
        assert_eq!(books.order_count(), generator.live_orders() as usize);
        assert_eq!(generator.generated(), DAY.message_count);
        let share = |kinds: &[u8]| {
            kinds.iter().filter_map(|kind| counts.get(kind)).sum::<u32>() as f64 / DAY.message_count as f64
        };
        for (kinds, expected) in [(&b"AF"[..], 0.43), (b"D", 0.40), (b"U", 0.08), (b"EC", 0.05)] {
            assert!((share(kinds) - expected).abs() < 0.02, "{kinds:?}: {}", share(kinds));
        }
        assert_eq!((counts[&b'R'], counts[&b'H'], counts[&b'S']), (50, 50, 6));
    }

    #[test]
    fn a_synthetic_day_depends_only_on_its_seed() {
        let day_file = |day| {
            let mut bytes = Vec::new();
            write_day_file(&mut ItchGenerator::new(day), &mut bytes).unwrap();
            bytes
        };
        let day = ItchDay { message_count: 5_000, ..DAY };
        assert_eq!(day_file(day), day_file(day));
        assert_ne!(day_file(day), day_file(ItchDay { seed: 6, ..day }));
    }

    #[test]
    fn packets_carry_every_message_once_and_in_order() {
        let day = ItchDay { message_count: 20_000, ..DAY };
        let mut expected = Vec::new();
        write_day_file(&mut ItchGenerator::new(day), &mut expected).unwrap();
        let mut packets = ItchPackets::new(ItchGenerator::new(day), *b"MDGW000001");
        let (mut packet, mut bytes, mut next, mut largest) = (Vec::new(), Vec::new(), Sequence(1), 0);
        while let Some(info) = packets.next_packet(&mut packet) {
            let parsed = MoldUdp64::parse(&packet).unwrap();
            assert_eq!((parsed.kind, parsed.first, parsed.count), (PacketKind::Messages, next, u32::from(info.count)));
            assert!(packet.len() <= PACKET_BYTES_MAX);
            next = parsed.next();
            largest = largest.max(info.count);
            bytes.extend_from_slice(parsed.messages);
        }
        assert!(bytes == expected);
        assert!(largest > 8, "bursts share packets: {largest}");
        packets.write_end_of_session(&mut packet);
        assert_eq!(MoldUdp64::parse(&packet).unwrap().kind, PacketKind::EndOfSession);
    }
}
