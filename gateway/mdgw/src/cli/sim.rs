//! `mdgw sim`: an exchange of our own.

use std::{fmt::Write as _, net::SocketAddrV4, path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use mdgw_captures::{
    impairment::{LineImpairment, LossPolicy},
    pacer::Pace,
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
  mdgw sim --capture day.pcap --line 239.1.1.1:16648 --line 239.1.1.2:16648 --skew-us 0,30 --speed 9")]
pub(super) struct Args {
    /// Play this capture or day file instead of a made-up Nasdaq day.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Trading date of a day file (YYYY-MM-DD), where its name tells none. The packets of other feeds tell their own, or none.
    #[arg(long, requires = "capture", value_name = "DATE")]
    date: Option<TradingDate>,
    /// Messages of the made-up day.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    messages: u64,
    /// Stocks of the made-up day.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    stocks: u16,
    /// Seed of the made-up day and of all damage: the same seed does the same.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Session of the made-up day, up to ten characters.
    #[arg(long, default_value = "MDGWSIM001", value_name = "NAME", conflicts_with = "capture", value_parser = session)]
    session: MoldSession,
    /// Where a line goes (address:port); once for each line, A first.
    #[arg(long = "line", required = true, value_name = "ADDR:PORT")]
    lines: Vec<SocketAddrV4>,
    /// By which interface the lines leave (name or address).
    #[arg(long, value_name = "IF")]
    interface: Option<Interface>,
    /// Chance that a packet is lost; one for all lines or one for each (0.01,0.02).
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P")]
    loss: Vec<f64>,
    /// Chance that a packet comes twice; as --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P")]
    duplicate: Vec<f64>,
    /// Chance that a packet is overtaken by the next ones; as --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P")]
    reorder: Vec<f64>,
    /// How much later each line delivers, in microseconds; as --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "US")]
    skew_us: Vec<u64>,
    /// Never lose a packet on all lines.
    #[arg(long)]
    never_on_all: bool,
    /// Answer MoldUDP64 requests here.
    #[arg(long, value_name = "ADDR:PORT")]
    request_server: Option<SocketAddrV4>,
    /// Chance that an answer is lost.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    answer_loss: f64,
    /// So many times as fast as the times in the feed say.
    #[arg(long, conflicts_with_all = ["rate", "max"], value_name = "FACTOR")]
    speed: Option<f64>,
    /// So many packets a second.
    #[arg(long, conflicts_with = "max", value_name = "PPS")]
    rate: Option<f64>,
    /// As fast as the machine sends.
    #[arg(long)]
    max: bool,
    /// Go on answering requests for so long after the last packet.
    #[arg(long, default_value_t = 0, value_name = "S")]
    linger_s: u64,
    /// Print what was played as one line of JSON.
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
            "refused": report.refused,
            "requests_answered": report.requests.answered,
            "requests_unanswered": report.requests.unanswered,
            "answers_lost": report.requests.lost,
        });
        writeln!(text, "{line}")?;
    } else {
        writeln!(text, "played {} packets with {} messages", report.packets, report.messages)?;
        writeln!(text, "sent {} copies on {} lines, {} refused", report.copies, args.lines.len(), report.refused)?;
        writeln!(
            text,
            "requests: {} answered, {} unanswered, {} answers lost",
            report.requests.answered, report.requests.unanswered, report.requests.lost
        )?;
    }
    print(&text)?;
    Ok(Outcome::Done)
}

/// How often the end is looked for.
const POLL: Duration = Duration::from_millis(20);

fn config(args: &Args) -> anyhow::Result<ExchangeConfig> {
    let feed = match &args.capture {
        Some(path) => FeedSource::Capture { path: path.clone(), date: args.date },
        None => FeedSource::Itch(ItchDay {
            seed: args.seed,
            message_count: args.messages,
            stock_count: args.stocks,
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
        (_, Some(rate), _) => Pace::Rate(rate),
        (speed, None, false) => Pace::Original(speed.unwrap_or(1.0)),
    };
    let pace_number = args.speed.or(args.rate).unwrap_or(1.0);
    ensure!(pace_number.is_finite() && pace_number > 0.0, "--speed and --rate must be above 0");
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

/// As it stands in packets: letters and digits, filled up with spaces on the right.
fn session(name: &str) -> Result<MoldSession, String> {
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_plain || name.len() > size_of::<MoldSession>() {
        return Err("a session's name has one to ten letters or digits".to_owned());
    }
    let mut session = MoldSession::from([b' '; size_of::<MoldSession>()]);
    session[..name.len()].copy_from_slice(name.as_bytes());
    Ok(session)
}

/// The chance of one line, where one was given for all or one for each.
pub(super) fn chance(option: &str, values: &[f64], line: usize, lines: usize) -> anyhow::Result<f64> {
    let chance = value_of_line(option, values, line, lines)?;
    ensure!((0.0..=1.0).contains(&chance), "{option} {chance}: a chance is between 0 and 1");
    Ok(chance)
}

/// The value of one line, where one was given for all or one for each.
pub(super) fn value_of_line<T: Copy>(option: &str, values: &[T], line: usize, lines: usize) -> anyhow::Result<T> {
    ensure!(values.len() == 1 || values.len() == lines, "{option}: give one value, or one for each of {lines} lines");
    values.get(line).or_else(|| values.first()).copied().with_context(|| format!("{option}: no value"))
}
