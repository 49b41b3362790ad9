use expect_test::{Expect, expect};
use ratatui::{Terminal, backend::TestBackend};

use super::{
    testing::{earlier_snapshot, later_snapshot},
    *,
};

fn top_with_two_snapshots() -> Top {
    let mut top = Top::default();
    top.update(earlier_snapshot());
    top.update(later_snapshot());
    top
}

/// Compares the screen as text, without trailing spaces.
fn check(top: &Top, (columns, rows): (u16, u16), expected: &Expect) {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(top, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |row: u16| -> String { (0..columns).map(|column| buffer[(column, row)].symbol()).collect() };
    let text: String = (0..rows).map(|y| format!("{}\n", row(y).trim_end())).collect();
    expected.assert_eq(&text);
}

#[test]
fn a_screen_of_80_columns_shows_threads_and_channels() {
    check(
        &top_with_two_snapshots(),
        (80, 24),
        &expect![[r#"
            mdgw top  gateway 1, epoch 7                             2019-01-30 14:30:06 UTC
            rates over 1.00 s  kernel drops 0
            pool main  4 threads  busy 9 %  saturated 0 %  41500 turns/s
              main-0 leader 12 %            main-1 processing 25 %
              main-2 parked 0 %             main-3 parked 0 %
            iex-tops is out of service: cannot read a line's socket
            name           state       rate  gaps  lost drops lead               p50     p99
            nasdaq         live        123k     0     0     0 A 75% 12.3 us  4.64 us 27.2 us
            bx             recovering  8000     2    37     0 A 75% 12.3 us  3.48 us 20.4 us
            iex-deep       live         950     0     0     0 A 75% 12.3 us  2.32 us 13.6 us
            iex-tops       failed         0     0     0     4 silent B             -       -












            q quit  h help  s sort  / filter  space freeze   4 of 4 channels, by number
        "#]],
    );
}

#[test]
fn a_wider_screen_shows_more_columns() {
    check(
        &top_with_two_snapshots(),
        (120, 40),
        &expect![[r#"
            mdgw top  gateway 1, epoch 7                                                                     2019-01-30 14:30:06 UTC
            rates over 1.00 s  kernel drops 0
            pool main  4 threads  busy 9 %  saturated 0 %  41500 turns/s
              main-0 leader 12 %            main-1 processing 25 %        main-2 parked 0 %             main-3 parked 0 %
            iex-tops is out of service: cannot read a line's socket
            name                      state       rate  pkt/s sent/s  gaps  lost drops faults lead               p50     p99   p99.9
            nasdaq                    live        123k  41000  61728     0     0     0      0 A 75% 12.3 us  4.64 us 27.2 us 76.0 us
            bx                        recovering  8000   2658   4000     2    37     0      0 A 75% 12.3 us  3.48 us 20.4 us 57.0 us
            iex-deep                  live         950    315    475     0     0     0      0 A 75% 12.3 us  2.32 us 13.6 us 38.0 us
            iex-tops                  failed         0      0      0     0     0     4      0 silent B             -       -       -





























            q quit  h help  s sort  / filter  space freeze   4 of 4 channels, by number
        "#]],
    );
}

#[test]
fn help_sort_and_filter_are_shown() {
    let mut top = top_with_two_snapshots();
    for key in [Key::Char('s'), Key::Char('r'), Key::Char('/'), Key::Char('i')] {
        top.key(key);
    }
    check(
        &top,
        (80, 12),
        &expect![[r#"
            mdgw top  gateway 1, epoch 7                             2019-01-30 14:30:06 UTC
            rates over 1.00 s  kernel drops 0
            pool main  4 threads  busy 9 %  saturated 0 %  41500 turns/s
              main-0 leader 12 %            main-1 processing 25 %
              main-2 parked 0 %             main-3 parked 0 %
            iex-tops is out of service: cannot read a line's socket
            name^          state       rate  gaps  lost drops lead               p50     p99
            nasdaq         live        123k     0     0     0 A 75% 12.3 us  4.64 us 27.2 us
            iex-tops       failed         0     0     0     4 silent B             -       -
            iex-deep       live         950     0     0     0 A 75% 12.3 us  2.32 us 13.6 us
            bx             recovering  8000     2    37     0 A 75% 12.3 us  3.48 us 20.4 us
            filter: i   enter: apply, esc: cancel
        "#]],
    );
    top.key(Key::Enter);
    top.key(Key::Char('?'));
    check(
        &top,
        (80, 24),
        &expect![[r#"
            mdgw top  gateway 1, epoch 7                             2019-01-30 14:30:06 UTC
            rates over 1.00 s  kernel drops 0
            pool main  4 threads  busy 9 %  saturated 0 %  41500 turns/s
              ┌ keys ────────────────────────────────────────────────────────────────────┐
              │ q                 quit                                                   │
            ie│ space             freeze or resume                                       │
            na│ s                 sort by the next column (shown in the last line)       │99
            na│ r                 reverse the order                                      │us
            ie│ /                 filter by text in name, number or state                │ -
            ie│ esc               clear the filter                                       │us
            bx│ up, down          scroll by a row                                        │us
              │ pages, home, end  scroll by a page; to the first or last row             │
              │ h, ?              this help                                              │
              │                                                                          │
              │ rate: messages/s    gaps: gaps declared    lost: messages in gaps        │
              │ drops: unexpected packets, refused    faults: messages inconsistent with │
              │the book                                                                  │
              │ lead: line that is most often first; share; median lead                  │
              │ p50, p99: wire to wire, last latency interval                            │
              └──────────────────────────────────────────────────────────────────────────┘



            q quit  h help  s sort  / filter  space freeze   4 of 4 channels with "i", by na
        "#]],
    );
}

#[test]
fn a_frozen_view_or_an_unreachable_gateway_is_shown() {
    let mut top = top_with_two_snapshots();
    top.key(Key::Char(' '));
    top.set_problem("cannot reach a gateway at x".to_owned());
    check(
        &top,
        (80, 5),
        &expect![[r#"
            mdgw top  gateway 1, epoch 7                             2019-01-30 14:30:06 UTC
            frozen  cannot reach a gateway at x
            iex-tops is out of service: cannot read a line's socket
            name           state       rate  gaps  lost drops lead               p50     p99
            q quit  h help  s sort  / filter  space freeze   4 of 4 channels, by number
        "#]],
    );
    let mut nothing = Top::default();
    check(
        &nothing,
        (80, 3),
        &expect![[r#"
            mdgw top
            waiting
            q quit  h help  s sort  / filter  space freeze   0 of 0 channels, by number
        "#]],
    );
    nothing.set_problem("cannot reach a gateway at x".to_owned());
    check(
        &nothing,
        (80, 3),
        &expect![[r#"
            mdgw top
            cannot reach a gateway at x
            q quit  h help  s sort  / filter  space freeze   0 of 0 channels, by number
        "#]],
    );
}

#[test]
fn a_stuck_main_thread_is_shown() {
    let mut top = top_with_two_snapshots();
    let stuck = mdgw_status::snapshot::Snapshot { main_thread_stuck_ms: Some(14_321), ..later_snapshot() };
    top.update(stuck);
    check(
        &top,
        (80, 6),
        &expect![[r#"
            mdgw top  gateway 1, epoch 7                             2019-01-30 14:30:06 UTC
            rates over 0 ns  kernel drops 0
            pool main  4 threads  busy 0 %  saturated 0 %  0 turns/s
            the main thread here is stuck for 14 s: fitness and alarms may be old
            iex-tops is out of service: cannot read a line's socket
            q quit  h help  s sort  / filter  space freeze   4 of 4 channels, by number
        "#]],
    );
    assert!(text(&top).contains("\nthe main thread here is stuck for 14 s: "), "{}", text(&top));
    assert_eq!(json(&top)["main_thread_stuck_ms"], 14_321);
}

#[test]
fn screens_of_any_size_and_any_text_are_drawn() {
    let mut top = top_with_two_snapshots();
    let mut unusual = later_snapshot();
    unusual.clock_ns += 1;
    unusual.source = "\u{1b}[2J\u{202e}日本 <&>\"".repeat(9);
    unusual.channels[0].name = "日本語\u{0}日本語日本語".to_owned();
    unusual.channels[1].messages = u64::MAX;
    unusual.channels[1].stages[0].p99_ns = u64::MAX;
    unusual.pools[0].threads.clear();
    top.update(unusual);
    top.key(Key::Char('?'));
    for (columns, rows) in [(1, 1), (0, 0), (3, 2), (20, 5), (80, 1), (400, 200)] {
        let area = ratatui::layout::Rect::new(0, 0, columns, rows);
        let mut buffer = ratatui::buffer::Buffer::empty(area);
        draw(&top, area, &mut buffer);
        let escape = buffer.content().iter().any(|cell| cell.symbol().contains('\u{1b}'));
        assert!(!escape, "a name from a snapshot must not control the terminal");
    }
    assert!(!text(&top).contains('\u{1b}'));
}

#[test]
fn text_and_json_show_the_same_values() {
    expect![[r#"
        gateway 1, epoch 7, 2019-01-30 14:30:06 UTC, rates over 1.00 s, 0 datagrams dropped by the kernel
        pool main: busy 9 %, saturated 0 %, 41500 turns/s
          main-0           leader       12 %
          main-1           processing   25 %
          main-2           parked        0 %
          main-3           parked        0 %
        channel              state      messages/s  packets/s   gaps     lost    drops lead                      p50      p99      max
        nasdaq               live           123456      41000      0        0        0 A 75 % by 12.3 us     4.64 us  27.2 us   360 us
        bx                   recovering       8000       2658      2       37        0 A 75 % by 12.3 us     3.48 us  20.4 us   270 us
        iex-deep             live              950        315      0        0        0 A 75 % by 12.3 us     2.32 us  13.6 us   180 us
        iex-tops             failed              0          0      0        0        4 silent B                                       
          out of service: cannot read a line's socket
    "#]].assert_eq(&text(&top_with_two_snapshots()));
    let value = json(&top_with_two_snapshots());
    assert_eq!(value["channels"][0]["messages_per_s"], 123_456.0);
    assert_eq!(value["channels"][3]["failed"], "cannot read a line's socket");
    assert_eq!(value["pools"][0]["threads"][1]["busy"], 0.25);
    assert!(json(&Top::default()).is_null());
}

#[test]
fn the_svg_is_well_formed_and_contains_the_screen_text() {
    let svg = svg(&top_with_two_snapshots(), 80, 12);
    for expected in ["<svg xmlns=", "nasdaq", "processing", "</svg>"] {
        assert!(svg.contains(expected), "{expected}");
    }
    assert_eq!(svg.matches("<text ").count(), svg.matches("</text>").count());
    assert!(!svg.contains("href") && !svg.contains("url("));
}
