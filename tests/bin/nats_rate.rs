//! Measures how fast `mdgw nats` writes a day into a local nats-server, with its streams in files and in memory.
//!
//! `MDGW_PROGRAM=target/release/mdgw cargo run -p mdgw-tests --features stores --bin nats_rate -- [--messages 200000] [--trials 3] [--in-flight 4096]`
//!
//! A gateway publishes a synthetic Nasdaq day first. Then each trial starts a server with an empty directory and the sink, which finds the
//! whole day in the log. The time ends when the stream has the end of the session. Sink and server share the host.

use std::{
    fs,
    io::Write as _,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    nats::NatsServer,
    process::{self, Signal},
    trading_day::TradingDay,
};

/// Measures how fast `mdgw nats` writes a day into a local nats-server.
#[derive(Debug, Parser)]
#[command(name = "nats_rate")]
struct RateArgs {
    /// Messages of the venue's day.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    messages: u64,
    /// Trials for each kind of storage.
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: u32,
    /// Messages without an acknowledgement.
    #[arg(long, value_name = "N", default_value_t = 4_096)]
    in_flight: u32,
}

fn main() -> ExitCode {
    let Some(text) = run(&RateArgs::parse()) else { return ExitCode::from(2) };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

fn run(args: &RateArgs) -> Option<String> {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, args.messages);
    let options = GatewayOptions {
        channel: "orders_max = 262144\nlevels_max = 262144\ngap_timeout_us = 2000\nwindow_packets = 16384\n".to_owned(),
        segment_bytes: 64 << 20,
        retention_bytes: 1 << 30,
        ..GatewayOptions::itch()
    };
    let gateway = day.gateway(&fixture, &options);
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let mut table = "storage  trial  messages  seconds  messages/s\n".to_owned();
    for storage in ["file", "memory"] {
        for trial in 1..=args.trials {
            let server = NatsServer::started("nats_rate")?;
            let config = fs::read_to_string(fixture.path("gateway.toml")).ok()?;
            let keys = format!("storage = \"{storage}\"\nin_flight_max = {}", args.in_flight);
            let path = fixture.path("nats.toml");
            fs::write(&path, config + &format!("[nats]\nservers = [\"{}\"]\n{keys}\n", server.url())).ok()?;
            let begin = Instant::now();
            let sink = process::start(["nats", text(&path)]);
            while !server.ends_with(STREAM, "mdgw.XNAS.ITCH._end") {
                thread::sleep(Duration::from_millis(10));
            }
            let seconds = begin.elapsed().as_secs_f64();
            let count = server.message_count(STREAM)?;
            let _ = sink.stop_with(Signal::Terminate).expect_code(0);
            #[allow(clippy::cast_precision_loss, reason = "a count for a rate")]
            let rate = count as f64 / seconds;
            table += &format!("{storage:7}  {trial:5}  {count:8}  {seconds:7.2}  {rate:10.0}\n");
        }
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    Some(table)
}

const STREAM: &str = "mdgw-XNAS-ITCH";
