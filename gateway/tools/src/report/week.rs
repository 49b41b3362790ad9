//! The summary of a week: one row for each day and channel.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;
use mdgw_feeds::{
    identity::ChannelId,
    time::{TradingDate, UnixNs},
};
use mdgw_status::quantity::Count;
use mdgw_telemetry::stages::Stage;
use serde_json::{Value, json};

use super::{
    ChannelCounts, ChannelReport, LatencyStatistics, LogDamage, Report,
    gaps::GapNotes,
    json::{counted_value, gap_counts_value, takeover_value},
    quantity::{Latency, TimeOfDay},
    statistics::{add, empty_histogram},
    table,
    takeovers::Takeover,
};

/// Up to seven consecutive days, the last one that has a log at the end.
#[derive(Debug)]
pub struct Week {
    /// Days from the first one that has a log, at most [`DAYS`].
    pub(super) days: Vec<Day>,
    /// All channels of these days, by number.
    pub(super) channels: Vec<WeekChannel>,
    pub(super) takeovers: Vec<Takeover>,
    pub(super) damage: Vec<LogDamage>,
}

/// Follows the first and the last day.
pub(super) const NOTE: &str = "days in UTC; latencies are wire to wire";

/// What the columns lack.
pub(super) const LIMITS: [&str; 2] = [
    "Latencies are those of packets that a leader sent as they came: no column of them has the time in which no gateway published, nor the catch-up of a new leader.",
    "Blackouts are those of the takeovers in the audit files (–: none is known, or no audit file was given). An outage without a change of leadership is in no column.",
];

/// Days of a week.
pub const DAYS: usize = 7;

#[derive(Debug)]
pub(super) struct Day {
    pub(super) date: TradingDate,
    has_logs: bool,
}

#[derive(Debug)]
pub(super) struct WeekChannel {
    pub(super) id: ChannelId,
    pub(super) name: Option<String>,
    pub(super) title: String,
    /// One for each day; `None` where the channel was not logged.
    pub(super) days: Vec<Option<DayValues>>,
    pub(super) week: DayValues,
}

/// What a row shows.
#[derive(Clone, Debug, Default)]
pub(super) struct DayValues {
    pub(super) counted: ChannelCounts,
    /// Highest rate of messages (of packets, where messages were not counted) in an interval, per second.
    pub(super) per_s_max: f64,
    /// All values of `wire_to_wire`: none for a gateway that stood by.
    pub(super) latency: LatencyStatistics,
    /// The slice of the day with the highest 99th percentile: begin, and that percentile, ns.
    pub(super) slowest: Option<(UnixNs, u64)>,
    pub(super) gap_notes: GapNotes,
    /// `None` without an audit file.
    pub(super) takeovers: Option<TakeoverCosts>,
}

/// Takeovers of a channel, and what consumers waited for in them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakeoverCosts {
    pub(super) count: u64,
    /// The longest blackout, ns, of those that are known.
    pub(super) blackout_max_ns: Option<u64>,
    /// All known blackouts together, ns.
    pub(super) blackout_sum_ns: Option<u64>,
}

impl TakeoverCosts {
    fn of<'t>(takeovers: impl Iterator<Item = &'t Takeover>, channel: ChannelId) -> Self {
        takeovers.fold(Self::default(), |mut costs, takeover| {
            let blackout_ns = takeover.blackout_ns(Some(channel));
            costs.add(Self { count: 1, blackout_max_ns: blackout_ns, blackout_sum_ns: blackout_ns });
            costs
        })
    }

    fn add(&mut self, more: Self) {
        self.count += more.count;
        self.blackout_max_ns = self.blackout_max_ns.max(more.blackout_max_ns);
        let sums = [self.blackout_sum_ns, more.blackout_sum_ns];
        self.blackout_sum_ns = sums.into_iter().flatten().reduce(u64::saturating_add);
    }
}

/// Heads of a row's cells, and the width of each in the terminal.
pub(super) const COLUMNS: [(&str, usize); 13] = [
    ("messages", 16),
    ("peak/s", 10),
    ("gaps", 6),
    ("(messages)", 12),
    ("drops", 10),
    ("p50", 10),
    ("p99", 10),
    ("p99.9", 10),
    ("max", 10),
    ("slowest", 10),
    ("takeovers", 11),
    ("blackout max", 14),
    ("sum", 10),
];

impl Week {
    /// From one report for each day on which logs begin, in order of the days, and all takeovers of the audit files; `None`
    /// without an audit file.
    #[must_use]
    pub fn of(reports: Vec<(TradingDate, Report)>, takeovers: Option<&[Takeover]>) -> Self {
        let last = reports.last().map(|(date, _)| *date);
        let reports: Vec<_> = reports
            .into_iter()
            .filter(|(date, _)| last.is_some_and(|last| days_between(*date, last).len() <= DAYS))
            .collect();
        let days: Vec<Day> = match (reports.first(), last) {
            (Some((first, _)), Some(last)) => days_between(*first, last)
                .into_iter()
                .map(|date| Day { date, has_logs: reports.iter().any(|(logged, _)| *logged == date) })
                .collect(),
            _ => Vec::new(),
        };
        let is_within = |takeover: &&Takeover| days.iter().any(|day| day.date == TradingDate::in_utc(takeover.time));
        let has_audit = takeovers.is_some();
        let mut takeovers: Vec<Takeover> = takeovers.unwrap_or_default().iter().filter(is_within).cloned().collect();
        takeovers.sort_by_key(|takeover| takeover.time);
        let known = has_audit.then_some(takeovers.as_slice());
        let mut ids: Vec<ChannelId> =
            reports.iter().flat_map(|(_, report)| &report.channels).map(|channel| channel.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let channels = ids.into_iter().map(|id| WeekChannel::of(id, &days, &reports, known)).collect();
        let damage = reports.into_iter().flat_map(|(_, report)| report.damage).collect();
        Self { days, channels, takeovers, damage }
    }

    /// Unreadable lines of the logs of these days.
    #[must_use]
    pub fn damage(&self) -> &[LogDamage] {
        &self.damage
    }

    /// Whether no log of these days holds an interval.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Writes the table.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, out: &mut impl Write) -> fmt::Result {
        let (Some(first), Some(last)) = (self.days.first(), self.days.last()) else { return Ok(()) };
        writeln!(out, "{} to {}, {NOTE}", first.date, last.date)?;
        for channel in &self.channels {
            write!(out, "\n{:<16}", channel.title)?;
            COLUMNS.iter().try_for_each(|(name, width)| write!(out, "{name:>width$}"))?;
            writeln!(out)?;
            for (day, values) in self.days.iter().zip(&channel.days) {
                let name = format!("  {}", day.title());
                match values {
                    Some(values) => values.write(&name, out)?,
                    None => writeln!(out, "{name:<16}  {}", day.without_values())?,
                }
            }
            channel.week.write("  all", out)?;
            self.gap_notes(channel).try_for_each(|(day, note)| writeln!(out, "  {}  {note}", day.title()))?;
        }
        writeln!(out)?;
        LIMITS.iter().try_for_each(|limit| writeln!(out, "{limit}"))?;
        table::takeovers(&self.takeovers, out)
    }

    /// Each day of the channel with a note on its gaps.
    pub(super) fn gap_notes<'w>(&'w self, channel: &'w WeekChannel) -> impl Iterator<Item = (&'w Day, String)> {
        let days = self.days.iter().zip(&channel.days);
        let notes = days.filter_map(|(day, values)| Some((day, values.as_ref()?.gap_notes)));
        notes.flat_map(|(day, notes)| notes.lines().map(move |note| (day, note)))
    }

    /// The object that `mdgw report --week --json` prints. Times are nanoseconds.
    #[must_use]
    pub fn json(&self) -> Value {
        let channels: Vec<Value> = self
            .channels
            .iter()
            .map(|channel| {
                let days: Vec<Value> = self
                    .days
                    .iter()
                    .zip(&channel.days)
                    .map(|(day, values)| json!({ "date": day.date.to_string(), "values": values.as_ref().map(DayValues::json) }))
                    .collect();
                json!({ "id": channel.id.0, "title": channel.title, "days": days, "all": channel.week.json() })
            })
            .collect();
        let takeovers: Vec<Value> = self.takeovers.iter().map(takeover_value).collect();
        let damage: Vec<String> = self.damage.iter().map(ToString::to_string).collect();
        json!({ "channels": channels, "takeovers": takeovers, "damage": damage })
    }
}

impl Day {
    /// Weekday and date.
    pub(super) fn title(&self) -> String {
        format!("{} {}", weekday(self.date), self.date)
    }

    /// Why a channel has no values of this day.
    pub(super) fn without_values(&self) -> &'static str {
        if self.has_logs { "not logged" } else { "no log" }
    }
}

impl WeekChannel {
    fn of(id: ChannelId, days: &[Day], reports: &[(TradingDate, Report)], takeovers: Option<&[Takeover]>) -> Self {
        let (mut name, mut title) = (None, format!("channel {}", id.0));
        let (mut week, mut all) = (DayValues::default(), empty_histogram());
        let values = days.iter().map(|day| {
            let (_, report) = reports.iter().find(|(date, _)| *date == day.date)?;
            let channel = report.channels.iter().find(|channel| channel.id == id)?;
            // The logs of a day may lack the name that those of another day have.
            if channel.name.is_some() || name.is_none() {
                (name, title) = (channel.name.clone(), channel.title());
            }
            let mut values = DayValues::of(channel, &mut all);
            let of_day = |takeover: &&Takeover| TradingDate::in_utc(takeover.time) == day.date && takeover.concerns(id);
            values.takeovers = takeovers.map(|takeovers| TakeoverCosts::of(takeovers.iter().filter(of_day), id));
            week.add(&values);
            Some(values)
        });
        let days = values.collect();
        week.latency = LatencyStatistics::of(&all);
        Self { id, name, title, days, week }
    }
}

impl DayValues {
    /// Adds the values to `all`.
    fn of(channel: &ChannelReport, all: &mut Histogram<u64>) -> Self {
        let stage = channel.stage(Stage::WireToWire);
        let timeline = stage.map_or(&[][..], |stage| &stage.timeline);
        // The rates of all stages are the channel's.
        let rates = stage.or_else(|| channel.stages.last()).map_or(&[][..], |stage| &stage.timeline);
        if let Some(stage) = stage {
            add(all, &stage.histogram);
        }
        Self {
            counted: channel.counted,
            per_s_max: rates.iter().map(|point| point.per_s_max).fold(0.0, f64::max),
            latency: stage.map(|stage| LatencyStatistics::of(&stage.histogram)).unwrap_or_default(),
            slowest: timeline.iter().max_by_key(|point| point.p99_ns).map(|point| (point.start, point.p99_ns)),
            gap_notes: channel.gaps.notes(),
            takeovers: None,
        }
    }

    fn add(&mut self, day: &Self) {
        let (sum, more) = (&mut self.counted, &day.counted);
        sum.datagrams = sum.datagrams.saturating_add(more.datagrams);
        sum.messages = sum.messages.saturating_add(more.messages);
        sum.gaps = sum.gaps.saturating_add(more.gaps);
        sum.gap_messages = sum.gap_messages.saturating_add(more.gap_messages);
        sum.drops = sum.drops.saturating_add(more.drops);
        self.gap_notes = self.gap_notes + day.gap_notes;
        self.per_s_max = self.per_s_max.max(day.per_s_max);
        if let Some(costs) = day.takeovers {
            self.takeovers.get_or_insert_default().add(costs);
        }
    }

    /// The texts below [`COLUMNS`].
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, shown without decimals")]
    pub(super) fn cells(&self) -> [String; COLUMNS.len()] {
        let ChannelCounts { messages, gaps, gap_messages, drops, .. } = self.counted;
        let [messages, per_s, gaps, gap_messages, drops] =
            [messages, self.per_s_max as u64, gaps, gap_messages, drops].map(|count| Count(count).to_string());
        let [p50_ns, _, p99_ns, p999_ns, _] = self.latency.percentiles_ns;
        let [p50, p99, p999, max] = [p50_ns, p99_ns, p999_ns, self.latency.max_ns]
            .map(|ns| if self.latency.count == 0 { "–".to_owned() } else { Latency(ns).to_string() });
        let slowest = self.slowest.map_or_else(|| "–".to_owned(), |(start, _)| TimeOfDay(start).to_string());
        let takeovers = self.takeovers.map_or_else(|| "–".to_owned(), |costs| costs.count.to_string());
        let costs = self.takeovers.unwrap_or_default();
        let [blackout_max, blackout_sum] = [costs.blackout_max_ns, costs.blackout_sum_ns]
            .map(|ns| ns.map_or_else(|| "–".to_owned(), |ns| Latency(ns).to_string()));
        [
            messages,
            per_s,
            gaps,
            gap_messages,
            drops,
            p50,
            p99,
            p999,
            max,
            slowest,
            takeovers,
            blackout_max,
            blackout_sum,
        ]
    }

    fn write(&self, name: &str, out: &mut impl Write) -> fmt::Result {
        write!(out, "{name:<16}")?;
        COLUMNS.iter().zip(self.cells()).try_for_each(|((_, width), cell)| write!(out, "{cell:>width$}"))?;
        writeln!(out)
    }

    fn json(&self) -> Value {
        let latency: serde_json::Map<String, Value> =
            self.latency.named().map(|(name, ns)| (format!("{name}_ns"), json!(ns))).collect();
        json!({
            "counted": counted_value(&self.counted),
            "per_s_max": self.per_s_max,
            "count": self.latency.count,
            "wire_to_wire": latency,
            "slowest": self.slowest.map(|(start, p99_ns)| json!({ "from_ns": start.0, "p99_ns": p99_ns })),
            "gaps_of_standby_only": gap_counts_value(self.gap_notes.of_standby),
            "gaps_with_leader_unknown": gap_counts_value(self.gap_notes.leader_unknown),
            "takeovers": self.takeovers.map(|costs| costs.count),
            "blackout_max_ns": self.takeovers.and_then(|costs| costs.blackout_max_ns),
            "blackout_sum_ns": self.takeovers.and_then(|costs| costs.blackout_sum_ns),
        })
    }
}

/// All days from one to the other, both included.
fn days_between(first: TradingDate, last: TradingDate) -> Vec<TradingDate> {
    // One day more than a week is enough to see that the two are too far apart.
    std::iter::successors(Some(first), |day| Some(day.next_day()))
        .take_while(|day| *day <= last)
        .take(DAYS + 1)
        .collect()
}

/// Three letters, English.
fn weekday(date: TradingDate) -> &'static str {
    const NAMES: [&str; DAYS] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let days = date.midnight_utc().0 / super::timeline::NS_PER_DAY;
    // The first of January 1970 was a Thursday.
    NAMES[usize::try_from(days % DAYS as u64).unwrap_or(0)]
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use mdgw_feeds::identity::Line;
    use mdgw_status::{
        disclosure::Disclosure,
        interval_log::{CountsTag, IntervalLogWriter, IntervalTag},
    };
    use mdgw_sys::handle::ChannelIndex;
    use mdgw_telemetry::stages::StageHistograms;

    use super::*;
    use crate::report::takeovers::TakenOverChannel;

    const NS_PER_S: u64 = 1_000_000_000;

    fn date(number: u32) -> TradingDate {
        TradingDate::from_yyyymmdd(number).unwrap()
    }

    /// Ten seconds of channel 1 from 14:30 UTC: 100 messages a second on two lines; in the sixth second packets take 90 us, else 5.
    fn log(date: TradingDate, host: &str, seconds: std::ops::Range<u64>, gaps: u64) -> Vec<u8> {
        let mut disclosure = Disclosure::default();
        disclosure.push("host", host);
        let base = UnixNs(date.midnight_utc().0 + 52_200 * NS_PER_S);
        let mut log = IntervalLogWriter::begin(Vec::new(), base, &disclosure).unwrap();
        for second in seconds {
            let start = UnixNs(base.0 + second * NS_PER_S);
            let mut set = StageHistograms::new(1, 3);
            set.record_n(ChannelIndex(0), Stage::WireToWire, if second == 5 { 90_000 } else { 5_000 }, 50);
            let tag = IntervalTag { channel: ChannelId(1), stage: Stage::WireToWire, thread: "main-0".to_owned() };
            set.recorded().for_each(|recorded| log.write(&tag, start, NS_PER_S, recorded.histogram).unwrap());
            let mut write = |line, counts: &[(&str, u64)]| {
                log.write_counts(&CountsTag { channel: ChannelId(1), line }, start, NS_PER_S, counts).unwrap();
            };
            write(None, &[("datagrams", 100), ("messages", 100), ("gaps", if second == 0 { gaps } else { 0 })]);
            write(Some(Line::A), &[("packets", 50), ("won_messages", 60), ("duplicate_messages", 40)]);
        }
        log.into_inner().unwrap()
    }

    fn report(files: &[Vec<u8>]) -> Report {
        let files: Vec<_> =
            (0..).zip(files).map(|(index, file)| (PathBuf::from(format!("{index}.hlog")), file.clone())).collect();
        Report::of(&files, None)
    }

    fn takeover(date: TradingDate, second: u64) -> Takeover {
        let cost = TakenOverChannel { channel: 1, blackout_ns: Some(1_200_000), republished_packets: 4 };
        let time = UnixNs(date.midnight_utc().0 + second * NS_PER_S);
        Takeover {
            time,
            group: 1,
            node: 2,
            cause: "process <b>died".to_owned(),
            lost_after_ns: None,
            channels: vec![cost],
        }
    }

    /// Its percentiles would be those of another stage.
    #[test]
    fn a_gateway_that_sent_nothing_has_no_latencies() {
        let day = date(20_190_130);
        let standby = String::from_utf8(log(day, "gw2", 0..10, 0)).unwrap().replace("wire_to_wire", "decode_and_book");
        assert!(standby.contains("decode_and_book"));
        let week = Week::of(vec![(day, report(&[standby.into_bytes()]))], None);
        let values = &week.channels[0].week;
        assert_eq!((values.latency.count, values.counted.messages), (0, 1_000));
        assert!((values.per_s_max - 100.0).abs() < 1.0);
        let of_day = week.channels[0].days[0].as_ref().unwrap();
        assert_eq!((of_day.latency.count, of_day.slowest), (0, None));
    }

    #[test]
    fn two_hosts_that_logged_the_same_time_are_one_day() {
        let day = date(20_190_130);
        // The second host starts later and runs longer.
        let report = report(&[log(day, "gw1", 0..8, 1), log(day, "gw2", 4..10, 2)]);
        let channel = &report.channels[0];
        assert_eq!((channel.counted.messages, channel.counted.datagrams, channel.counted.gaps), (1_000, 1_000, 1));
        let by_host: Vec<_> =
            channel.counted_by_host.iter().map(|(host, counts)| (host.as_str(), counts.messages)).collect();
        assert_eq!(by_host, [("gw1", 800), ("gw2", 600)]);
        assert_eq!((channel.lines[0].packets, channel.lines[0].messages()), (500, 1_000), "each message once");
        let rates = channel.stages[0].timeline.iter().map(|point| point.per_s_max);
        assert!(rates.clone().all(|per_s| (per_s - 100.0).abs() < 1.0), "{:?}", rates.collect::<Vec<_>>());
        // One host alone: as ever.
        let alone = self::report(&[log(day, "gw1", 0..8, 1), log(day, "gw1", 8..10, 0)]);
        assert_eq!((alone.channels[0].counted.messages, alone.channels[0].counted_by_host.len()), (1_000, 0));
    }

    /// Which of its messages the other gateway has counted is not known.
    #[test]
    fn an_interval_across_the_end_of_the_other_log_counts_as_a_whole_by_its_middle() {
        let day = date(20_190_130);
        let messages = |ends: [u64; 2]| {
            let files = ["gw1", "gw2"].map(|host| log(day, host, 0..if host == "gw1" { 8 } else { 6 }, 0));
            let mut disclosure = Disclosure::default();
            disclosure.push("host", "gw2");
            let start = |second| UnixNs(day.midnight_utc().0 + (52_200 + second) * NS_PER_S);
            let mut last = IntervalLogWriter::begin(Vec::new(), start(ends[0]), &disclosure).unwrap();
            let tag = CountsTag { channel: ChannelId(1), line: None };
            last.write_counts(&tag, start(ends[0]), (ends[1] - ends[0]) * NS_PER_S, &[("messages", 100)]).unwrap();
            let files = [files.to_vec(), vec![last.into_inner().unwrap()]].concat();
            report(&files).channels[0].counted.messages
        };
        assert_eq!(messages([6, 8]), 800);
        assert_eq!(messages([6, 9]), 800, "most of it is within the first log");
        assert_eq!(messages([6, 11]), 900);
    }

    /// The first and the third of three days, the third with a takeover. An earlier day is not of this week.
    pub(in crate::report) fn sample_week() -> Week {
        let (first, last) = (date(20_190_128), date(20_190_130));
        let reports = vec![
            (date(20_190_110), report(&[log(date(20_190_110), "gw1", 0..10, 0)])),
            (first, report(&[log(first, "gw1", 0..10, 0)])),
            (last, report(&[log(last, "gw1", 0..10, 2), log(last, "gw2", 0..10, 0)])),
        ];
        Week::of(reports, Some(&[takeover(last, 52_203), takeover(date(20_190_110), 52_203)]))
    }

    #[test]
    fn a_week_has_a_row_for_each_day_and_takeovers_in_it() {
        let week = sample_week();
        let mut text = String::new();
        week.write(&mut text).unwrap();
        expect_test::expect![[r#"
            2019-01-28 to 2019-01-30, days in UTC; latencies are wire to wire

            channel 1               messages    peak/s  gaps  (messages)     drops       p50       p99     p99.9       max   slowest  takeovers  blackout max       sum
              Mon 2019-01-28           1,000       100     0           0         0   5.00 us   90.0 us   90.0 us   90.0 us  14:30:05          0             –         –
              Tue 2019-01-29  no log
              Wed 2019-01-30           1,000       100     2           0         0   5.00 us   90.0 us   90.0 us   90.0 us  14:30:05          1       1.20 ms   1.20 ms
              all                      2,000       100     2           0         0   5.00 us   90.0 us   90.0 us   90.0 us         –          1       1.20 ms   1.20 ms
              Wed 2019-01-30  neither logs nor audits say which gateway led: 2 gaps (0 messages), the most that one gateway declared

            Latencies are those of packets that a leader sent as they came: no column of them has the time in which no gateway published, nor the catch-up of a new leader.
            Blackouts are those of the takeovers in the audit files (–: none is known, or no audit file was given). An outage without a change of leadership is in no column.

            takeovers (UTC)            group  node  blackout  republished  cause
              2019-01-30 14:30:03          1     2   1.20 ms            4  process <b>died
        "#]].assert_eq(&text);
        let json = week.json();
        let days = json["channels"][0]["days"].as_array().unwrap();
        assert_eq!(days.len(), 3, "the tenth is not of this week");
        assert_eq!((&days[1]["date"], &days[1]["values"]), (&json!("2019-01-29"), &Value::Null));
        assert_eq!(days[2]["values"]["counted"]["messages"], 1_000);
        assert_eq!(json["channels"][0]["all"]["counted"]["messages"], 2_000);
        assert_eq!(json["takeovers"].as_array().unwrap().len(), 1);
        assert!(Week::of(Vec::new(), None).is_empty());
    }

    #[test]
    fn a_day_has_the_longest_and_the_sum_of_its_blackouts_where_an_audit_says_them() {
        let day = date(20_190_130);
        let outage = |second, blackout_ns| {
            let mut outage = takeover(day, second);
            outage.channels[0].blackout_ns = blackout_ns;
            outage
        };
        let takeovers =
            [outage(52_202, Some(6_900_000_000)), outage(52_209, Some(6_600_000_000)), outage(52_209, None)];
        let week =
            |takeovers: Option<&[Takeover]>| Week::of(vec![(day, report(&[log(day, "gw1", 0..10, 0)]))], takeovers);
        let end_of_row = |week: &Week| week.channels[0].days[0].as_ref().unwrap().cells()[10..].join(" | ");
        assert_eq!(end_of_row(&week(Some(&takeovers))), "3 | 6.90 s | 13.5 s");
        assert_eq!(end_of_row(&week(Some(&takeovers[2..]))), "1 | – | –");
        assert_eq!(end_of_row(&week(Some(&[]))), "0 | – | –");
        assert_eq!(end_of_row(&week(None)), "– | – | –");
        let values = week(Some(&takeovers)).json()["channels"][0]["days"][0]["values"].clone();
        assert_eq!(
            (&values["blackout_max_ns"], &values["blackout_sum_ns"]),
            (&json!(6_900_000_000_u64), &json!(13_500_000_000_u64))
        );
    }

    #[test]
    fn takeovers_are_marked_within_the_time_of_the_report() {
        let day = date(20_190_130);
        let mut report = report(&[log(day, "gw1", 0..10, 0)]);
        report.mark_takeovers(&[takeover(day, 52_230), takeover(day, 52_203)]);
        assert_eq!(report.takeovers.len(), 1, "the other one is later than the logs");
        let mut page = String::new();
        crate::report::html::write(&report, &mut page).unwrap();
        assert!(page.contains("14:30:03 node 2 took over (process &lt;b&gt;died), blackout 1.20"), "{page}");
        assert!(page.contains("class=\"takeover\"") && page.contains(">takeover</li>"));
    }

    #[test]
    fn a_channel_that_a_reload_added_has_the_name_that_its_log_gives_behind_the_intervals() {
        let (first, last) = (date(20_190_129), date(20_190_130));
        let mut added = log(first, "gw1", 0..10, 0);
        added.extend_from_slice(b"#[mdgw config.channel.one.id = 1]\n");
        // The log of the last day was written without the name.
        let reports = vec![(first, report(&[added])), (last, report(&[log(last, "gw1", 0..10, 0)]))];
        let week = Week::of(reports, None);
        assert_eq!((week.channels[0].name.as_deref(), &*week.channels[0].title), (Some("one"), "channel 1 one"));
    }

    #[test]
    fn weekdays_and_days_between() {
        assert_eq!([20_190_128, 20_190_130, 20_240_229].map(|number| weekday(date(number))), ["Mon", "Wed", "Thu"]);
        assert_eq!(days_between(date(20_190_130), date(20_190_202)).len(), 4);
        assert_eq!(days_between(date(20_190_130), date(20_190_130)), [date(20_190_130)]);
    }
}
