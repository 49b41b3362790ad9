//! `mdgw book` shows the books at the requested moment, as built from the messages.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    path::PathBuf,
    process::Command,
};

use mdgw_tests::{
    feeds::{self, DAMAGE, DESTINATIONS, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::text,
    process::{self, ExitedProcess},
};
use serde_json::{Value, json};
use tempfile::TempDir;

#[test]
fn books_match_a_model_built_from_the_messages() {
    let day = DayCapture::new();
    let all = day.messages();
    for last in [MESSAGES, MESSAGES / 2, MESSAGES / 2 + 1, MESSAGES / 3] {
        let model = Model::of(&all, last);
        let sequence = last.to_string();
        let books =
            json_lines(&day.book(&["--all", "--json", "--by", "order", "--sequence", &sequence]).expect_code(0));
        assert!(books.len() > 10, "{}", books.len());
        for book in &books {
            model.check(book);
            assert_eq!((&book["suspect"], &book["sequence"]), (&json!(false), &json!(last)));
        }
        let shown: BTreeSet<u64> = books.iter().map(|book| book["instrument_id"].as_u64().unwrap()).collect();
        assert!(model.levels.keys().all(|(locate, ..)| shown.contains(locate)), "a book is missing");
    }
}

#[test]
fn two_lossy_lines_give_the_same_books_as_one_complete_line() {
    let day = DayCapture::new();
    let whole = json_lines(&day.book(&["--all", "--json"]).expect_code(0));
    let [a, b] = feeds::write_damaged_captures(day.folder.path(), &day.packets, DAMAGE, 5);
    let sequence = (MESSAGES / 2).to_string();
    let lines = ["book", text(&a), text(&b), "--all", "--json", "--feed", "nasdaq-itch-5.0"];
    assert_eq!(json_lines(&process::run(lines).expect_code(0)), whole);
    // In the middle of the day one line may be ahead of the other.
    let half = day.book(&["--all", "--json", "--sequence", &sequence]).expect_code(0);
    let halved = process::run(lines.into_iter().chain(["--sequence", &sequence])).expect_code(0);
    assert_eq!(json_lines(&halved), json_lines(&half));
}

#[test]
fn a_book_at_a_time_includes_all_packets_up_to_that_time() {
    let day = DayCapture::new();
    let at = day.packets.len() / 2;
    let (time_ns, _) = day.packets[at];
    // Packets with equal timestamps are applied together.
    let last = day.packets.iter().rposition(|(time, _)| *time == time_ns).unwrap();
    let half = day.write("half.pcap", &day.packets[..=last]);
    let expected = process::run(["book", text(&half), "--all", "--json"]).expect_code(0);
    let after_ns = time_ns - day.packets[0].0;
    let moment = format!("+{}.{:09}", after_ns / 1_000_000_000, after_ns % 1_000_000_000);
    assert_eq!(json_lines(&day.book(&["--all", "--json", "--at", &moment]).expect_code(0)), json_lines(&expected));
}

#[test]
fn top_of_book_changes_end_in_the_final_book() {
    let day = DayCapture::new();
    let changes = json_lines(&day.book(&["--top", "--json"]).expect_code(0));
    assert!(changes.len() > 100);
    let mut last: BTreeMap<u64, (&Value, &Value)> = BTreeMap::new();
    for change in &changes {
        let top = (&change["bid"], &change["ask"]);
        let before = last.insert(change["instrument_id"].as_u64().unwrap(), top);
        assert_ne!(before, Some(top), "no change: {change}");
    }
    for book in json_lines(&day.book(&["--all", "--json", "--depth", "1"]).expect_code(0)) {
        let of = |side: &str| book[side].as_array().unwrap().first().cloned().unwrap_or(Value::Null);
        let top = last.get(&book["instrument_id"].as_u64().unwrap());
        let top = top.map_or((Value::Null, Value::Null), |(bid, ask)| ((*bid).clone(), (*ask).clone()));
        assert_eq!(top, (of("bids"), of("asks")), "{book}");
    }
    // Up to and including one message: the changes until then.
    let half = (MESSAGES / 2).to_string();
    let first_half = json_lines(&day.book(&["--top", "--json", "--sequence", &half]).expect_code(0));
    let wanted = changes.iter().take_while(|change| change["sequence"].as_u64().unwrap() <= MESSAGES / 2);
    assert_eq!(first_half.iter().collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
}

#[test]
fn tables_are_human_readable() {
    let day = DayCapture::new();
    let books = json_lines(&day.book(&["--all", "--json"]).expect_code(0));
    let deep = books.iter().max_by_key(|book| book["bids"].as_array().unwrap().len()).unwrap();
    let symbol = deep["symbol"].as_str().unwrap();
    let shown = day.book(&["--symbol", symbol, "--depth", "2"]).expect_code(0).stdout;
    let price = deep["bids"][0][0].as_u64().unwrap();
    assert!(shown.starts_with(&format!("{symbol}  number {}", deep["instrument_id"])), "{shown}");
    assert!(shown.contains(&format!("{}.{:04} |", price / 1_000_000_000, price / 100_000 % 10_000)), "{shown}");
    assert_eq!(shown.lines().count(), 3 + 2, "{shown}");
    let by_order = day.book(&["--symbol", symbol, "--by", "order"]).expect_code(0).stdout;
    assert!(by_order.lines().count() > 5, "{by_order}");
}

#[test]
fn by_default_only_non_empty_books_are_shown() {
    // By then most instruments are known, and few have orders.
    const EARLY: &str = "700";
    let day = DayCapture::new();
    let all = json_lines(&day.book(&["--all", "--json", "--sequence", EARLY]).expect_code(0));
    let is_empty = |book: &Value| book["bids"] == json!([]) && book["asks"] == json!([]) && book["trades"] == 0;
    let (empty, others): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_empty);
    assert!(!empty.is_empty() && !others.is_empty(), "{} and {}", empty.len(), others.len());
    assert_eq!(json_lines(&day.book(&["--json", "--sequence", EARLY]).expect_code(0)), others);
    let shown = day.book(&["--sequence", EARLY]).expect_code(0).stdout;
    assert!(shown.contains(&format!("\n{} more instruments", empty.len())), "{shown}");
    let books = day.book(&["--all", "--sequence", EARLY]).expect_code(0).stdout;
    assert_eq!(books.matches("  number ").count(), empty.len() + others.len());
}

#[test]
fn missing_instruments_and_messages_are_reported() {
    let day = DayCapture::new();
    let ended = day.book(&["--symbol", "NOSUCH"]).expect_code(1);
    assert!(ended.stderr.contains("no instrument NOSUCH"), "{}", ended.stderr);
    for more in [&["--all"][..], &[], &["--symbol", "NOSUCH", "--json"]] {
        let at = ["--at", "2019-01-29T00:00:00Z"];
        let ended = day.book(&[more, &at].concat()).expect_code(1);
        assert!(ended.stderr.contains("book: no instrument") && ended.stdout.is_empty(), "{}", ended.stderr);
    }
    let ended = day.book(&["--all", "--sequence", "0"]).expect_code(2);
    assert!(ended.stderr.contains("--sequence"), "{}", ended.stderr);
    let past_end = day.book(&["--all", "--sequence", "999999"]).expect_code(2);
    assert!(past_end.stderr.contains("message 999999"), "{}", past_end.stderr);
    assert!(past_end.stderr.contains(&format!("2019-01-30#0 from 1 to {MESSAGES}")), "{}", past_end.stderr);
    let other = day.book(&["--all", "--sequence", "5", "--session", "3"]).expect_code(2);
    assert!(other.stderr.contains("message 5"), "{}", other.stderr);
    let late = day.write("late.pcap", &day.packets[20..]);
    let before = process::run(["book", text(&late), "--all", "--sequence", "2"]).expect_code(2);
    assert!(before.stderr.contains("message 2 "), "{}", before.stderr);
}

#[test]
fn a_feed_without_orders_shows_levels_and_refuses_orders() {
    let day = DayCapture::new();
    let update = |side: u8, flags: u8, size: u32, price_e4: i64| {
        let mut message = vec![side, flags];
        message.extend_from_slice(&(MIDNIGHT_NS + 50_000_000_000_000).to_le_bytes());
        message.extend_from_slice(b"OWN     ");
        message.extend_from_slice(&size.to_le_bytes());
        message.extend_from_slice(&price_e4.to_le_bytes());
        message
    };
    let messages = [update(b'8', 1, 100, 10_000), update(b'5', 1, 200, 10_100), update(b'8', 1, 300, 9_900)];
    let packets = feeds::iex_packets(DEEP, 7, MIDNIGHT_NS, messages.iter().map(Vec::as_slice));
    let path = day.write("deep.pcap", &packets);
    let book = process::run(["book", text(&path), "--symbol", "OWN", "--json"]).expect_code(0).json();
    assert_eq!(book["bids"], json!([[1_000_000_000, 100, 0], [990_000_000, 300, 0]]));
    assert_eq!(book["asks"], json!([[1_010_000_000, 200, 0]]));
    assert_eq!((&book["channel"], &book["volume"], &book["trades"]), (&json!(0), &json!(0), &json!(0)));
    let refused = process::run(["book", text(&path), "--symbol", "OWN", "--by", "order"]).expect_code(2);
    assert!(refused.stderr.contains("no individual orders"), "{}", refused.stderr);
}

#[test]
fn a_gap_leaves_the_books_suspect() {
    let day = DayCapture::new();
    let mut packets = day.packets.clone();
    packets.remove(packets.len() / 2);
    let path = day.write("gap.pcap", &packets);
    let books = json_lines(&process::run(["book", text(&path), "--all", "--json"]).expect_code(0));
    assert!(books.iter().all(|book| book["suspect"] == json!(true)));
    let shown = process::run(["book", text(&path), "--all"]).expect_code(0).stdout;
    assert!(shown.contains("SUSPECT"), "{shown}");
}

#[test]
fn damaged_files_are_reported_and_earlier_books_are_shown() {
    let day = DayCapture::new();
    let whole = fs::read(&day.path).unwrap();
    let cut = day.folder.path().join("cut.pcap");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let ended = process::run(["book", text(&cut), "--all", "--json"]).expect_code(2);
    assert!(!json_lines(&ended).is_empty());
    assert!(ended.stderr.contains("at byte ") && ended.stderr.contains(text(&cut)), "{}", ended.stderr);
    for content in [&b""[..], b"no capture at all", &whole[..24]] {
        fs::write(&cut, content).unwrap();
        let ended = process::run(["book", text(&cut), "--all"]).expect_code(2);
        assert!(ended.stderr.contains(text(&cut)) && ended.stdout.is_empty(), "{}", ended.stderr);
    }
    for more in ["--all", "--top"] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended =
            Command::new(process::program()).args(["book", text(&day.path), more]).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("standard output") && stderr.contains("No space left"), "{stderr}");
    }
}

/// A synthetic day as a capture.
struct DayCapture {
    folder: TempDir,
    path: PathBuf,
    packets: Vec<Packet>,
}

/// Messages of the day.
const MESSAGES: u64 = 6_000;
/// Message protocol of IEX DEEP 1.0.
const DEEP: u16 = 0x8004;

impl DayCapture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("day.pcap");
        let packets = feeds::itch_packets(feeds::itch_day(MESSAGES, 4), SESSION, MIDNIGHT_NS);
        feeds::write_capture(&path, DESTINATIONS[0], &packets);
        Self { folder, path, packets }
    }

    fn write(&self, name: &str, packets: &[Packet]) -> PathBuf {
        let path = self.folder.path().join(name);
        feeds::write_capture(&path, DESTINATIONS[0], packets);
        path
    }

    fn book(&self, more: &[&str]) -> ExitedProcess {
        process::run(["book", text(&self.path), "--feed", "nasdaq-itch-5.0"].iter().chain(more))
    }

    /// Fields of all messages, from `mdgw inspect`.
    fn messages(&self) -> Vec<Value> {
        let packets = json_lines(&process::run(["inspect", text(&self.path), "--json"]).expect_code(0));
        packets.iter().flat_map(|packet| packet["messages"].as_array().unwrap().clone()).collect()
    }
}

/// A simple reference book: orders and their sums, built from the fields of messages.
#[derive(Default)]
struct Model {
    /// Locate, side, price in 1e-4, size, by order.
    orders: BTreeMap<u64, (u64, bool, u64, u64)>,
    /// Size and orders by locate, side and price in 1e-4.
    levels: BTreeMap<(u64, bool, u64), (u64, u64)>,
    /// Shares and trades by locate.
    traded: BTreeMap<u64, (u64, u64)>,
}

impl Model {
    fn of(messages: &[Value], last: u64) -> Self {
        let mut model = Self::default();
        for message in messages.iter().take(usize::try_from(last).unwrap()) {
            model.apply(message["type"].as_str().unwrap(), &message["fields"]);
        }
        for (locate, is_bid, price, size) in model.orders.values() {
            let level = model.levels.entry((*locate, *is_bid, *price)).or_default();
            *level = (level.0 + size, level.1 + 1);
        }
        model
    }

    fn apply(&mut self, kind: &str, fields: &Value) {
        let number = |name: &str| fields[name].as_u64().unwrap();
        let order = fields["order_reference_number"].as_u64().unwrap_or_default();
        match kind {
            "AddOrder" | "AddOrderMpid" => {
                let is_bid = fields["buy_sell_indicator"] == "B";
                self.orders.insert(order, (number("stock_locate"), is_bid, number("price"), number("shares")));
            }
            "OrderExecuted" => {
                self.take(order, number("executed_shares"));
                self.trade(number("stock_locate"), number("executed_shares"));
            }
            "OrderExecutedWithPrice" => {
                self.take(order, number("executed_shares"));
                if fields["printable"] == "Y" {
                    self.trade(number("stock_locate"), number("executed_shares"));
                }
            }
            "OrderCancel" => self.take(order, number("cancelled_shares")),
            "OrderDelete" => drop(self.orders.remove(&order)),
            "OrderReplace" => {
                let (locate, is_bid, ..) = self.orders.remove(&number("original_order_reference_number")).unwrap();
                let replaced = (locate, is_bid, number("price"), number("shares"));
                self.orders.insert(number("new_order_reference_number"), replaced);
            }
            "NonCrossTrade" | "CrossTrade" if number("shares") > 0 => {
                self.trade(number("stock_locate"), number("shares"));
            }
            _ => {}
        }
    }

    fn take(&mut self, order: u64, shares: u64) {
        let (.., size) = self.orders.get_mut(&order).unwrap();
        *size -= shares;
        if *size == 0 {
            self.orders.remove(&order);
        }
    }

    fn trade(&mut self, locate: u64, shares: u64) {
        let (volume, trades) = self.traded.entry(locate).or_default();
        (*volume, *trades) = (*volume + shares, *trades + 1);
    }

    /// Levels, orders, volume and trades of a printed book.
    fn check(&self, book: &Value) {
        let locate = book["instrument_id"].as_u64().unwrap();
        for (side, orders, is_bid) in [("bids", "bid_orders", true), ("asks", "ask_orders", false)] {
            let of_side = self.levels.range((locate, is_bid, 0)..=(locate, is_bid, u64::MAX));
            let mut levels: Vec<_> =
                of_side.map(|((.., price), (size, count))| json!([price * 100_000, size, count])).collect();
            if is_bid {
                levels.reverse();
            }
            assert_eq!(book[side], Value::from(levels), "{side} of {}", book["symbol"]);
            let shown: BTreeSet<(u64, u64, u64)> = book[orders].as_array().unwrap().iter().map(order_of).collect();
            let wanted: BTreeSet<(u64, u64, u64)> = self
                .orders
                .iter()
                .filter(|(_, (of, on_bid, ..))| (*of, *on_bid) == (locate, is_bid))
                .map(|(order, (.., price, size))| (*order, price * 100_000, *size))
                .collect();
            assert_eq!(shown, wanted, "{orders} of {}", book["symbol"]);
        }
        let traded = self.traded.get(&locate).copied().unwrap_or_default();
        assert_eq!((book["volume"].as_u64().unwrap(), book["trades"].as_u64().unwrap()), traded, "{}", book["symbol"]);
    }
}

fn order_of(row: &Value) -> (u64, u64, u64) {
    let number = |index: usize| row[index].as_u64().unwrap();
    (number(0), number(1), number(2))
}

fn json_lines(ended: &ExitedProcess) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
