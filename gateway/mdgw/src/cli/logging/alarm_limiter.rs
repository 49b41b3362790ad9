//! Limits how often each alarm is written: at most once in an interval for each text and thing that it names. The last one that was
//! held back is written when the interval ends, with the number of those before it. So the log shows how the condition
//! began and how it is now, however often it is raised. The same holds for what ends an alarm (field `ends`), and for other warnings about a
//! channel, which are written each second as long as their counter grows. An end does not overtake its alarm, nor an alarm its end: what
//! is held back of the other one is written before it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tracing::Level;

use super::event::{FieldValue, LogEvent};

/// What was written and what is held back, by alarm and what it names.
#[derive(Debug, Default)]
pub(super) struct AlarmLimiter {
    alarms: BTreeMap<String, Written>,
}

#[derive(Debug)]
struct Written {
    at: Instant,
    /// The last alarm since then, and how many came before it.
    held: Option<(LogEvent, u64)>,
}

/// Fields that say which thing an alarm is about. The others say how it is.
const NAMING_FIELDS: [&str; 10] =
    ["channel", "channel_id", "stream", "line", "group", "node", "peer", "pool", "listener", "gateway"];
/// Most things at a time. An alarm beyond them is written without a limit.
const THINGS_MAX: usize = 4_096;

impl AlarmLimiter {
    /// Returns what is to be written now: nothing, or the event, and before it what it must not overtake. An event without a limit is
    /// always written.
    pub(super) fn admit(&mut self, event: LogEvent, now: Instant, interval: Duration) -> Vec<LogEvent> {
        let is_limited = event.field("alarm").is_some()
            || event.field("ends").is_some()
            || (event.level == Level::WARN && event.field("channel").is_some());
        if !is_limited || interval.is_zero() {
            return vec![event];
        }
        // Several causes share an alarm, each with a text of its own. Numbers in a text say how it is, as fields do: under forged
        // epochs each text would be another one.
        let mut thing: String = event.message.chars().filter(|character| !character.is_ascii_digit()).collect();
        // The end of a condition may have the text of its begin.
        thing.push(if event.field("ends").is_some() { 'e' } else { 'b' });
        for value in NAMING_FIELDS.iter().filter_map(|name| event.field(name)) {
            thing.push('\0');
            thing.push_str(&value.text());
        }
        if let Some(written) = self.alarms.get_mut(&thing) {
            let earlier = written.held.take().map_or(0, |(_, earlier)| earlier + 1);
            written.held = Some((event, earlier));
            return Vec::new();
        }
        if self.alarms.len() < THINGS_MAX {
            self.alarms.insert(thing, Written { at: now, held: None });
        }
        self.in_order(vec![event], now)
    }

    /// Takes the alarms whose interval has ended.
    pub(super) fn take_due(&mut self, now: Instant, interval: Duration) -> Vec<LogEvent> {
        let mut due = Vec::new();
        self.alarms.retain(|_, written| {
            if now.saturating_duration_since(written.at) < interval {
                return true;
            }
            let Some(held) = written.held.take() else { return false };
            due.push(with_count(held));
            written.at = now;
            true
        });
        self.in_order(due, now)
    }

    /// These events in the order of their times, with the events that they must not overtake: an end those of its alarm, and an alarm
    /// those of its end.
    fn in_order(&mut self, mut events: Vec<LogEvent>, now: Instant) -> Vec<LogEvent> {
        for written in self.alarms.values_mut() {
            let must_be_first =
                |held: &LogEvent| events.iter().any(|event| held.is_other_state_of(event) && held.at <= event.at);
            if let Some(held) = written.held.take_if(|(held, _)| must_be_first(held)) {
                events.insert(0, with_count(held));
                written.at = now;
            }
        }
        events.sort_by_key(|event| event.at);
        events
    }

    /// Takes all alarms that are held back.
    pub(super) fn take_all(&mut self) -> Vec<LogEvent> {
        let held = std::mem::take(&mut self.alarms).into_values().filter_map(|written| written.held);
        let mut events: Vec<_> = held.map(with_count).collect();
        events.sort_by_key(|event| event.at);
        events
    }

    /// Whether no alarm is held back and each interval has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.alarms.is_empty()
    }
}

impl LogEvent {
    /// Whether one of the two is an alarm, and the other the end of that alarm, about the same thing.
    fn is_other_state_of(&self, other: &Self) -> bool {
        let is_end_of =
            |end: &Self, alarm: &Self| end.field("ends").is_some_and(|ends| alarm.field("alarm") == Some(ends));
        let is_same = |name: &&str| match (self.field(name), other.field(name)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        (is_end_of(self, other) || is_end_of(other, self)) && NAMING_FIELDS.iter().all(is_same)
    }
}

fn with_count((mut event, earlier): (LogEvent, u64)) -> LogEvent {
    if earlier > 0 {
        event.fields.push(("suppressed", FieldValue::Plain(earlier.into())));
    }
    event
}

#[cfg(test)]
mod tests {
    use mdgw_sys::alarm::Alarm;

    use super::{super::event::tests::logged, *};

    const INTERVAL: Duration = Duration::from_secs(10);

    fn alarm(channel: &str, more: u64) -> LogEvent {
        logged(|| tracing::warn!(alarm = Alarm::GapDeclared.name(), channel, more, "gaps")).remove(0)
    }

    /// Texts of the events that are written at that second.
    fn written(limiter: &mut AlarmLimiter, start: Instant, second: u64, events: Vec<LogEvent>) -> Vec<String> {
        let now = start + Duration::from_secs(second);
        let due = limiter.take_due(now, INTERVAL);
        let admitted: Vec<_> = events.into_iter().flat_map(|event| limiter.admit(event, now, INTERVAL)).collect();
        due.iter().chain(&admitted).map(LogEvent::text).collect()
    }

    #[test]
    fn each_alarm_is_written_once_in_an_interval_and_its_last_state_at_the_end() {
        let (mut limiter, start) = (AlarmLimiter::default(), Instant::now());
        let first = written(&mut limiter, start, 0, vec![alarm("one", 1), alarm("two", 7)]);
        assert_eq!(
            first,
            [
                "gaps alarm=\"gap-declared\" channel=\"one\" more=1",
                "gaps alarm=\"gap-declared\" channel=\"two\" more=7"
            ]
        );
        for second in 1..10 {
            assert!(written(&mut limiter, start, second, vec![alarm("one", second)]).is_empty(), "{second}");
        }
        let last = written(&mut limiter, start, 10, Vec::new());
        assert_eq!(last, ["gaps alarm=\"gap-declared\" channel=\"one\" more=9 suppressed=8"]);
        // The next interval began with that.
        assert!(written(&mut limiter, start, 15, vec![alarm("one", 20)]).is_empty());
        assert_eq!(
            written(&mut limiter, start, 20, Vec::new()),
            ["gaps alarm=\"gap-declared\" channel=\"one\" more=20"]
        );
        assert!(!limiter.is_idle());
        assert!(written(&mut limiter, start, 30, Vec::new()).is_empty() && limiter.is_idle());
    }

    #[test]
    fn texts_of_one_alarm_and_warnings_about_a_channel_are_limited_each_for_themselves() {
        let (mut limiter, start) = (AlarmLimiter::default(), Instant::now());
        let second_cause =
            || logged(|| tracing::warn!(alarm = Alarm::GapDeclared.name(), channel = "one", "too large")).remove(0);
        let drops = |more: u64| logged(|| tracing::warn!(channel = "one", more, "dropped")).remove(0);
        let first = written(&mut limiter, start, 0, vec![alarm("one", 1), second_cause(), drops(5)]);
        assert_eq!(first.len(), 3, "{first:?}");
        assert!(written(&mut limiter, start, 1, vec![alarm("one", 2), second_cause(), drops(7)]).is_empty());
        let last = written(&mut limiter, start, 10, Vec::new());
        assert_eq!(last.len(), 3, "{last:?}");
        assert!(last.iter().any(|text| text == "dropped channel=\"one\" more=7"), "{last:?}");
    }

    #[test]
    fn an_end_is_written_at_once_though_its_text_is_that_of_the_alarm() {
        let mut limiter = AlarmLimiter::default();
        let state = |state: &'static str| {
            let alarm = Alarm::StoreUnreachable.name();
            let event = || match state {
                "lost" => tracing::warn!(alarm, group = 1, state, "connection to the store"),
                _ => tracing::warn!(ends = alarm, group = 1, state, "connection to the store"),
            };
            logged(event).remove(0)
        };
        let start = Instant::now();
        assert_eq!(written(&mut limiter, start, 0, vec![state("lost")]).len(), 1);
        assert_eq!(written(&mut limiter, start, 1, vec![state("reconnected")]).len(), 1);
    }

    /// Otherwise the last line about the alarm says that the condition lasts although it is over, or the other way round.
    #[test]
    fn an_alarm_and_its_end_do_not_overtake_each_other() {
        let (mut limiter, start) = (AlarmLimiter::default(), Instant::now());
        let failing = |channel, more: u64| {
            let alarm = Alarm::LogBehind.name();
            logged(|| tracing::error!(alarm, channel, more, "behind")).remove(0)
        };
        let ended = |channel| logged(|| tracing::info!(ends = Alarm::LogBehind.name(), channel, "current")).remove(0);
        let line = |channel: &str, more: u64| format!("behind alarm=\"log-behind\" channel=\"{channel}\" more={more}");
        let end = |channel: &str| format!("current ends=\"log-behind\" channel=\"{channel}\"");
        assert_eq!(written(&mut limiter, start, 0, vec![failing("one", 1), failing("two", 1)]).len(), 2);
        assert!(written(&mut limiter, start, 1, vec![failing("one", 2), failing("two", 2)]).is_empty());
        assert_eq!(written(&mut limiter, start, 2, vec![ended("one")]), [line("one", 2), end("one")]);
        assert_eq!(written(&mut limiter, start, 10, Vec::new()), [line("two", 2)]);

        // Again, ended again, and once more: the alarm is due at 12 s, and its end since then too.
        assert!(written(&mut limiter, start, 11, vec![failing("one", 3), ended("one"), failing("one", 4)]).is_empty());
        let last = written(&mut limiter, start, 12, Vec::new());
        assert_eq!(last, [end("one"), line("one", 4) + " suppressed=1"]);
    }

    /// A forger chooses the epoch; a link that something disturbs comes up many times a second.
    #[test]
    fn a_text_with_another_number_and_the_end_of_an_alarm_are_limited() {
        let (mut limiter, start) = (AlarmLimiter::default(), Instant::now());
        let outranked = |epoch: u64| {
            let alarm = Alarm::Outranked.name();
            logged(|| tracing::error!(alarm, group = 1, "received output of epoch {epoch} (node 255)")).remove(0)
        };
        let is_up = || logged(|| tracing::info!(ends = Alarm::PairLinkDown.name(), peer = "a", "link is up")).remove(0);
        assert_eq!(written(&mut limiter, start, 0, vec![outranked(5), is_up()]).len(), 2);
        let repeated = vec![outranked(6), is_up(), outranked(1_000), is_up()];
        assert!(written(&mut limiter, start, 1, repeated).is_empty());
        let last = written(&mut limiter, start, 10, Vec::new());
        assert!(last.len() == 2 && last.iter().all(|text| text.ends_with("suppressed=1")), "{last:?}");
    }

    #[test]
    fn what_is_held_back_at_the_end_is_written_then() {
        let (mut limiter, start) = (AlarmLimiter::default(), Instant::now());
        for more in 1..=3 {
            let _ = written(&mut limiter, start, 0, vec![alarm("one", more)]);
        }
        let held: Vec<_> = limiter.take_all().iter().map(LogEvent::text).collect();
        assert_eq!(held, ["gaps alarm=\"gap-declared\" channel=\"one\" more=3 suppressed=1"]);
        assert!(limiter.take_all().is_empty());
    }

    #[test]
    fn other_events_and_an_interval_of_zero_are_not_limited() {
        let mut limiter = AlarmLimiter::default();
        let now = Instant::now();
        for _ in 0..3 {
            let event = logged(|| tracing::info!(channel = "one", "line receives packets again")).remove(0);
            assert_eq!(limiter.admit(event, now, INTERVAL).len(), 1);
            assert_eq!(limiter.admit(alarm("one", 1), now, Duration::ZERO).len(), 1);
        }
        assert!(limiter.is_idle());
    }

    #[test]
    fn alarms_beyond_the_limit_of_things_are_written() {
        let (mut limiter, now) = (AlarmLimiter::default(), Instant::now());
        let one = alarm("one", 1);
        for number in 0..THINGS_MAX + 10 {
            let mut event = one.clone();
            event.fields[1].1 = FieldValue::Quoted(number.to_string());
            assert_eq!(limiter.admit(event, now, INTERVAL).len(), 1);
        }
        assert_eq!(limiter.alarms.len(), THINGS_MAX);
    }
}
