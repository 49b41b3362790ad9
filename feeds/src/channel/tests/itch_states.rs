//! ITCH 5.0, row by row: states, statistics, definitions, imbalances.

use expect_test::expect;

use super::{input::*, *};
use crate::venue::nasdaq::itch50::*;

const ALL: SchemaSet = SchemaSet(0xff);

fn rows(schemas: SchemaSet, messages: &[Vec<u8>], expected: &Expect) -> ChannelHarness {
    check(Feed::NasdaqItch, schemas, messages, expected)
}

#[test]
fn broken_trades_are_counted() {
    let broken = itch!(b'B', 7, BrokenTrade { match_number: 5_u64 });
    let harness = rows(ALL, &[broken], &expect![[r#""#]]);
    assert_eq!(harness.channel.counters().trades_broken, 1);
}

#[test]
fn trading_actions_give_status_records_with_reasons() {
    let messages = [halt(7, b'H', *b"T1  "), halt(7, b'Q', *b"T3  "), halt(7, b'T', *b"    "), halt(7, b'P', *b"LUDP")];
    rows(
        ALL,
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          status 8 reason 30 trading N quoting N restricted ~
        2 delta 7000
          status 3 reason 32 trading N quoting Y restricted ~
        3 delta 7000
          status 7 reason 0 trading Y quoting Y restricted ~
        4 delta 7000
          status 9 reason 50 trading N quoting N restricted ~
    "#]],
    );
}

#[test]
fn short_sale_restrictions_and_operational_halts_give_status_records() {
    let operational = |market: u8, action: u8| {
        itch!(b'h', 7, OperationalHalt { stock: stock(7), market_code: market, operational_halt_action: action })
    };
    let messages = [reg_sho(7, b'1'), reg_sho(7, b'0'), operational(b'Q', b'H'), operational(b'Q', b'T')];
    rows(
        ALL,
        &messages,
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          status 14 reason 0 trading ~ quoting ~ restricted Y
        2 delta 7000
          status 14 reason 0 trading ~ quoting ~ restricted N
        3 delta 7000
          status 8 reason 60 trading N quoting ~ restricted ~
        4 delta 7000
          status 7 reason 60 trading Y quoting ~ restricted ~
    "#]],
    );
    // A sister market's halt maps the instrument and has no other effect.
    rows(
        ALL,
        &[operational(b'B', b'H')],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
    "#]],
    );
}

#[test]
fn circuit_breakers_give_status_and_statistics_records() {
    let levels = itch!(
        b'V',
        0,
        MwcbDeclineLevel {
            level_1_e8: 270_000_000_000_u64,
            level_2_e8: 250_000_000_000_u64,
            level_3_e8: 230_000_000_001_u64,
        }
    );
    rows(
        ALL,
        &[levels, itch!(b'W', 0, MwcbStatus { breached_level: b'2' })],
        &expect![[r#"
        1 delta 7000
          statistic 21 2700 x-
          statistic 22 2500 x-
          statistic 23 2300.00000001 x-
        2 delta 7000
          status 8 reason 121 trading N quoting ~ restricted ~
    "#]],
    );
}

#[test]
fn auction_collars_give_statistics_records() {
    let collar = itch!(
        b'J',
        7,
        LuldAuctionCollar {
            stock: stock(7),
            auction_collar_reference_price_e4: 100_000_u32,
            upper_auction_collar_price_e4: 105_000_u32,
            lower_auction_collar_price_e4: 95_000_u32,
        }
    );
    rows(
        ALL,
        &[collar],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          statistic 24 10 x-
          statistic 25 10.5 x-
          statistic 26 9.5 x-
    "#]],
    );
}

#[test]
fn imbalance_records_leave_missing_fields_undefined() {
    let full = itch!(
        b'I',
        7,
        NetOrderImbalanceIndicator {
            paired_shares: 700_u64,
            imbalance_shares: u64::MAX,
            imbalance_direction: b'S',
            stock: stock(7),
            far_price_e4: 101_000_u32,
            near_price_e4: 102_000_u32,
            current_reference_price_e4: 100_000_u32,
            cross_type: b'C',
            price_variation_indicator: b'L',
        }
    );
    let empty = itch!(
        b'I',
        7,
        NetOrderImbalanceIndicator {
            stock: stock(7),
            imbalance_direction: b'O',
            cross_type: b'O',
            price_variation_indicator: b' ',
        }
    );
    rows(
        ALL,
        &[full, empty],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          imbalance ref 10 book 10.2 auction 10.1 match - collars - - paired 700 left 4294967294 type C side A extensions 0 significant L
        2 delta 7000
          imbalance ref - book - auction - match - collars - - paired 0 left 0 type O side N extensions 0 significant ~
    "#]],
    );
}

#[test]
fn a_directory_message_gives_a_definition_record() {
    let directory = itch!(b'R', 7, StockDirectory { stock: stock(7), round_lot_size: 100_u32 });
    rows(
        ALL,
        &[directory.clone(), directory],
        &expect![[r#"
        1 delta 7000
          mapping 7 S7
          definition 7 S7 on XNAS class K
        2 delta 7000
          definition 7 S7 on XNAS class K
    "#]],
    );
}

#[test]
fn messages_without_a_record_give_no_frame() {
    let messages = [
        itch!(b'S', 0, SystemEvent { event_code: b'O' }),
        itch!(b'L', 7, MarketParticipantPosition { stock: stock(7) }),
        itch!(b'K', 7, IpoQuotingPeriodUpdate { stock: stock(7) }),
        itch!(b'N', 7, RetailPriceImprovementIndicator { stock: stock(7) }),
        itch!(b'O', 7, DirectListingWithCapitalRaise { stock: stock(7) }),
    ];
    let harness = rows(ALL, &messages, &expect![[r#""#]]);
    assert_eq!((harness.channel.counters().messages, harness.channel.counters().messages_refused), (5, 0));
    assert_eq!(harness.output.covered, Some(Sequence(6)));
}

#[test]
fn a_refused_message_does_not_consume_the_symbol_mapping() {
    rows(
        ALL,
        &[reg_sho(7, b'?'), reg_sho(7, b'1')],
        &expect![[r#"
            1 delta 0 suspect
            2 delta 7000
              mapping 7 S7
              status 14 reason 0 trading ~ quoting ~ restricted Y
        "#]],
    );
}

#[test]
fn sister_markets_have_their_own_publisher_and_exchange() {
    for (feed, publisher, exchange) in
        [(Feed::NasdaqItch, 2_u16, "XNAS"), (Feed::BxItch, 3, "XBOS"), (Feed::PsxItch, 4, "XPSX")]
    {
        let mut harness = ChannelHarness::new(ChannelHarness::config(feed, ALL));
        let directory = itch!(b'R', 7, StockDirectory { stock: stock(7) });
        harness.datagram(Line::A, &Stream::new(feed).packet(&[directory]));
        let frame = harness.output.messages().remove(0);
        let definition = frame.records()[1];
        assert_eq!(definition[2..4], publisher.to_le_bytes());
        assert!(recorded_output::render_record(definition).contains(exchange));
    }
}
