//! One record as a table row: name, instrument and content.

use std::fmt::{self, Write};

use dbn::{
    BidAskPair, FlagSet, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, RecordRef, StatMsg, StatType,
    StatusAction, StatusMsg, TradeMsg, UNDEF_PRICE, pretty::fmt_px,
};
use mdgw_feeds::{
    identity::{ChannelId, Sequence, Session},
    time::{TradingDate, UnixNs},
};

/// Column headings.
pub(super) const HEADING: &str = concat!(
    "time (UTC)                    channel session            sequence  index record     act symbol    side",
    "           price       size flags        detail\n"
);

/// The name that a record was published under, and the symbol of its instrument.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowName<'a> {
    pub(super) channel: ChannelId,
    pub(super) session: Session,
    /// Sequence of the input message.
    pub(super) sequence: Sequence,
    /// Index of the record within its message, from 0.
    pub(super) index: u64,
    /// Symbol of the instrument; `None` before its definition is received.
    pub(super) symbol: Option<&'a str>,
}

/// Writes one row.
///
/// # Errors
/// Those of `out`.
pub(super) fn write(name: &RowName<'_>, record: RecordRef<'_>, out: &mut impl Write) -> fmt::Result {
    let RowName { channel, session, sequence, index, symbol } = *name;
    let row = Row::of(record);
    let id = record.header().instrument_id;
    let symbol = symbol.map_or_else(|| format!("#{id}"), str::to_owned);
    let session = format!("{} #{}", session.date, session.restart);
    let (time, side) = (Time(record.header().ts_event), row.side);
    let (kind, action, price, size, flags) = (row.kind, row.action, row.price, row.size, Flags(row.flags).to_string());
    let line = format!(
        "{time:<29} {:>7} {session:<14} {:>12} {index:>6} {kind:<10} {action:<3} {symbol:<9} {side:<4} \
         {price:>15} {size:>10} {flags:<12} {}",
        channel.0, sequence.0, row.detail
    );
    writeln!(out, "{}", line.trim_end())
}

/// Columns of a record as text; empty if the record type has no such field.
#[derive(Debug, Default)]
struct Row {
    kind: &'static str,
    action: String,
    side: &'static str,
    price: String,
    size: String,
    flags: u8,
    detail: String,
}

impl Row {
    fn of(record: RecordRef<'_>) -> Self {
        if let Some(mbo) = record.get::<MboMsg>() {
            let detail = if mbo.order_id == 0 { String::new() } else { format!("order {}", mbo.order_id) };
            Self::action("mbo", (mbo.action, mbo.side), (mbo.price, mbo.size), mbo.flags, detail)
        } else if let Some(trade) = record.get::<TradeMsg>() {
            Self::action("trades", (trade.action, trade.side), (trade.price, trade.size), trade.flags, String::new())
        } else if let Some(mbp) = record.get::<Mbp1Msg>() {
            let detail = best(&mbp.levels[0]);
            Self::action("mbp-1", (mbp.action, mbp.side), (mbp.price, mbp.size), mbp.flags, detail)
        } else if let Some(mbp) = record.get::<Mbp10Msg>() {
            let count = mbp.levels.iter().filter(|level| level.bid_px != UNDEF_PRICE || level.ask_px != UNDEF_PRICE);
            let detail = format!("depth {} {} of {} levels", mbp.depth, best(&mbp.levels[0]), count.count());
            Self::action("mbp-10", (mbp.action, mbp.side), (mbp.price, mbp.size), mbp.flags, detail)
        } else if let Some(status) = record.get::<StatusMsg>() {
            Self { kind: "status", detail: status_of(status), ..Self::default() }
        } else if let Some(definition) = record.get::<InstrumentDefMsg>() {
            let detail = format!("{} number {}", text(definition.raw_symbol()), definition.raw_instrument_id);
            Self { kind: "definition", detail, ..Self::default() }
        } else if let Some(imbalance) = record.get::<ImbalanceMsg>() {
            Self {
                kind: "imbalance",
                side: side_name(imbalance.side),
                price: price(imbalance.ref_price),
                size: imbalance.total_imbalance_qty.to_string(),
                detail: format!("paired {}", imbalance.paired_qty),
                ..Self::default()
            }
        } else if let Some(statistic) = record.get::<StatMsg>() {
            let kind = StatType::try_from(statistic.stat_type);
            let detail = kind.map_or_else(|_| format!("type {}", statistic.stat_type), |kind| format!("{kind:?}"));
            Self { kind: "statistics", price: price(statistic.price), detail, ..Self::default() }
        } else {
            Self { detail: format!("record type {}", record.header().rtype), ..Self::default() }
        }
    }

    fn action(
        kind: &'static str,
        (action, side): (std::ffi::c_char, std::ffi::c_char),
        (price_e9, size): (i64, u32),
        flags: FlagSet,
        detail: String,
    ) -> Self {
        let letter = char::from(action.to_ne_bytes()[0]);
        let action = if letter.is_ascii_graphic() { letter.to_string() } else { "?".to_owned() };
        let (side, price) = (side_name(side), price(price_e9));
        Self { kind, action, side, price, size: size.to_string(), flags: flags.raw(), detail }
    }
}

fn best(level: &BidAskPair) -> String {
    let side = |price_e9: i64, size: u32| match price_e9 {
        UNDEF_PRICE => "none".to_owned(),
        price_e9 => format!("{} x {size}", price(price_e9)),
    };
    format!("bid {}, ask {}", side(level.bid_px, level.bid_sz), side(level.ask_px, level.ask_sz))
}

fn status_of(status: &StatusMsg) -> String {
    let action = StatusAction::try_from(status.action);
    let mut text = action.map_or_else(|_| format!("action {}", status.action), |action| format!("{action:?}"));
    let states = [
        (status.is_trading, "trading"),
        (status.is_quoting, "quoting"),
        (status.is_short_sell_restricted, "short sale restricted"),
    ];
    for (state, name) in states {
        match char::from(state.to_ne_bytes()[0]) {
            'Y' => text.push_str(&format!(", {name}")),
            'N' => text.push_str(&format!(", not {name}")),
            _ => {}
        }
    }
    text
}

fn side_name(side: std::ffi::c_char) -> &'static str {
    match side.to_ne_bytes()[0] {
        b'B' => "bid",
        b'A' => "ask",
        _ => "",
    }
}

/// Price as a decimal with at least two decimals and no other trailing zeros; empty if the price is undefined.
fn price(price_e9: i64) -> String {
    if price_e9 == UNDEF_PRICE {
        return String::new();
    }
    let all = fmt_px(price_e9);
    let cents = all.find('.').map_or(all.len(), |point| point + 3);
    let kept = all.trim_end_matches('0').len().max(cents.min(all.len()));
    all[..kept].to_owned()
}

fn text(symbol: dbn::Result<&str>) -> &str {
    symbol.unwrap_or("?")
}

/// Nanoseconds since 1970 as date and time, UTC.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == u64::MAX {
            return f.pad("-");
        }
        let (second, nanosecond) = (self.0 / 1_000_000_000 % 86_400, self.0 % 1_000_000_000);
        let date = TradingDate::in_utc(UnixNs(self.0));
        f.pad(&format!("{date} {:02}:{:02}:{:02}.{nanosecond:09}", second / 3_600, second / 60 % 60, second % 60))
    }
}

/// Names of the DBN flags, separated by `|`.
struct Flags(u8);

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(7, "LAST"), (6, "TOB"), (5, "SNAPSHOT"), (4, "MBP"), (3, "BAD_TIME"), (2, "SUSPECT")];
        let mut separator = "";
        for (_, name) in letters.into_iter().filter(|(bit, _)| self.0 >> bit & 1 == 1) {
            write!(f, "{separator}{name}")?;
            separator = "|";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dbn::{RecordHeader, rtype};
    use expect_test::expect;
    use mdgw_feeds::identity::Feed;

    use super::*;

    fn name(index: u64, symbol: Option<&str>) -> RowName<'_> {
        let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
        let session = Session { feed: Feed::NasdaqItch, date, restart: 0 };
        RowName { channel: ChannelId(1), session, sequence: Sequence(1_234_567), index, symbol }
    }

    #[test]
    fn rows_align_with_their_heading() {
        let ts_event = 1_548_858_600_000_000_007;
        let (price, order_id) = (189_250_000_000, 42);
        let mbo = MboMsg {
            hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 6155, ts_event),
            order_id,
            price,
            size: 300,
            flags: FlagSet::new(0x84),
            action: b'A'.cast_signed(),
            side: b'B'.cast_signed(),
            ..MboMsg::default()
        };
        let pair = BidAskPair { bid_px: price, bid_sz: 300, ask_px: UNDEF_PRICE, ..BidAskPair::default() };
        let mbp = Mbp1Msg {
            hd: RecordHeader::new::<Mbp1Msg>(rtype::MBP_1, 2, 6155, ts_event),
            price: 12_345_600_000,
            size: 7,
            action: b'T'.cast_signed(),
            side: b'N'.cast_signed(),
            levels: [pair],
            ..Mbp1Msg::default()
        };
        let status = StatusMsg {
            hd: RecordHeader::new::<StatusMsg>(rtype::STATUS, 2, 6155, ts_event),
            action: StatusAction::Trading as u16,
            is_trading: b'Y'.cast_signed(),
            is_quoting: b'N'.cast_signed(),
            ..StatusMsg::default()
        };
        let mut text = HEADING.to_owned();
        write(&name(0, Some("QQQ")), RecordRef::from(&mbo), &mut text).unwrap();
        write(&name(1, None), RecordRef::from(&mbp), &mut text).unwrap();
        write(&name(2, Some("QQQ")), RecordRef::from(&status), &mut text).unwrap();
        expect![[r#"
            time (UTC)                    channel session            sequence  index record     act symbol    side           price       size flags        detail
            2019-01-30 14:30:00.000000007       1 2019-01-30 #0       1234567      0 mbo        A   QQQ       bid           189.25        300 LAST|SUSPECT order 42
            2019-01-30 14:30:00.000000007       1 2019-01-30 #0       1234567      1 mbp-1      T   #6155                  12.3456          7              bid 189.25 x 300, ask none
            2019-01-30 14:30:00.000000007       1 2019-01-30 #0       1234567      2 status         QQQ                                                    Trading, trading, not quoting
        "#]].assert_eq(&text);
    }

    #[test]
    fn prices_are_decimals_with_cents() {
        let texts = [189_250_000_000, 1, 5_000_000_000, -1_500_000_000, UNDEF_PRICE].map(price);
        assert_eq!(texts, ["189.25", "0.000000001", "5.00", "-1.50", ""]);
    }
}
