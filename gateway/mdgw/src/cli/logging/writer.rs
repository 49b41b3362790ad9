//! The queue of events and the thread that writes them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use mdgw_sys::{
    affinity::confine_to,
    alarm::Alarm,
    clock::unix_now,
    log_counts::{LOG_COUNTS, LogCounts},
};
use tracing::Level;

use super::{
    alarm_limiter::AlarmLimiter,
    event::{FieldValue, LogEvent},
    output::Output,
};

/// Events that may wait. A stuck log loses the later ones, which are counted.
const QUEUED_MAX: usize = 4_096;
/// How often held-back alarms are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long the end of the process waits for a log that is stuck.
const END_TIMEOUT: Duration = Duration::from_secs(2);

enum Message {
    Event(LogEvent),
    /// Write all that came before, and what is held back.
    End,
}

/// Where events are put in. Never blocks.
#[derive(Clone)]
pub(super) struct QueueEnd {
    queue: SyncSender<Message>,
    counts: &'static LogCounts,
    /// Whether events were lost since the thread last wrote that some were.
    is_losing: Arc<AtomicBool>,
}

impl QueueEnd {
    pub(super) fn push(&self, event: LogEvent) {
        self.counts.begin_wait();
        match self.queue.try_send(Message::Event(event)) {
            Ok(()) => {}
            // The thread has ended.
            Err(TrySendError::Disconnected(_)) => self.counts.end_wait(),
            Err(TrySendError::Full(_)) => {
                self.counts.lose();
                // The alarm's line is lost as well, so the alarm is counted here.
                if !self.is_losing.swap(true, Relaxed) {
                    Alarm::LogLinesLost.count_raised(unix_now());
                }
            }
        }
    }
}

/// The running thread. Dropping it waits until all is written, though not for a log that is stuck.
pub(super) struct LogWriter {
    queue: SyncSender<Message>,
    ended: Receiver<()>,
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while let Err(TrySendError::Full(_)) = self.queue.try_send(Message::End) {
            if Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ended = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Starts the thread `mdgw-log`, which keeps to `cores` if there are any.
pub(super) fn start_writer(
    output: Output,
    alarm_interval_ms: Arc<AtomicU64>,
    cores: Vec<usize>,
) -> io::Result<(QueueEnd, LogWriter)> {
    start_with(move |event| output.write(event), alarm_interval_ms, cores, &LOG_COUNTS)
}

fn start_with(
    write: impl FnMut(&LogEvent) + Send + 'static,
    alarm_interval_ms: Arc<AtomicU64>,
    cores: Vec<usize>,
    counts: &'static LogCounts,
) -> io::Result<(QueueEnd, LogWriter)> {
    let (queue, events) = sync_channel(QUEUED_MAX);
    let (end, ended) = sync_channel(1);
    let is_losing = Arc::new(AtomicBool::new(false));
    let losses = Losses { counts, reported: counts.lost(), is_losing: Arc::clone(&is_losing) };
    std::thread::Builder::new().name("mdgw-log".to_owned()).spawn(move || {
        if !cores.is_empty() {
            // Reported by the gateway for all cold threads.
            let _confined = confine_to(&cores);
        }
        run(&events, write, &alarm_interval_ms, losses);
        let _gone = end.send(());
    })?;
    Ok((QueueEnd { queue: queue.clone(), counts, is_losing }, LogWriter { queue, ended }))
}

fn run(
    events: &Receiver<Message>,
    mut write: impl FnMut(&LogEvent),
    alarm_interval_ms: &AtomicU64,
    mut losses: Losses,
) {
    let mut limiter = AlarmLimiter::default();
    loop {
        let received = if limiter.is_idle() {
            events.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            events.recv_timeout(POLL_INTERVAL)
        };
        let interval = Duration::from_millis(alarm_interval_ms.load(Relaxed));
        limiter.take_due(Instant::now(), interval).iter().for_each(&mut write);
        match received {
            Ok(Message::Event(event)) => {
                limiter.admit(event, Instant::now(), interval).iter().for_each(&mut write);
                losses.counts.end_wait();
            }
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => {
                limiter.take_all().iter().for_each(&mut write);
                losses.report(&mut write);
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        losses.report(&mut write);
    }
}

/// What the log has lost, and how much of it the log says.
struct Losses {
    counts: &'static LogCounts,
    reported: u64,
    is_losing: Arc<AtomicBool>,
}

impl Losses {
    /// Writes how many events were lost since the last report, if any were.
    fn report(&mut self, write: &mut impl FnMut(&LogEvent)) {
        // Before the count: a loss behind it raises the alarm again.
        self.is_losing.store(false, Relaxed);
        let lost = self.counts.lost();
        let count = lost.saturating_sub(self.reported);
        self.reported = lost;
        if count > 0 {
            let mut event = LogEvent::plain(Level::WARN, "lines of the log were lost: it was not written in time");
            event.fields.push(("alarm", FieldValue::Quoted(Alarm::LogLinesLost.name().to_owned())));
            event.fields.push(("lost", FieldValue::Plain(count.into())));
            write(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use mdgw_sys::alarm::Alarm;

    use super::{super::event::tests::logged, *};

    /// Of one test: tests share the process.
    fn counts() -> &'static LogCounts {
        Box::leak(Box::default())
    }

    fn numbered(number: usize) -> LogEvent {
        LogEvent::plain(Level::INFO, &number.to_string())
    }

    #[test]
    fn a_stuck_log_blocks_nobody_and_what_it_loses_is_counted() {
        let (go_on, stuck) = mpsc::channel::<()>();
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&written);
        let write = move |event: &LogEvent| {
            // Open once the sender is gone.
            let _released = stuck.recv();
            lines.lock().unwrap().push(event.text());
        };
        let (counts, raised) = (counts(), Alarm::LogLinesLost.raised());
        let (queue, writer) = start_with(write, Arc::default(), Vec::new(), counts).unwrap();
        let begun = Instant::now();
        queue.push(numbered(0));
        assert_eq!((counts.waiting(), counts.lost()), (1, 0), "the one that is being written waits too");
        for number in 1..QUEUED_MAX + 100 {
            queue.push(numbered(number));
        }
        let (waiting, counted) = (counts.waiting(), counts.lost());
        assert_eq!(waiting + counted, u64::try_from(QUEUED_MAX).unwrap() + 100);
        assert_eq!(Alarm::LogLinesLost.raised().count, raised.count + 1, "once until the log goes on");
        assert!(Alarm::LogLinesLost.raised().last > raised.last);
        assert!(begun.elapsed() < Duration::from_secs(10), "a push waited");
        drop(go_on);
        drop(writer);
        let written = written.lock().unwrap();
        let lost: usize = written.iter().filter_map(|line| line.rsplit_once(" lost=")?.1.parse::<usize>().ok()).sum();
        assert!((99..=100).contains(&lost), "{lost}");
        assert!(written.iter().any(|line| line.contains(" alarm=\"log-lines-lost\" lost=")), "{:?}", written.last());
        assert_eq!((counts.waiting(), counts.lost(), lost as u64), (0, counted, counted));
        assert_eq!(written.len() - 1 + lost, QUEUED_MAX + 100);
        assert!(written.iter().filter_map(|line| line.parse::<usize>().ok()).is_sorted());
    }

    #[test]
    fn the_end_of_the_process_does_not_wait_for_a_stuck_log() {
        let (_never, stuck) = mpsc::channel::<()>();
        let write = move |_: &LogEvent| {
            let _released = stuck.recv();
        };
        let (queue, writer) = start_with(write, Arc::default(), Vec::new(), counts()).unwrap();
        (0..3).for_each(|number| queue.push(numbered(number)));
        let begun = Instant::now();
        drop(writer);
        assert!(begun.elapsed() < END_TIMEOUT + Duration::from_secs(8));
    }

    #[test]
    fn a_held_back_alarm_is_written_at_the_end_of_its_interval_without_a_further_event() {
        let (written, lines) = mpsc::channel();
        let write = move |event: &LogEvent| drop(written.send(event.text()));
        let (queue, _writer) = start_with(write, Arc::new(AtomicU64::new(300)), Vec::new(), counts()).unwrap();
        for more in 1..=4 {
            logged(|| tracing::warn!(alarm = Alarm::GapDeclared.name(), more, "gaps"))
                .into_iter()
                .for_each(|event| queue.push(event));
        }
        let limit = Duration::from_secs(30);
        assert_eq!(lines.recv_timeout(limit).unwrap(), "gaps alarm=\"gap-declared\" more=1");
        assert_eq!(lines.recv_timeout(limit).unwrap(), "gaps alarm=\"gap-declared\" more=4 suppressed=2");
    }
}
