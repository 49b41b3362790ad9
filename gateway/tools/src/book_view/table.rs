//! Books and best bids and offers as text for the terminal.

use std::fmt::{self, Display, Formatter};

use mdgw_feeds::time::{TradingDate, UnixNs};
use mdgw_status::quantity::Count;

use super::{Entry, InstrumentBook, OrderEntry, top::TopChange};
use crate::inspect::text::{ClockNs, decimal};

impl Display for InstrumentBook {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}  number {}  {} ", self.symbol, self.instrument_id, self.feed)?;
        if let (Some(session), Some(sequence)) = (&self.session, self.sequence) {
            write!(f, " {session}, message {}", Count(sequence))?;
        }
        if self.suspect {
            write!(f, ", SUSPECT")?;
        }
        writeln!(f, "\n  {} shares in {} trades", Count(self.volume), Count(self.trades))?;
        match (&self.bid_orders, &self.ask_orders) {
            (Some(bids), Some(asks)) => write_orders(f, bids, asks),
            _ => write_levels(f, &self.bids, &self.asks),
        }
    }
}

fn write_levels(f: &mut Formatter<'_>, bids: &[Entry], asks: &[Entry]) -> fmt::Result {
    writeln!(f, "  {:>8}{:>12}{:>16} | {:<16}{:>12}{:>8}", "orders", "size", "bid", "ask", "size", "orders")?;
    for row in 0..bids.len().max(asks.len()) {
        match bids.get(row) {
            Some((price, size, orders)) => {
                write!(f, "  {:>8}{:>12}{:>16} |", count_or_blank(*orders), Count((*size).into()), Price(*price))?;
            }
            None => write!(f, "  {:36} |", "")?,
        }
        match asks.get(row) {
            Some((price, size, orders)) => {
                writeln!(f, " {:<16}{:>12}{:>8}", Price(*price), Count((*size).into()), count_or_blank(*orders))?;
            }
            None => writeln!(f)?,
        }
    }
    if bids.is_empty() && asks.is_empty() { writeln!(f, "  (empty book)") } else { Ok(()) }
}

fn write_orders(f: &mut Formatter<'_>, bids: &[OrderEntry], asks: &[OrderEntry]) -> fmt::Result {
    writeln!(f, "  {:>16}{:>12}{:>16} | {:<16}{:>12}{:>16}", "order", "size", "bid", "ask", "size", "order")?;
    for row in 0..bids.len().max(asks.len()) {
        match bids.get(row) {
            Some((order, price, size)) => {
                write!(f, "  {order:>16}{:>12}{:>16} |", Count((*size).into()), Price(*price))?;
            }
            None => write!(f, "  {:44} |", "")?,
        }
        match asks.get(row) {
            Some((order, price, size)) => {
                writeln!(f, " {:<16}{:>12}{order:>16}", Price(*price), Count((*size).into()))?;
            }
            None => writeln!(f)?,
        }
    }
    if bids.is_empty() && asks.is_empty() { writeln!(f, "  (empty book)") } else { Ok(()) }
}

impl Display for TopChange<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (date, clock) = (TradingDate::in_utc(UnixNs(self.time_ns)), ClockNs(self.time_ns));
        write!(f, "{date} {clock} {:>12}  {:<8}", self.sequence, self.symbol)?;
        match self.bid {
            Some((price, size, orders)) => {
                write!(f, "{:>8}{:>10}{:>14} |", count_or_blank(orders), Count(size.into()), Price(price))?;
            }
            None => write!(f, "{:>32} |", "-")?,
        }
        match self.ask {
            Some((price, size, orders)) => {
                write!(f, " {:<14}{:>10}{:>8}", Price(price), Count(size.into()), count_or_blank(orders))?;
            }
            None => write!(f, " {:<32}", "-")?,
        }
        writeln!(f, "{}", if self.suspect { "  SUSPECT" } else { "" })
    }
}

/// An order count; empty if the feed does not report it.
fn count_or_blank(orders: u32) -> String {
    if orders == 0 { String::new() } else { Count(orders.into()).to_string() }
}

/// A price in 1e-9, with four decimals, or more if needed.
struct Price(i64);

impl Display for Price {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = decimal(self.0.into(), 9);
        let needed = text.trim_end_matches('0').len();
        let four = text.len().saturating_sub(5);
        f.pad(text.get(..needed.max(four)).unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_have_four_decimals_or_more() {
        for (price_e9, text) in
            [(202_770_000_000, "202.7700"), (0, "0.0000"), (1, "0.000000001"), (-12_345_600_000, "-12.3456")]
        {
            assert_eq!(Price(price_e9).to_string(), text);
        }
    }
}
