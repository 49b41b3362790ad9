//! Vectors written by hand from the specifications' tables, one for each message type of TOPS and DEEP, and invalid
//! messages.

use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::{admin, deep, tops};
use crate::venue::wire::FieldList;
use mdgw_wire::drop_reason::DropReason;

/// 2016-08-23 19:30:32.572716 UTC.
const TIME: [u8; 8] = 1_471_980_632_572_716_000_i64.to_le_bytes();
const SYMBOL: &[u8] = b"ZIEXT   ";
const PRICE: [u8; 8] = 990_500_i64.to_le_bytes();

fn listed(name: &str, message: &impl FieldList) -> String {
    let mut listed = name.to_owned();
    message.fields(&mut |name, value| listed.push_str(&format!(" {name}={value}")));
    listed
}

fn tops(bytes: &[u8]) -> Result<String, DropReason> {
    tops::Message::parse(bytes).map(|message| listed(message.name(), &message))
}

fn deep(bytes: &[u8]) -> Result<String, DropReason> {
    deep::Message::parse(bytes).map(|message| listed(message.name(), &message))
}

/// Both feeds decode the message to these fields; `TIME` and `SYMBOL` are written `@` and `$`.
#[track_caller]
fn check_both(parts: &[&[u8]], expected: &str) {
    let expected = spelled_out(expected);
    assert_eq!(tops(&parts.concat()), Ok(expected.clone()));
    assert_eq!(deep(&parts.concat()), Ok(expected));
}

fn spelled_out(expected: &str) -> String {
    expected.replace('@', "timestamp=1471980632572716000").replace('$', "symbol=\"ZIEXT\"")
}

#[test]
fn administrative_messages_decode_in_both_feeds() {
    check_both(&[b"S", b"R", &TIME], "SystemEvent system_event='R' @");
    check_both(
        &[b"D", &[0x80], &TIME, SYMBOL, &100_u32.to_le_bytes(), &PRICE, &[1]],
        "SecurityDirectory flags=0x80 @ $ round_lot_size=100 adjusted_poc_price=990500 luld_tier=1",
    );
    check_both(&[b"H", b"H", &TIME, SYMBOL, b"T1  "], "TradingStatus trading_status='H' @ $ reason=\"T1\"");
    check_both(&[b"I", b"A", &TIME, SYMBOL], "RetailLiquidityIndicator retail_liquidity_indicator='A' @ $");
    check_both(&[b"O", b"N", &TIME, SYMBOL], "OperationalHaltStatus operational_halt_status='N' @ $");
    check_both(
        &[b"P", &[1], &TIME, SYMBOL, b"A"],
        "ShortSalePriceTestStatus short_sale_price_test_status=1 @ $ detail='A'",
    );
    check_both(&[b"X", b"Q", &TIME, SYMBOL, &PRICE], "OfficialPrice price_type='Q' @ $ official_price=990500");
    check_both(
        &[
            b"A",
            b"C",
            &TIME,
            SYMBOL,
            &100_000_u32.to_le_bytes(),
            &PRICE,
            &1_i64.to_le_bytes(),
            &10_000_u32.to_le_bytes(),
            b"B",
            &[2],
            &1_471_981_200_u32.to_le_bytes(),
            &3_i64.to_le_bytes(),
            &4_i64.to_le_bytes(),
            &5_i64.to_le_bytes(),
            &6_i64.to_le_bytes(),
        ],
        "AuctionInformation auction_type='C' @ $ paired_shares=100000 reference_price=990500 \
         indicative_clearing_price=1 imbalance_shares=10000 imbalance_side='B' extension_number=2 \
         scheduled_auction_time=1471981200 auction_book_clearing_price=3 collar_reference_price=4 \
         lower_auction_collar=5 upper_auction_collar=6",
    );
}

#[test]
fn trades_decode_in_both_feeds() {
    let body = [&[0x40][..], &TIME, SYMBOL, &100_u32.to_le_bytes(), &PRICE, &429_974_i64.to_le_bytes()].concat();
    let fields = "sale_condition_flags=0x40 @ $ size=100 price=990500 trade_id=429974";
    check_both(&[b"T", &body], &format!("TradeReport {fields}"));
    check_both(&[b"B", &body], &format!("TradeBreak {fields}"));
}

#[test]
fn only_tops_decodes_quotes() {
    let quote = [
        &b"Q\x40"[..],
        &TIME,
        SYMBOL,
        &9_700_u32.to_le_bytes(),
        &PRICE,
        &990_700_i64.to_le_bytes(),
        &1_000_u32.to_le_bytes(),
    ]
    .concat();
    let expected = "QuoteUpdate flags=0x40 @ $ bid_size=9700 bid_price=990500 ask_price=990700 ask_size=1000";
    assert_eq!(tops(&quote), Ok(spelled_out(expected)));
    assert_eq!(deep(&quote), Err(DropReason::MessageTypeUnknown));
}

#[test]
fn only_deep_decodes_price_levels_and_security_events() {
    let level = [&[1][..], &TIME, SYMBOL, &9_700_u32.to_le_bytes(), &PRICE].concat();
    let fields = "event_flags=0x01 @ $ size=9700 price=990500";
    for (code, name) in [(b"8", "PriceLevelUpdateBuy"), (b"5", "PriceLevelUpdateSell")] {
        let bytes = [code, level.as_slice()].concat();
        assert_eq!(deep(&bytes), Ok(spelled_out(&format!("{name} {fields}"))));
        assert_eq!(tops(&bytes), Err(DropReason::MessageTypeUnknown));
    }
    let event = [b"E", b"O", &TIME[..], SYMBOL].concat();
    assert_eq!(deep(&event), Ok(spelled_out("SecurityEvent security_event='O' @ $")));
    assert_eq!(tops(&event), Err(DropReason::MessageTypeUnknown));
}

/// All types of a feed with their lengths.
fn types(own: &[(u8, &'static str, usize)]) -> Vec<(u8, &'static str, usize)> {
    [own, admin::Admin::TYPES].concat()
}

#[test]
fn messages_may_grow_but_not_shrink() {
    let tops_types = types(tops::Message::TYPES);
    let deep_types = types(deep::Message::TYPES);
    assert_eq!((tops_types.len(), deep_types.len()), (11, 13));
    for code in 0..=u8::MAX {
        for length in 1..=100 {
            let mut bytes = vec![0; length];
            bytes[0] = code;
            for (parsed, known) in [
                (tops::Message::parse(&bytes).map(|message| message.as_bytes().len()), &tops_types),
                (deep::Message::parse(&bytes).map(|message| message.as_bytes().len()), &deep_types),
            ] {
                let expected = match known.iter().find(|(known, _, _)| *known == code) {
                    None => Err(DropReason::MessageTypeUnknown),
                    Some((_, _, bytes)) if length < *bytes => Err(DropReason::MessageLength),
                    Some((_, _, bytes)) => Ok(*bytes),
                };
                assert_eq!(parsed, expected);
            }
        }
    }
    assert_eq!(tops(&[]), Err(DropReason::MessageLength));
    assert_eq!(deep(&[]), Err(DropReason::MessageLength));
}

#[test]
fn a_price_outside_the_book_range_is_refused() {
    let mut level = deep::PriceLevelUpdate::new_zeroed();
    level.message_type = b'8';
    let mut quote = tops::QuoteUpdate::new_zeroed();
    quote.message_type = b'Q';
    let mut trade = admin::TradeReport::new_zeroed();
    trade.message_type = b'T';
    let largest = i64::MAX / 100_000;
    for (price_e4, fits) in [(0, true), (largest, true), (largest + 1, false), (-1, false), (i64::MIN, false)] {
        let expected = (!fits).then_some(DropReason::FieldInvalid);
        level.price_e4.set(price_e4);
        assert_eq!(deep(level.as_bytes()).err(), expected);
        trade.price_e4.set(price_e4);
        assert_eq!(tops(trade.as_bytes()).err(), expected);
        quote.bid_price_e4.set(price_e4);
        quote.ask_price_e4.set(0);
        assert_eq!(tops(quote.as_bytes()).err(), expected);
        quote.bid_price_e4.set(0);
        quote.ask_price_e4.set(price_e4);
        assert_eq!(tops(quote.as_bytes()).err(), expected);
    }
}

proptest! {
    #[test]
    fn any_bytes_parse_as_a_prefix_or_are_refused(
        content in proptest::collection::vec(any::<u8>(), 100),
        at in any::<proptest::sample::Index>(),
        more in 0_usize..4,
    ) {
        let types = types(deep::Message::TYPES);
        let (code, _, length) = types[at.index(types.len())];
        // One byte too short, correct, and longer.
        let mut bytes = content[..length - 1 + more].to_vec();
        bytes[0] = code;
        for parsed in [
            deep::Message::parse(&bytes).map(|message| message.as_bytes()),
            tops::Message::parse(&bytes).map(|message| message.as_bytes()),
        ] {
            match parsed {
                Ok(view) => prop_assert_eq!(view, &bytes[..length]),
                Err(DropReason::MessageLength) => prop_assert_eq!(more, 0),
                Err(DropReason::FieldInvalid) => prop_assert!(b"85T".contains(&code)),
                Err(reason) => prop_assert!(reason == DropReason::MessageTypeUnknown && b"85E".contains(&code)),
            }
        }
    }
}
