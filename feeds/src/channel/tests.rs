//! Tests of the channel: the output of each message, session by session, rendered as text.
//!
//! A step is a datagram on a line, or a lapse of time. The output has one line for each call of the sink and for each
//! record. A table in a test is the row of the specification that it checks.
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

mod copy;
mod deep;
mod input;
mod itch;
mod itch_states;
mod properties;
mod recorded_output;
mod sessions;
mod tops;

use expect_test::Expect;

use self::{input::Stream, recorded_output::RecordedOutput};
use super::*;
use crate::book::BookLimits;
use mdgw_wire::{
    arbiter::{ArbiterConfig, RecoveryConfig},
    drop_reason::DropReason,
    frame::FrameKind,
    identity::ChannelId,
    time::TradingDate,
};

/// A channel and all its output.
struct ChannelHarness {
    channel: Channel,
    output: RecordedOutput,
    now: MonoNs,
}

/// 2019-01-30 09:30 in New York.
const OPEN: UnixNs = UnixNs(1_548_858_600_000_000_000);
/// When datagrams are received, after [`OPEN`].
const WIRE_NS: u64 = 7_000;

impl ChannelHarness {
    fn new(config: ChannelConfig) -> Self {
        Self { channel: Channel::new(config), output: RecordedOutput::default(), now: MonoNs(1) }
    }

    /// With small books and one line, on a fixed date.
    fn config(feed: Feed, schemas: SchemaSet) -> ChannelConfig {
        let books = BookLimits { instruments_max: 64, orders_max: 2_000, levels_max: 2_000, ..BookLimits::default() };
        let arbiter = ArbiterConfig { lines: 2, gap_timeout_ns: 1_000_000, ..ArbiterConfig::default() };
        ChannelConfig {
            schemas,
            books,
            arbiter,
            date: TradingDate::from_yyyymmdd(20_190_130),
            ..ChannelConfig::new(ChannelId(0), feed)
        }
    }

    fn datagram(&mut self, line: Line, bytes: &[u8]) -> &mut Self {
        let datagram = Datagram { line, bytes, ts_recv: UnixNs(OPEN.0 + WIRE_NS) };
        self.channel.accept(datagram, self.now, &mut self.output);
        self
    }

    fn datagrams<'a>(&mut self, packets: impl IntoIterator<Item = &'a Vec<u8>>) -> &mut Self {
        for packet in packets {
            self.datagram(Line::A, packet);
        }
        self
    }

    /// Lets every gap time out.
    fn wait(&mut self) -> &mut Self {
        self.now = self.now.plus(10_000_000);
        self.channel.on_deadline(self.now, &mut self.output);
        self
    }

    /// The output since the last call.
    fn expect_output(&mut self, expected: &Expect) -> &mut Self {
        expected.assert_eq(&self.output.take_text());
        self
    }
}

/// The output of the messages, in one packet on one line. Without the session's begin and the channel's state, which
/// are always the same.
fn check(feed: Feed, schemas: SchemaSet, messages: &[Vec<u8>], expected: &Expect) -> ChannelHarness {
    let mut harness = ChannelHarness::new(ChannelHarness::config(feed, schemas));
    let packets = Stream::new(feed).packets(messages, usize::MAX);
    harness.datagrams(&packets);
    let text = harness.output.take_text();
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with("session ") && *line != "state Live")
        .map(|line| format!("{line}\n"))
        .collect();
    expected.assert_eq(&text);
    harness
}
