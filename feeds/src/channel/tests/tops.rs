//! IEX TOPS 1.6, row by row; and the administrative messages that TOPS and DEEP share.

use expect_test::expect;
use zerocopy::IntoBytes as _;

use super::{input::*, *};
use crate::{
    book::BookFault,
    venue::iex::{admin::*, tops::QuoteUpdate},
};

const ALL: SchemaSet = SchemaSet(0xff);

fn rows(schemas: SchemaSet, messages: &[Vec<u8>], expected: &Expect) -> ChannelHarness {
    check(Feed::IexTops, schemas, messages, expected)
}

#[test]
fn a_quote_gives_two_mbo_records_and_one_mbp_record() {
    let messages = [
        quote("ZIEXT", (100, 990_500), (200, 991_000)),
        quote("ZIEXT", (0, 0), (200, 991_000)),
        quote("ZIEXT", (100, 990_500), (0, 0)),
        quote("ZIEXT", (0, 0), (0, 0)),
    ];
    rows(
        SchemaSet::MBO,
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          mbo A B 99.05 x100 #0 T
          mbo A A 99.1 x200 #0 LT
        2 delta 5000
          mbo A B - x0 #0 T
          mbo A A 99.1 x200 #0 LT
        3 delta 5000
          mbo A B 99.05 x100 #0 T
          mbo A A - x0 #0 LT
        4 delta 5000
          mbo A B - x0 #0 T
          mbo A A - x0 #0 LT
    "#]],
    );
    rows(
        SchemaSet::MBP_1,
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          mbp1 M N 99.05 x100 L d0 [99.05x100(0) | 99.1x200(0)]
        2 delta 5000
          mbp1 M N 99.1 x200 L d0 [- | 99.1x200(0)]
        3 delta 5000
          mbp1 M N 99.05 x100 L d0 [99.05x100(0) | -]
        4 delta 5000
          mbp1 M N - x0 L d0 []
    "#]],
    );
}

#[test]
fn a_trade_carries_the_current_quote_and_no_side() {
    let messages = [
        trade("ZIEXT", 10, 990_700),
        quote("ZIEXT", (100, 990_500), (200, 991_000)),
        trade("ZIEXT", 100, 990_500),
        trade("OTHER", 1, 10_000),
    ];
    rows(
        SchemaSet::MBO.with(SchemaSet::MBP_1).with(SchemaSet::TRADES),
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          mbo T N 99.07 x10 #0 L
          trade T N 99.07 x10 L
          mbp1 T N 99.07 x10 L d0 []
        2 delta 5000
          mbo A B 99.05 x100 #0 T
          mbo A A 99.1 x200 #0 LT
          mbp1 M N 99.05 x100 L d0 [99.05x100(0) | 99.1x200(0)]
        3 delta 5000
          mbo T N 99.05 x100 #0 L
          trade T N 99.05 x100 L
          mbp1 T N 99.05 x100 L d0 [99.05x100(0) | 99.1x200(0)]
        4 delta 5000
          mapping 1894199125 OTHER
          mbo T N 1 x1 #0 L
          trade T N 1 x1 L
          mbp1 T N 1 x1 L d0 []
    "#]],
    );
}

#[test]
fn a_crossed_quote_is_suspect_until_the_next_one() {
    let messages = [
        quote("ZIEXT", (100, 991_000), (200, 991_000)),
        quote("ZIEXT", (100, 991_100), (200, 991_000)),
        trade("ZIEXT", 1, 991_000),
        quote("ZIEXT", (100, 990_500), (200, 991_000)),
        trade("ZIEXT", 1, 991_000),
    ];
    let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexTops, SchemaSet::MBP_1));
    harness.datagrams(&Stream::new(Feed::IexTops).packets(&messages, usize::MAX));
    let suspects: Vec<bool> = harness.output.messages().iter().map(|frame| frame.is_suspect).collect();
    // A locked quote is not crossed.
    assert_eq!(suspects, [false, true, true, false, false]);
    assert_eq!(harness.channel.book_faults().iter().collect::<Vec<_>>(), [(BookFault::Crossed, 1)]);
    assert_eq!(harness.channel.rejected_packets().count(), 1);
}

/// Also after a message that could not be decoded: it may have been a quote.
#[test]
fn after_a_gap_quotes_are_empty_until_the_next_quote() {
    let damaged = quote("ZIEXT", (1, 1), (1, 2))[..20].to_vec();
    for missing in [None, Some(damaged)] {
        let mut harness = ChannelHarness::new(ChannelHarness::config(Feed::IexTops, SchemaSet::MBP_1));
        let mut stream = Stream::new(Feed::IexTops);
        harness.datagram(Line::A, &stream.packet(&[quote("ZIEXT", (100, 990_500), (200, 991_000))]));
        let is_lost = missing.is_none();
        let packet = stream.packet(&[missing.unwrap_or_default()]);
        if !is_lost {
            harness.datagram(Line::A, &packet);
        }
        harness.output.take_text();
        harness.datagram(Line::A, &stream.packet(&[trade("ZIEXT", 1, 991_000)])).wait();
        harness.datagram(Line::A, &stream.packet(&[quote("ZIEXT", (100, 990_500), (200, 991_000))]));
        harness.datagram(Line::A, &stream.packet(&[trade("ZIEXT", 1, 991_000)]));
        let text = harness.output.take_text();
        expect![[r#"
            3 delta 5000 suspect
              mbp1 T N 99.1 x1 L d0 []
            4 delta 5000
              mbp1 M N 99.05 x100 L d0 [99.05x100(0) | 99.1x200(0)]
            5 delta 5000
              mbp1 T N 99.1 x1 L d0 [99.05x100(0) | 99.1x200(0)]
        "#]]
        .assert_eq(text.strip_prefix("gap [2, 3)\n").unwrap_or(&text));
    }
}

#[test]
fn an_unknown_message_type_does_not_mark_books_suspect() {
    let messages = [quote("ZIEXT", (1, 10_000), (1, 10_100)), b"?new".to_vec(), trade("ZIEXT", 1, 10_000)];
    let harness = rows(
        SchemaSet::MBP_1,
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          mbp1 M N 1 x1 L d0 [1x1(0) | 1.01x1(0)]
        3 delta 5000
          mbp1 T N 1 x1 L d0 [1x1(0) | 1.01x1(0)]
    "#]],
    );
    assert_eq!(harness.channel.drops().get(DropReason::MessageTypeUnknown), 1);
}

#[test]
fn trading_status_and_halts_are_states() {
    let status =
        |state: u8, reason: [u8; 4]| iex!(b'H', "ZIEXT", TradingStatus { trading_status: state, reason: reason });
    let operational = |state: u8| iex!(b'O', "ZIEXT", OperationalHaltStatus { operational_halt_status: state });
    let short_sale = |state: u8| iex!(b'P', "ZIEXT", ShortSalePriceTestStatus { short_sale_price_test_status: state });
    let messages = [
        status(b'H', *b"T1  "),
        status(b'O', *b"T2  "),
        status(b'P', *b"    "),
        status(b'T', *b"    "),
        operational(b'O'),
        operational(b'N'),
        short_sale(1),
        short_sale(0),
    ];
    rows(
        ALL,
        &messages,
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          status 8 reason 30 trading N quoting N restricted ~
        2 delta 5000
          status 2 reason 31 trading N quoting N restricted ~
        3 delta 5000
          status 9 reason 0 trading N quoting N restricted ~
        4 delta 5000
          status 7 reason 0 trading Y quoting Y restricted ~
        5 delta 5000
          status 8 reason 60 trading N quoting ~ restricted ~
        6 delta 5000
          status 0 reason 60 trading ~ quoting ~ restricted ~
        7 delta 5000
          status 14 reason 0 trading ~ quoting ~ restricted Y
        8 delta 5000
          status 14 reason 0 trading ~ quoting ~ restricted N
    "#]],
    );
}

#[test]
fn official_prices_auctions_and_directories_map_to_their_schemas() {
    let auction = iex!(
        b'A',
        "ZIEXT",
        AuctionInformation {
            auction_type: b'C',
            paired_shares: 700_u32,
            reference_price_e4: 100_000_i64,
            indicative_clearing_price_e4: 100_100_i64,
            imbalance_shares: 5_u32,
            imbalance_side: b'B',
            extension_number: 2,
            scheduled_auction_time_s: 1_548_882_000_u32,
            auction_book_clearing_price_e4: 0_i64,
            lower_auction_collar_e4: 90_000_i64,
            upper_auction_collar_e4: 110_000_i64,
        }
    );
    let price = |kind: u8| iex!(b'X', "ZIEXT", OfficialPrice { price_type: kind, official_price_e4: 990_500_i64 });
    let directory = iex!(b'D', "ZIEXT", SecurityDirectory { round_lot_size: 100_u32 });
    rows(
        ALL,
        &[auction, price(b'Q'), price(b'M'), directory],
        &expect![[r#"
        1 delta 5000
          mapping 1190146663 ZIEXT
          imbalance ref 10 book - auction - match 10.01 collars 11 9 paired 700 left 5 type C side B extensions 2 significant ~ at 1548882000000000000
        2 delta 5000
          statistic 1 99.05 x-
        3 delta 5000
          statistic 11 99.05 x-
        4 delta 5000
          definition 1190146663 ZIEXT on IEXG class K
    "#]],
    );
}

#[test]
fn messages_without_a_record_publish_at_most_a_symbol_mapping() {
    let system = {
        let mut message = <SystemEvent as zerocopy::FromZeros>::new_zeroed();
        (message.message_type, message.system_event) = (b'S', b'O');
        message.as_bytes().to_vec()
    };
    let messages = [
        system,
        iex!(b'I', "ZIEXT", RetailLiquidityIndicator { retail_liquidity_indicator: b'A' }),
        iex!(b'B', "ZIEXT", TradeReport { size: 5_u32, price_e4: 10_000_i64 }),
    ];
    let harness = rows(
        ALL,
        &messages,
        &expect![[r#"
        2 delta 5000
          mapping 1190146663 ZIEXT
    "#]],
    );
    assert_eq!(harness.channel.counters().trades_broken, 1);
}

#[test]
fn a_refused_message_does_not_consume_the_symbol_mapping() {
    let broken = iex!(b'H', "ZIEXT", TradingStatus { trading_status: b'?' });
    let early = iex!(b'Q', "ZIEXT", QuoteUpdate { timestamp_ns: -1_i64 });
    let harness = rows(
        ALL,
        &[broken, early, trade("ZIEXT", 1, 10_000)],
        &expect![[r#"
            1 delta 5000 suspect
            2 delta 5000 suspect
            3 delta 5000
              mapping 1190146663 ZIEXT
              mbo T N 1 x1 #0 L
              trade T N 1 x1 L
              mbp1 T N 1 x1 L d0 []
        "#]],
    );
    assert_eq!(harness.channel.drops().get(DropReason::FieldInvalid), 2);
}
