//! `mdgw sim`: the exchange simulator.

use std::{fmt::Write as _, net::SocketAddrV4, path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use mdgw_captures::{
    impairment::{LineImpairment, LossPolicy},
    pacer::{Bursts, Pace},
};
use mdgw_feeds::{time::TradingDate, transport::moldudp64::MoldSession};
use mdgw_simulator::{
    exchange::{Exchange, ExchangeConfig, ExchangeLine},
    itch_generator::ItchDay,
    source::FeedSource,
};
use mdgw_sys::sockets::Interface;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use super::{Outcome, print};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw sim --line 239.1.1.1:26477 --line 239.1.1.2:26477 --loss 0.1 --request-server 10.0.0.1:9000
  mdgw sim --line 239.1.1.1:26477 --rate 4500 --burst-rate 45000 --burst-ms 10 --burst-every-ms 1000
  mdgw sim --capture day.pcap --line 239.1.1.1:16648 --line 239.1.1.2:16648 --skew-us 0,30 --speed 9")]
pub(super) struct Args {
    /// Send this capture or day file instead of a synthetic Nasdaq session.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Trading date of a day file without a date in its name (YYYY-MM-DD).
    #[arg(long, requires = "capture", value_name = "DATE")]
    date: Option<TradingDate>,
    /// Messages in the synthetic session.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    messages: u64,
    /// Instruments in the synthetic session.
    #[arg(long, alias = "stocks", default_value_t = 1_000, value_name = "N")]
    instruments: u16,
    /// Seed of the synthetic session and of the injected faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// MoldUDP64 session name of the synthetic session, up to ten characters.
    #[arg(long, default_value = "MDGWSIM001", value_name = "NAME", conflicts_with = "capture", value_parser = session)]
    session: MoldSession,
    /// Destination of a line (address:port); repeat for each line, A first.
    #[arg(long = "line", required = true, value_name = "ADDR:PORT")]
    lines: Vec<SocketAddrV4>,
    /// Outgoing interface of the lines (name or address).
    #[arg(long, value_name = "IF")]
    interface: Option<Interface>,
    /// Probability of loss; one value for all lines, or one per line (0.01,0.02).
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P")]
    loss: Vec<f64>,
    /// Probability of duplication; values as for --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P")]
    duplicate: Vec<f64>,
    /// Probability of reordering; values as for --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P")]
    reorder: Vec<f64>,
    /// Added delay of each line, microseconds; values as for --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "US")]
    skew_us: Vec<u64>,
    /// Never lose the same packet on all lines.
    #[arg(long)]
    never_on_all: bool,
    /// Serve MoldUDP64 retransmission requests on this address.
    #[arg(long, value_name = "ADDR:PORT")]
    request_server: Option<SocketAddrV4>,
    /// Probability that a retransmission is lost.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    answer_loss: f64,
    /// Speed factor relative to the feed's timestamps.
    #[arg(long, conflicts_with_all = ["rate", "max"], value_name = "FACTOR")]
    speed: Option<f64>,
    /// Packets per second.
    #[arg(long, conflicts_with = "max", value_name = "PPS")]
    rate: Option<f64>,
    /// Packets per second in bursts; --rate is the rate between them.
    #[arg(long, requires = "rate", value_name = "PPS")]
    burst_rate: Option<f64>,
    /// Duration of a burst, milliseconds.
    #[arg(long, requires = "burst_rate", default_value_t = 10, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    burst_ms: u64,
    /// From the beginning of one burst to the next, milliseconds; more than --burst-ms.
    #[arg(long, requires = "burst_rate", default_value_t = 1_000, value_name = "MS", value_parser = clap::value_parser!(u64).range(2..))]
    burst_every_ms: u64,
    /// Send as fast as possible.
    #[arg(long)]
    max: bool,
    /// Keep serving requests for this many seconds after the last packet.
    #[arg(long, default_value_t = 0, value_name = "S")]
    linger_s: u64,
    /// Print the summary as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = config(args)?;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, std::sync::Arc::clone(&stop)).context("catch signals")?;
    }
    let is_stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let exchange = Exchange::start(&config)?;
    while !exchange.is_done() && !is_stopped() {
        std::thread::sleep(POLL);
    }
    let mut left = Duration::from_secs(args.linger_s);
    while !left.is_zero() && !is_stopped() {
        std::thread::sleep(POLL);
        left = left.saturating_sub(POLL);
    }
    let report = exchange.stop().context("play")?;
    let mut text = String::new();
    if args.json {
        let line = serde_json::json!({
            "packets": report.packets,
            "messages": report.messages,
            "copies": report.copies,
            "send_errors": report.refused,
            "requests_answered": report.requests.answered,
            "requests_unanswered": report.requests.unanswered,
            "answers_lost": report.requests.lost,
        });
        writeln!(text, "{line}")?;
    } else {
        writeln!(text, "sent {} packets with {} messages", report.packets, report.messages)?;
        writeln!(text, "{} copies on {} lines, {} send errors", report.copies, args.lines.len(), report.refused)?;
        writeln!(
            text,
            "requests: {} answered, {} unanswered, {} retransmissions dropped (--answer-loss)",
            report.requests.answered, report.requests.unanswered, report.requests.lost
        )?;
    }
    print(&text)?;
    Ok(Outcome::Done)
}

/// Interval at which the end of the feed and signals are checked.
const POLL: Duration = Duration::from_millis(20);

fn config(args: &Args) -> anyhow::Result<ExchangeConfig> {
    let feed = match &args.capture {
        Some(path) => FeedSource::Capture { path: path.clone(), date: args.date },
        None => FeedSource::Itch(ItchDay {
            seed: args.seed,
            message_count: args.messages,
            stock_count: args.instruments,
            session: args.session,
            ..ItchDay::default()
        }),
    };
    let lines = args.lines.iter().enumerate().map(|(number, destination)| {
        let impairment = LineImpairment {
            loss: chance("--loss", &args.loss, number, args.lines.len())?,
            duplicate: chance("--duplicate", &args.duplicate, number, args.lines.len())?,
            reorder: chance("--reorder", &args.reorder, number, args.lines.len())?,
            skew_ns: value_of_line("--skew-us", &args.skew_us, number, args.lines.len())?.saturating_mul(1_000),
        };
        Ok(ExchangeLine { destination: *destination, impairment })
    });
    let pace = match (args.speed, args.rate, args.max) {
        (_, _, true) => Pace::Max,
        (_, Some(rate), _) => args.burst_rate.map_or(Pace::Rate(rate), |burst_rate| {
            let [burst_ns, period_ns] = [args.burst_ms, args.burst_every_ms].map(|ms| ms.saturating_mul(1_000_000));
            Pace::Bursts(Bursts { rate, burst_rate, burst_ns, period_ns })
        }),
        (speed, None, false) => Pace::Original(speed.unwrap_or(1.0)),
    };
    let pace_number = args.speed.or(args.rate).unwrap_or(1.0);
    ensure!(pace_number.is_finite() && pace_number > 0.0, "--speed and --rate must be above 0");
    let burst_rate = args.burst_rate.unwrap_or(1.0);
    ensure!(burst_rate.is_finite() && burst_rate > 0.0, "--burst-rate must be above 0");
    ensure!(args.burst_every_ms > args.burst_ms, "--burst-every-ms must be more than --burst-ms");
    ensure!((0.0..=1.0).contains(&args.answer_loss), "--answer-loss must be between 0 and 1");
    Ok(ExchangeConfig {
        feed,
        lines: lines.collect::<anyhow::Result<_>>()?,
        loss_policy: if args.never_on_all { LossPolicy::NeverOnAllLines } else { LossPolicy::Independent },
        seed: args.seed,
        pace,
        interface: args.interface.clone(),
        request_server: args.request_server,
        answer_loss: args.answer_loss,
    })
}

/// Session name as in MoldUDP64 packets: letters and digits, padded with spaces on the right.
fn session(name: &str) -> Result<MoldSession, String> {
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_plain || name.len() > size_of::<MoldSession>() {
        return Err("a session name has 1 to 10 letters or digits".to_owned());
    }
    let mut session = MoldSession::from([b' '; size_of::<MoldSession>()]);
    session[..name.len()].copy_from_slice(name.as_bytes());
    Ok(session)
}

/// The probability of one line; `values` holds one value for all lines or one per line.
pub(super) fn chance(option: &str, values: &[f64], line: usize, lines: usize) -> anyhow::Result<f64> {
    let chance = value_of_line(option, values, line, lines)?;
    ensure!((0.0..=1.0).contains(&chance), "{option} {chance}: must be between 0 and 1");
    Ok(chance)
}

/// The value of one line; `values` holds one value for all lines or one per line.
pub(super) fn value_of_line<T: Copy>(option: &str, values: &[T], line: usize, lines: usize) -> anyhow::Result<T> {
    ensure!(values.len() == 1 || values.len() == lines, "{option}: give one value, or one per line ({lines} lines)");
    values.get(line).or_else(|| values.first()).copied().with_context(|| format!("{option}: no value"))
}
