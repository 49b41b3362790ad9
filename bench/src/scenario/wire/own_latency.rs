//! What the gateway itself measured, out of its latency logs. Unlike the latencies seen from outside it has nothing
//! of the sender and the receiver, which may share a core with the gateway's cold threads.

use std::{ffi::OsStr, fs, ops::Range, path::Path};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer,
        interval_log::{IntervalLogIterator, LogEntry},
    },
};
use mdgw_status::interval_log::IntervalTag;
use mdgw_telemetry::stages::Stage;

use super::outcome::histogram;

/// The latencies of a stage in all intervals within that time (ns since 1970 UTC), in the logs of a directory. Empty if there is no log.
pub(in crate::scenario) fn read(directory: &Path, stage: Stage, within_ns: Range<u64>) -> Result<Histogram<u64>> {
    let mut all = histogram();
    let Ok(files) = fs::read_dir(directory) else { return Ok(all) };
    for file in files {
        let path = file?.path();
        if path.extension() == Some(OsStr::new("hlog")) {
            let log = fs::read(&path)?;
            add(&log, stage, &within_ns, &mut all).with_context(|| format!("read {}", path.display()))?;
        }
    }
    Ok(all)
}

fn add(log: &[u8], wanted: Stage, within_ns: &Range<u64>, all: &mut Histogram<u64>) -> Result<()> {
    let mut base_ns = 0;
    for entry in IntervalLogIterator::new(log) {
        match entry.map_err(|error| anyhow::anyhow!("{error:?}"))? {
            LogEntry::BaseTime(base) => base_ns = u64::try_from(base.as_nanos())?,
            LogEntry::StartTime(_) => {}
            LogEntry::Interval(interval) => {
                let tag = interval.tag().map(|tag| tag.as_str().parse::<IntervalTag>());
                let is_wanted = matches!(tag, Some(Ok(IntervalTag { stage, .. })) if stage == wanted);
                let begin_ns = base_ns + u64::try_from(interval.start_timestamp().as_nanos())?;
                let end_ns = begin_ns + u64::try_from(interval.duration().as_nanos())?;
                if is_wanted && within_ns.start <= begin_ns && end_ns <= within_ns.end {
                    let encoded = STANDARD.decode(interval.encoded_histogram())?;
                    let values: Histogram<u64> = Deserializer::new().deserialize(&mut encoded.as_slice())?;
                    all.add(values)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::{identity::ChannelId, time::UnixNs};
    use mdgw_status::{disclosure::Disclosure, interval_log::IntervalLogWriter};

    use super::*;

    #[test]
    fn intervals_outside_the_measured_time_and_other_stages_do_not_count() {
        let base = UnixNs(1_548_856_800_000_000_000);
        let mut writer = IntervalLogWriter::begin(Vec::new(), base, &Disclosure::default()).unwrap();
        let mut write = |second: u64, stage, value_ns| {
            let tag = IntervalTag { channel: ChannelId(1), stage, thread: "pool-0".to_owned() };
            let mut values = histogram();
            values.record(value_ns).unwrap();
            writer.write(&tag, UnixNs(base.0 + second * 1_000_000_000), 1_000_000_000, &values).unwrap();
        };
        write(0, Stage::WireToWire, 1_000);
        write(5, Stage::WireToWire, 2_000);
        write(5, Stage::WireToUser, 3_000);
        write(6, Stage::WireToWire, 4_000);
        write(7, Stage::WireToWire, 5_000);
        let log = writer.into_inner().unwrap();
        let mut all = histogram();
        let within_ns = base.0 + 4_000_000_000..base.0 + 7_500_000_000;
        add(&log, Stage::WireToWire, &within_ns, &mut all).unwrap();
        assert_eq!((all.len(), all.min() / 1_000, all.max() / 1_000), (2, 2, 4));
        assert!(read(Path::new("/nonexistent"), Stage::WireToWire, within_ns).unwrap().is_empty());
    }
}
