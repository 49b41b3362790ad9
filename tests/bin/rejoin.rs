//! Measures how soon a gateway that lost everything has caught up with its peer, in the middle of a day with many open
//! orders.
//!
//! `MDGW_PROGRAM=target/release/mdgw cargo run --release -p mdgw-tests --bin rejoin -- [--orders 1000000] [--trials 5] [--packets 4000]`
//!
//! Two gateways on this host play a synthetic Nasdaq day at `--packets` per second. The day builds up `--orders` open orders
//! and keeps that number. Each trial kills the follower, empties its directory and starts it. It measures the time until the
//! gateway runs, until it is less than a second of messages behind its peer, and until it is eligible (which takes two
//! seconds of being caught up).
//!
//! It also measures the cost for the leader: the times of its `publish` stage while the follower catches up, and for an equal
//! time while the follower is down.

use std::{
    fmt::Write as _,
    fs,
    io::{BufWriter, Write as _},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use mdgw_publog::Reader;
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, write_day_file};
use mdgw_telemetry::stages::Stage;
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::Signal,
};
use mdgw_tools::report::Report;

/// Measures how soon a gateway that lost everything has caught up with its peer.
#[derive(Debug, Parser)]
#[command(name = "rejoin")]
struct RejoinArgs {
    /// Open orders in the books.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    orders: u32,
    /// Number of restarts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    trials: u32,
    /// Packets per second.
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    packets: u32,
}

fn main() -> ExitCode {
    let (text, code) = match run(&RejoinArgs::parse()) {
        Ok(text) => (text, 0),
        Err(error) => (format!("rejoin: {error}\n"), 2),
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { ExitCode::from(code) } else { ExitCode::from(2) }
}

fn run(args: &RejoinArgs) -> Result<String, String> {
    let RejoinArgs { orders, trials, packets } = *args;
    let mut wanted = GatewayOptions::itch();
    let orders_max = orders + orders / 4;
    wanted.latency = "interval_ms = 100\n";
    wanted.channel =
        format!("orders_max = {orders_max}\nlevels_max = 1000000\ninstruments_max = 8001\ngap_timeout_us = 2000\n");
    (wanted.segment_bytes, wanted.retention_bytes) = (64 << 20, 1 << 30);
    let mut pair = ElectedPair::new(wanted);
    let day_file = pair.gateways.fixture(1).path("S013019-v50.txt.itch");
    // A trial takes some seconds, and a packet carries about a dozen messages.
    let after = u64::from(trials) * 25 * u64::from(packets) * 12;
    let (orders_reached_at, messages) = write_day(&day_file, orders, after)?;

    pair.start(1);
    pair.start(2);
    let leader = pair.leader();
    pair.wait_until_eligible(3 - leader);
    let first = pair.gateways.fixture(1);
    let (requests, rate) = (first.requests.to_string(), packets.to_string());
    let feed = ["--capture", text(&day_file), "--rate", &rate, "--request-server", &requests, "--linger-s", "600"];
    let feed = first.sim(&feed);
    let mut log = LeaderLog::open(pair.gateways.fixture(leader))?;
    while log.next_sequence() < orders_reached_at {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut report = format!("{orders} open orders after {orders_reached_at} of {messages} messages\n");
    report.push_str("trial   at message   it runs   caught up within a second   eligible   (ms)\n");
    let mut periods = Vec::new();
    for trial in 1..=trials {
        let restarted = 3 - leader;
        pair.gateways.kill(restarted);
        for name in ["log", "state.json", "latency"] {
            let path = pair.gateways.fixture(restarted).path(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| format!("remove {}: {error}", path.display()))?;
        }
        // The control period, while the follower is down, is as long as the last catch-up.
        let control = periods.last().map_or(CONTROL_FIRST, |(_, restarted): &(TimeSpan, TimeSpan)| restarted.length());
        let control = TimeSpan::of(|| std::thread::sleep(control));
        let restart_time = SystemTime::now();
        let at = log.next_sequence();
        let restarted_at = Instant::now();
        pair.start(restarted);
        let runs = restarted_at.elapsed();
        let (mut caught_up, mut eligible) = (None, None);
        while eligible.is_none() {
            let status = pair.status(restarted).ok_or("the gateway that came back doesn't answer")?;
            let joining = &status["details"]["joining"];
            let missing_messages = joining["behind_messages"].as_u64().unwrap_or(u64::MAX);
            let is_joined = joining["channels_missing"] == 0 && joining.is_object() && log.next_sequence() > at;
            if is_joined && missing_messages < u64::from(packets) * 12 {
                caught_up.get_or_insert_with(|| restarted_at.elapsed());
            } else {
                caught_up = None;
            }
            if status["role"] == "candidate" {
                eligible = Some(restarted_at.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let shown = |time: Option<Duration>| {
            time.map_or_else(|| "-".to_owned(), |time| format!("{:.0}", time.as_secs_f64() * 1e3))
        };
        periods.push((control, TimeSpan { from: restart_time, until: restart_time + caught_up.unwrap_or_default() }));
        let [runs, caught_up, eligible] = [Some(runs), caught_up, eligible].map(shown);
        let _ = writeln!(report, "{trial:>5}   {at:>10}   {runs:>7}   {caught_up:>25}   {eligible:>8}");
    }
    let _ = writeln!(report, "the feed at the end: message {}", log.next_sequence());
    let _ended = feed.stop_with(Signal::Terminate);
    let _exited = pair.gateways.stop(leader);
    let latency = LatencyIntervals::of(&pair.gateways.fixture(leader).path("latency"))?;
    report.push_str(
        "the leader's publish stage, us      follower down p50   p99   max      follower catching up p50   p99   max\n",
    );
    for (trial, (control, restarted)) in (1..).zip(&periods) {
        let [control, restarted] = [latency.within(control), latency.within(restarted)];
        let _ = writeln!(report, "{trial:>5}   {control:>48}   {restarted:>46}");
    }
    Ok(report)
}

/// The first control period: no catch-up has been measured yet.
const CONTROL_FIRST: Duration = Duration::from_secs(2);

/// A period of wall-clock time, as latency logs use it.
#[derive(Clone, Copy, Debug)]
struct TimeSpan {
    from: SystemTime,
    until: SystemTime,
}

impl TimeSpan {
    fn of(act: impl FnOnce()) -> Self {
        let from = SystemTime::now();
        act();
        Self { from, until: SystemTime::now() }
    }

    fn length(&self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// A latency log: its header lines, and every other line with its interval.
struct LatencyIntervals {
    headers: String,
    /// Begin and end in seconds since 1970 UTC, and the line.
    intervals: Vec<(f64, f64, String)>,
}

impl LatencyIntervals {
    fn of(directory: &Path) -> Result<Self, String> {
        let unreadable = |error| format!("read {}: {error}", directory.display());
        let path = fs::read_dir(directory)
            .map_err(unreadable)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "hlog"))
            .ok_or_else(|| format!("no latency log in {}", directory.display()))?;
        let text = fs::read_to_string(&path).map_err(unreadable)?;
        let base = text.lines().find_map(|line| line.strip_prefix("#[BaseTime: ")?.split(' ').next()?.parse().ok());
        let base: f64 = base.ok_or("a latency log without a base time")?;
        let (headers, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.starts_with("Tag="));
        let interval = |line: &str| {
            let mut fields = line.split(',').skip(1).map_while(|field| field.parse::<f64>().ok());
            let (start, length) = (base + fields.next()?, fields.next()?);
            Some((start, start + length, line.to_owned()))
        };
        let is_head = |line: &&str| !line.starts_with("#[counts");
        let headers = headers.into_iter().filter(is_head).fold(String::new(), |headers, line| headers + line + "\n");
        Ok(Self { headers, intervals: lines.into_iter().filter_map(interval).collect() })
    }

    /// p50, p99 and maximum in us, over the intervals that lie within the period.
    fn within(&self, period: &TimeSpan) -> String {
        let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (from, until) = (seconds(period.from), seconds(period.until));
        let lines = self.intervals.iter().filter(|(begin, end, _)| from <= *begin && *end <= until);
        let text = lines.fold(self.headers.clone(), |text, (.., line)| text + line + "\n");
        let report = Report::of(&[("period.hlog".into(), text.into_bytes())], None);
        let Some(stage) = report.channels.first().and_then(|channel| channel.stage(Stage::Publish)) else {
            return "-".to_owned();
        };
        let us = |quantile| stage.histogram.value_at_quantile(quantile) as f64 / 1e3;
        format!("{:.1}   {:.1}   {:.0}", us(0.5), us(0.99), us(1.0))
    }
}

/// Writes a day that builds up `orders` open orders. Returns the number of messages until the orders are open, and the
/// number of all messages.
fn write_day(path: &Path, orders: u32, after: u64) -> Result<(u64, u64), String> {
    let unbounded_day = ItchDay { live_orders: orders + orders / 50, message_count: u64::MAX, ..ItchDay::default() };
    let (mut generator, mut message) = (ItchGenerator::new(unbounded_day), Vec::new());
    while generator.live_orders() < orders {
        generator.next_message(&mut message);
    }
    let orders_reached_at = generator.generated();
    let day = ItchDay { message_count: orders_reached_at + after, ..unbounded_day };
    let written = fs::File::create(path).and_then(|file| {
        let mut writer = BufWriter::new(file);
        let count = write_day_file(&mut ItchGenerator::new(day), &mut writer)?;
        writer.flush()?;
        Ok(count)
    });
    written.map(|count| (orders_reached_at, count)).map_err(|error| format!("write {}: {error}", path.display()))
}

/// The leader's publication log, read for its position.
struct LeaderLog {
    reader: Reader,
    next: u64,
}

impl LeaderLog {
    fn open(fixture: &GatewayFixture) -> Result<Self, String> {
        let directory = fixture.path("log").join("1");
        let reader = Reader::open(&directory, 1).map_err(|error| format!("read {}: {error}", directory.display()))?;
        Ok(Self { reader, next: 0 })
    }

    fn next_sequence(&mut self) -> u64 {
        while let Some(entry) = self.reader.next() {
            self.next = entry.next;
        }
        self.next
    }
}
