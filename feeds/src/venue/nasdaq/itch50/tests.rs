//! Vectors written by hand from the specification's tables, one for each message type, and invalid messages.

use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::venue::wire::{FieldList, u48_be_bytes};
use mdgw_wire::drop_reason::DropReason;

/// 09:30:00.000000001 in ns since midnight.
const HALF_PAST_NINE: [u8; 6] = [0x1f, 0x1a, 0xce, 0xd9, 0xf0, 0x01];

/// `code`, stock locate 13, tracking number 2, half past nine, then `body`.
fn message(code: u8, body: &[&[u8]]) -> Vec<u8> {
    [&[code][..], &[0, 13], &[0, 2], &HALF_PAST_NINE, &body.concat()].concat()
}

/// The message parses, lists these fields after the common ones, and is viewed, not copied.
#[track_caller]
fn check(code: u8, body: &[&[u8]], expected: &str) {
    let bytes = message(code, body);
    let message = Message::parse(&bytes).unwrap();
    let mut listed = message.name().to_owned();
    message.fields(&mut |name, value| listed.push_str(&format!(" {name}={value}")));
    let (name, fields) = expected.split_once(' ').unwrap();
    let common = "stock_locate=13 tracking_number=2 timestamp=34200000000001";
    assert_eq!(listed, format!("{name} {common} {fields}"));
    assert_eq!(message.as_bytes().as_ptr_range(), bytes.as_slice().as_ptr_range());
    assert_eq!((message.stock_locate(), message.timestamp_ns()), (13, 34_200_000_000_001));
}

#[test]
fn messages_about_market_and_stocks_decode() {
    check(b'S', &[b"Q"], "SystemEvent event_code='Q'");
    check(
        b'R',
        &[
            b"ZXZZT   ",
            b"Q",
            b"N",
            &[0, 0, 0, 100],
            b"N",
            b"C",
            b"Z ",
            b"T",
            b"N",
            b" ",
            b"2",
            b"Y",
            &[0, 0, 0, 3],
            b"N",
        ],
        "StockDirectory stock=\"ZXZZT\" market_category='Q' financial_status_indicator='N' round_lot_size=100 \
         round_lots_only='N' issue_classification='C' issue_sub_type=\"Z\" authenticity='T' \
         short_sale_threshold_indicator='N' ipo_flag=32 luld_reference_price_tier='2' etp_flag='Y' \
         etp_leverage_factor=3 inverse_indicator='N'",
    );
    check(
        b'H',
        &[b"ZXZZT   ", b"H", b" ", b"LUDP"],
        "StockTradingAction stock=\"ZXZZT\" trading_state='H' reserved=32 reason=\"LUDP\"",
    );
    check(b'Y', &[b"ZXZZT   ", b"1"], "RegShoRestriction stock=\"ZXZZT\" reg_sho_action='1'");
    check(
        b'L',
        &[b"MAKR", b"ZXZZT   ", b"Y", b"N", b"A"],
        "MarketParticipantPosition mpid=\"MAKR\" stock=\"ZXZZT\" primary_market_maker='Y' market_maker_mode='N' \
         market_participant_state='A'",
    );
    check(
        b'V',
        &[&400_000_000_000_u64.to_be_bytes(), &2_u64.to_be_bytes(), &1_u64.to_be_bytes()],
        "MwcbDeclineLevel level_1=400000000000 level_2=2 level_3=1",
    );
    check(b'W', &[b"3"], "MwcbStatus breached_level='3'");
    check(
        b'K',
        &[b"ZXZZT   ", &36_000_u32.to_be_bytes(), b"A", &[0, 1, 0, 0]],
        "IpoQuotingPeriodUpdate stock=\"ZXZZT\" ipo_quotation_release_time=36000 \
         ipo_quotation_release_qualifier='A' ipo_price=65536",
    );
    check(
        b'J',
        &[b"ZXZZT   ", &[0, 0, 1, 0], &[0, 0, 1, 1], &[0, 0, 0, 255], &[0, 0, 0, 7]],
        "LuldAuctionCollar stock=\"ZXZZT\" auction_collar_reference_price=256 upper_auction_collar_price=257 \
         lower_auction_collar_price=255 auction_collar_extension=7",
    );
    check(
        b'h',
        &[b"ZXZZT   ", b"Q", b"H"],
        "OperationalHalt stock=\"ZXZZT\" market_code='Q' operational_halt_action='H'",
    );
}

#[test]
fn messages_about_orders_decode() {
    let order = 0x0102_0304_0506_0708_u64.to_be_bytes();
    check(
        b'A',
        &[&order, b"S", &300_u32.to_be_bytes(), b"ZXZZT   ", &1_234_500_u32.to_be_bytes()],
        "AddOrder order_reference_number=72623859790382856 buy_sell_indicator='S' shares=300 stock=\"ZXZZT\" \
         price=1234500",
    );
    check(
        b'F',
        &[&order, b"B", &300_u32.to_be_bytes(), b"ZXZZT   ", &1_234_500_u32.to_be_bytes(), b"MAKR"],
        "AddOrderMpid order_reference_number=72623859790382856 buy_sell_indicator='B' shares=300 stock=\"ZXZZT\" \
         price=1234500 attribution=\"MAKR\"",
    );
    check(
        b'E',
        &[&order, &100_u32.to_be_bytes(), &9_u64.to_be_bytes()],
        "OrderExecuted order_reference_number=72623859790382856 executed_shares=100 match_number=9",
    );
    check(
        b'C',
        &[&order, &100_u32.to_be_bytes(), &9_u64.to_be_bytes(), b"N", &10_000_u32.to_be_bytes()],
        "OrderExecutedWithPrice order_reference_number=72623859790382856 executed_shares=100 match_number=9 \
         printable='N' execution_price=10000",
    );
    check(
        b'X',
        &[&order, &50_u32.to_be_bytes()],
        "OrderCancel order_reference_number=72623859790382856 cancelled_shares=50",
    );
    check(b'D', &[&order], "OrderDelete order_reference_number=72623859790382856");
    check(
        b'U',
        &[&order, &5_u64.to_be_bytes(), &u32::MAX.to_be_bytes(), &1_u32.to_be_bytes()],
        "OrderReplace original_order_reference_number=72623859790382856 new_order_reference_number=5 \
         shares=4294967295 price=1",
    );
}

#[test]
fn messages_about_trades_and_auctions_decode() {
    check(
        b'P',
        &[&[0; 8], b"B", &100_u32.to_be_bytes(), b"ZXZZT   ", &10_000_u32.to_be_bytes(), &9_u64.to_be_bytes()],
        "NonCrossTrade order_reference_number=0 buy_sell_indicator='B' shares=100 stock=\"ZXZZT\" price=10000 \
         match_number=9",
    );
    check(
        b'Q',
        &[&(1_u64 << 40).to_be_bytes(), b"ZXZZT   ", &10_000_u32.to_be_bytes(), &9_u64.to_be_bytes(), b"C"],
        "CrossTrade shares=1099511627776 stock=\"ZXZZT\" cross_price=10000 match_number=9 cross_type='C'",
    );
    check(b'B', &[&9_u64.to_be_bytes()], "BrokenTrade match_number=9");
    check(
        b'I',
        &[
            &8_u64.to_be_bytes(),
            &7_u64.to_be_bytes(),
            b"B",
            b"ZXZZT   ",
            &3_u32.to_be_bytes(),
            &2_u32.to_be_bytes(),
            &1_u32.to_be_bytes(),
            b"O",
            b"L",
        ],
        "NetOrderImbalanceIndicator paired_shares=8 imbalance_shares=7 imbalance_direction='B' stock=\"ZXZZT\" \
         far_price=3 near_price=2 current_reference_price=1 cross_type='O' price_variation_indicator='L'",
    );
    check(b'N', &[b"ZXZZT   ", b"A"], "RetailPriceImprovementIndicator stock=\"ZXZZT\" interest_flag='A'");
    check(
        b'O',
        &[
            b"ZXZZT   ",
            b"Y",
            &1_u32.to_be_bytes(),
            &2_u32.to_be_bytes(),
            &3_u32.to_be_bytes(),
            &4_u64.to_be_bytes(),
            &5_u32.to_be_bytes(),
            &6_u32.to_be_bytes(),
        ],
        "DirectListingWithCapitalRaise stock=\"ZXZZT\" open_eligibility_status='Y' minimum_allowable_price=1 \
         maximum_allowable_price=2 near_execution_price=3 near_execution_time=4 \
         lower_price_range_collar=5 upper_price_range_collar=6",
    );
}

#[test]
fn a_struct_has_the_bytes_of_its_message() {
    let order = AddOrder {
        message_type: b'A',
        stock_locate: 13.into(),
        tracking_number: 2.into(),
        timestamp_ns: u48_be_bytes(34_200_000_000_001),
        order_reference_number: 5.into(),
        buy_sell_indicator: b'B',
        shares: 300.into(),
        stock: *b"ZXZZT   ",
        price_e4: 10_000.into(),
    };
    let by_hand = message(b'A', &[&[0, 0, 0, 0, 0, 0, 0, 5], b"B", &[0, 0, 1, 44], b"ZXZZT   ", &[0, 0, 39, 16]]);
    assert_eq!(order.as_bytes(), by_hand);
    assert_eq!(Message::parse(&by_hand), Ok(Message::AddOrder(&order)));
}

#[test]
fn each_type_has_one_length_and_unknown_types_are_refused() {
    assert_eq!(Message::TYPES.len(), 23);
    for code in 0..=u8::MAX {
        let known = Message::TYPES.iter().find(|(known, _, _)| *known == code);
        for length in 1..=64 {
            let mut bytes = vec![b'B'; length];
            bytes[0] = code;
            let parsed = Message::parse(&bytes).map(|message| message.name());
            match known {
                None => assert_eq!(parsed, Err(DropReason::MessageTypeUnknown)),
                Some((_, _, bytes)) if *bytes != length => assert_eq!(parsed, Err(DropReason::MessageLength)),
                Some((b'C', _, _)) => assert_eq!(parsed, Err(DropReason::FieldInvalid)),
                Some((_, name, _)) => assert_eq!(parsed, Ok(*name)),
            }
            assert_eq!(has_known_length(&bytes), known.is_some_and(|(_, _, bytes)| *bytes == length));
        }
    }
    assert_eq!(Message::parse(&[]), Err(DropReason::MessageLength));
}

#[test]
fn an_invalid_side_is_refused() {
    let mut order = AddOrderMpid::new_zeroed();
    for code in 0..=u8::MAX {
        order.order.message_type = b'F';
        order.order.buy_sell_indicator = code;
        assert_eq!(Message::parse(order.as_bytes()).is_ok(), matches!(code, b'B' | b'S'));
        order.order.message_type = b'A';
        let refused = Message::parse(order.order.as_bytes()).err();
        assert_eq!(refused, (!matches!(code, b'B' | b'S')).then_some(DropReason::FieldInvalid));
    }
    let mut executed = OrderExecutedWithPrice::new_zeroed();
    executed.message_type = b'C';
    for code in 0..=u8::MAX {
        executed.printable = code;
        assert_eq!(Message::parse(executed.as_bytes()).is_ok(), matches!(code, b'Y' | b'N'));
    }
}

#[test]
fn prefetch_targets_match_the_parsed_message() {
    let target = |code, body: &[&[u8]]| target_of(&message(code, body));
    let order = |number| Some(MessageTarget { stock_locate: 13, order_reference_number: number });
    for code in [b'A', b'F', b'E', b'C', b'X', b'D', b'U'] {
        assert_eq!(target(code, &[&77_u64.to_be_bytes(), &[0; 8]]), order(Some(77)));
        assert_eq!(target(code, &[&[0; 7]]), order(None), "truncated");
    }
    for code in [b'P', b'R', b'I', b'?'] {
        assert_eq!(target(code, &[&[0; 8]]), order(None));
    }
    assert_eq!(target_of(&[0; 10]), None);
}

proptest! {
    #[test]
    fn any_bytes_parse_completely_or_are_refused(
        content in proptest::collection::vec(any::<u8>(), 64),
        at in any::<proptest::sample::Index>(),
        more in 0_usize..3,
    ) {
        let (code, _, length) = Message::TYPES[at.index(Message::TYPES.len())];
        // One byte too short, correct, one too long.
        let mut bytes = content[..length - 1 + more].to_vec();
        bytes[0] = code;
        let target = target_of(&bytes).unwrap();
        match Message::parse(&bytes) {
            Ok(message) => {
                prop_assert_eq!(message.as_bytes(), bytes.as_slice());
                prop_assert_eq!(target.stock_locate, message.stock_locate());
                let mut fields = 0;
                message.fields(&mut |_, _| fields += 1);
                prop_assert!(fields >= 4);
            }
            Err(DropReason::MessageLength) => prop_assert_ne!(more, 1),
            Err(reason) => {
                prop_assert_eq!(reason, DropReason::FieldInvalid);
                prop_assert!(b"AFC".contains(&code));
            }
        }
    }

    #[test]
    fn u48_round_trips(number in 0..1_u64 << 48) {
        prop_assert_eq!(u48_be(u48_be_bytes(number)), number);
    }
}
