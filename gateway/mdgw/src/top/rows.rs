//! Rows of the view: rates from two snapshots, sorted and filtered.

use mdgw_status::snapshot::{ChannelSnapshot, LineSnapshot, PoolSnapshot, Snapshot};

/// One channel, as a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ChannelRow {
    /// Displayed snapshot of the channel.
    pub channel: ChannelSnapshot,
    /// Messages per second since the last snapshot.
    pub messages_per_s: f64,
    /// Datagrams per second.
    pub datagrams_per_s: f64,
    /// Published packets per second.
    pub sent_per_s: f64,
    /// The line that is most often first, and its share of the messages received on two lines.
    pub lead: Option<(LineSnapshot, f64)>,
}

/// One pool, as a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PoolRow {
    /// Name of the pool.
    pub name: String,
    /// Turns per second: waits that returned events.
    pub turns_per_s: f64,
    /// Share of time without a leader, 0 to 1.
    pub saturated: f64,
    /// Share of all threads' time spent processing, 0 to 1.
    pub busy: f64,
    /// Threads of the pool.
    pub threads: Vec<ThreadRow>,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ThreadRow {
    /// Name of the thread.
    pub name: String,
    /// Current role in the pool: leader, processing, parked, …
    pub role: String,
    /// Share of its time spent processing, 0 to 1.
    pub busy: f64,
}

/// Sort order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SortBy {
    /// As configured, by channel number.
    #[default]
    Number,
    /// By name.
    Name,
    /// The worst state first.
    State,
    /// Most messages per second first.
    Rate,
    /// Most messages lost first.
    Lost,
    /// Most drops first.
    Drops,
    /// Highest p99 first.
    P99,
}

impl SortBy {
    /// All sort orders, in the order in which the key `s` steps through them.
    pub(crate) const ALL: [Self; 7] =
        [Self::Number, Self::Name, Self::State, Self::Rate, Self::Lost, Self::Drops, Self::P99];

    /// Name on the command line and in the footer.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Name => "name",
            Self::State => "state",
            Self::Rate => "rate",
            Self::Lost => "lost",
            Self::Drops => "drops",
            Self::P99 => "p99",
        }
    }

    /// The sort order after this one.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()]
    }

    fn sort(self, rows: &mut [ChannelRow]) {
        match self {
            Self::Number => {}
            Self::Name => rows.sort_by(|one, other| one.channel.name.cmp(&other.channel.name)),
            Self::State => rows.sort_by_key(|row| std::cmp::Reverse(severity(&row.channel.state))),
            Self::Rate => rows.sort_by(|one, other| other.messages_per_s.total_cmp(&one.messages_per_s)),
            Self::Lost => rows.sort_by_key(|row| std::cmp::Reverse(row.channel.gap_messages)),
            Self::Drops => rows.sort_by_key(|row| std::cmp::Reverse(row.channel.drops)),
            Self::P99 => rows.sort_by_key(|row| std::cmp::Reverse(row.p99_ns())),
        }
    }
}

/// Severity of a state, for sorting: higher needs attention first.
fn severity(state: &str) -> u8 {
    match state {
        "failed" => 6,
        "stale" => 5,
        "gap" => 4,
        "recovering" => 3,
        "waiting" => 2,
        "ended" => 1,
        _ => 0,
    }
}

impl ChannelRow {
    /// 99th percentile wire to wire, ns; 0 without measurement.
    #[must_use]
    pub(crate) fn p99_ns(&self) -> u64 {
        self.channel.stage("wire_to_wire").map_or(0, |stage| stage.p99_ns)
    }
}

/// Rows of the channels whose name, number or state contains `filter`.
#[must_use]
pub(super) fn channel_rows(now: &Snapshot, before: Option<&Snapshot>, sort: SortBy, filter: &str) -> Vec<ChannelRow> {
    let wanted = filter.to_lowercase();
    let matches_filter = |channel: &&ChannelSnapshot| {
        let number = channel.id.to_string();
        [&channel.name.to_lowercase(), &channel.state, &number].into_iter().any(|text| text.contains(&wanted))
    };
    let mut rows: Vec<ChannelRow> = now
        .channels
        .iter()
        .filter(matches_filter)
        .map(|channel| {
            let last = before.and_then(|before| before.channels.iter().find(|last| last.id == channel.id));
            let rate = |count: fn(&ChannelSnapshot) -> u64| {
                last.map_or(0.0, |last| per_s(count(channel), count(last), now, before))
            };
            ChannelRow {
                messages_per_s: rate(|channel| channel.messages),
                datagrams_per_s: rate(|channel| channel.datagrams),
                sent_per_s: rate(|channel| channel.packets_sent),
                lead: lead(channel),
                channel: channel.clone(),
            }
        })
        .collect();
    sort.sort(&mut rows);
    rows
}

/// One block per pool.
#[must_use]
pub(super) fn pool_rows(now: &Snapshot, before: Option<&Snapshot>) -> Vec<PoolRow> {
    let row = |pool: &PoolSnapshot| {
        let last = before.and_then(|before| before.pools.iter().find(|last| last.name == pool.name));
        let share = |count: u64, last: Option<u64>| {
            last.map_or(0.0, |last| (per_s(count, last, now, before) / NS_PER_SECOND).clamp(0.0, 1.0))
        };
        let threads: Vec<ThreadRow> = pool
            .threads
            .iter()
            .map(|thread| {
                let last = last.and_then(|last| last.threads.iter().find(|known| known.name == thread.name));
                ThreadRow {
                    name: thread.name.clone(),
                    role: thread.role.clone(),
                    busy: share(thread.busy_ns, last.map(|last| last.busy_ns)),
                }
            })
            .collect();
        PoolRow {
            name: pool.name.clone(),
            turns_per_s: last.map_or(0.0, |last| per_s(pool.turns, last.turns, now, before)),
            saturated: share(pool.saturation_ns, last.map(|last| last.saturation_ns)),
            busy: mean(threads.iter().map(|thread| thread.busy)),
            threads,
        }
    };
    now.pools.iter().map(row).collect()
}

/// Growth of a count per second between two snapshots.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn per_s(count: u64, last: u64, now: &Snapshot, before: Option<&Snapshot>) -> f64 {
    let ns = before.map_or(0, |before| now.clock_ns.saturating_sub(before.clock_ns));
    if ns == 0 { 0.0 } else { count.saturating_sub(last) as f64 * NS_PER_SECOND / ns as f64 }
}

#[allow(clippy::cast_precision_loss, reason = "a share")]
fn lead(channel: &ChannelSnapshot) -> Option<(LineSnapshot, f64)> {
    let compared: u64 = channel.lines.iter().map(|line| line.lead_count).sum();
    let first = channel.lines.iter().max_by_key(|line| line.lead_count)?;
    (compared > 0).then(|| (first.clone(), first.lead_count as f64 / compared as f64))
}

#[allow(clippy::cast_precision_loss, reason = "few threads")]
fn mean(shares: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = shares.len().max(1) as f64;
    shares.sum::<f64>() / count
}

const NS_PER_SECOND: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::testing::{earlier_snapshot, later_snapshot};

    #[test]
    fn rates_are_count_growth_over_elapsed_time() {
        let rows = channel_rows(&later_snapshot(), Some(&earlier_snapshot()), SortBy::Number, "");
        assert_eq!(rows[0].channel.name, "nasdaq");
        assert_eq!((rows[0].messages_per_s, rows[0].datagrams_per_s), (123_456.0, 41_000.0));
        let (line, share) = rows[0].lead.as_ref().unwrap();
        assert_eq!((line.line.as_str(), *share), ("A", 0.75));
        let first = channel_rows(&earlier_snapshot(), None, SortBy::Number, "");
        assert_eq!(first[0].messages_per_s, 0.0, "nothing to compare with");
        let pools = pool_rows(&later_snapshot(), Some(&earlier_snapshot()));
        assert_eq!(pools[0].threads[1].busy, 0.25);
        assert!((pools[0].saturated - 0.001).abs() < 1e-9);
    }

    #[test]
    fn rows_follow_the_sort_order_and_the_filter() {
        let names = |sort, filter| -> Vec<String> {
            let rows = channel_rows(&later_snapshot(), Some(&earlier_snapshot()), sort, filter);
            rows.into_iter().map(|row| row.channel.name).collect()
        };
        assert_eq!(names(SortBy::Number, ""), ["nasdaq", "bx", "iex-deep", "iex-tops"]);
        assert_eq!(names(SortBy::Name, ""), ["bx", "iex-deep", "iex-tops", "nasdaq"]);
        assert_eq!(names(SortBy::State, "")[0], "iex-tops", "it failed");
        assert_eq!(names(SortBy::Rate, "")[0], "nasdaq");
        assert_eq!(names(SortBy::Lost, "")[0], "bx");
        assert_eq!(names(SortBy::P99, "")[0], "nasdaq");
        assert_eq!(names(SortBy::Number, "IEX"), ["iex-deep", "iex-tops"]);
        assert_eq!(names(SortBy::Number, "failed"), ["iex-tops"]);
        let mut sort = SortBy::Number;
        for _ in SortBy::ALL {
            sort = sort.next();
        }
        assert_eq!(sort, SortBy::Number);
    }
}
