//! Records delivered to receivers, as printed by `mdgw tail --json`: one named record per line.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, BufRead},
    ops::Bound::{self, Excluded, Included},
};

use serde_json::{Map, Value};

use super::{
    Verdict, VerifyOptions,
    finding::{Findings, Location, OutputCheck},
    verdict::{Shortfall, ShortfallKind},
};

/// Verifies outputs of receivers, one after the other.
#[derive(Debug)]
pub struct RowsVerifier {
    options: VerifyOptions,
    names: BTreeMap<Name, DeliveredRecord>,
    /// First and last record of each receiver and channel.
    bounds: BTreeMap<(usize, u64), (Name, Name)>,
    rows: BTreeMap<usize, u64>,
    findings: Findings,
    suspect_differences: u64,
}

/// Errors of reading an output.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The system reported a read error.
    #[error("line {line}: {source}")]
    Io {
        /// Line number, from 1.
        line: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The line is not a named record.
    #[error("line {line} (at byte {offset_bytes}): {reason}")]
    InvalidRow {
        /// Line number, from 1.
        line: u64,
        /// Offset of the line, bytes.
        offset_bytes: u64,
        /// Description of the fault.
        reason: String,
    },
    /// More records than can be remembered.
    #[error("line {line}: more than {names_max} items; raise --remember")]
    TooManyNames {
        /// Line number, from 1.
        line: u64,
        /// Most items that are remembered (`--remember`).
        names_max: usize,
    },
}

/// Channel, session (by date and restart), sequence, index.
type Name = (u64, SessionOrder, u64, u64);
/// Year, month, day and restart count: sessions only go forward.
type SessionOrder = (String, u64);

#[derive(Clone, Copy, Debug)]
struct DeliveredRecord {
    hash: u64,
    is_suspect: bool,
    location: Location,
    /// Receiver that delivered it last: receivers are read one after the other.
    last: Location,
    /// Receivers that delivered it, as a bit set; receivers beyond 64 are compared only.
    receivers: u64,
}

impl RowsVerifier {
    /// A verifier that has read no output yet.
    #[must_use]
    pub fn new(options: VerifyOptions) -> Self {
        let findings = Findings::new(options.findings_max);
        Self {
            options,
            names: BTreeMap::new(),
            bounds: BTreeMap::new(),
            rows: BTreeMap::new(),
            findings,
            suspect_differences: 0,
        }
    }

    /// Reads one receiver's output to its end.
    ///
    /// # Errors
    /// The output can't be read further; everything before was verified.
    pub fn read(&mut self, file: usize, mut input: impl BufRead) -> Result<(), RowError> {
        let mut last: BTreeMap<u64, Name> = BTreeMap::new();
        // A receiver without records lacks those of the others.
        self.rows.entry(file).or_default();
        let (mut text, mut offset_bytes, mut line) = (Vec::new(), 0, 0);
        loop {
            line += 1;
            text.clear();
            let bytes = input.read_until(b'\n', &mut text).map_err(|source| RowError::Io { line, source })?;
            if bytes == 0 {
                return Ok(());
            }
            let invalid_row = |reason| RowError::InvalidRow { line, offset_bytes, reason };
            let row: Map<String, Value> =
                serde_json::from_slice(&text).map_err(|error| invalid_row(format!("not a JSON object: {error}")))?;
            let name = name_of(&row).ok_or_else(|| {
                invalid_row(
                    "channel, session, input_sequence or index missing (expected the output of mdgw tail --json)"
                        .to_owned(),
                )
            })?;
            let location = Location { file, number: line };
            self.check_order(&last, &name, location);
            self.compare(&name, (content_hash(&row), is_suspect(&row)), location);
            if self.names.len() > self.options.names_max {
                return Err(RowError::TooManyNames { line, names_max: self.options.names_max });
            }
            let bounds = self.bounds.entry((file, name.0)).or_insert_with(|| (name.clone(), name.clone()));
            if name < bounds.0 {
                bounds.0 = name.clone();
            } else if name > bounds.1 {
                bounds.1 = name.clone();
            }
            last.insert(name.0, name);
            *self.rows.entry(file).or_default() += 1;
            offset_bytes += bytes as u64;
        }
    }

    /// Returns the verdict; missing records are only known at the end. A record missing between a receiver's first and
    /// last record is a violation. Records missing at either end are reported only, since a receiver may have started
    /// later or ended earlier.
    #[must_use]
    pub fn finish(mut self) -> Verdict {
        for ((file, channel), (first, last)) in &self.bounds {
            let Some(bit) = bit(*file) else { continue };
            for (name, delivered) in self.names.range(first..=last) {
                if name.0 == *channel && delivered.receivers & bit == 0 {
                    let location = Location { file: *file, number: 0 };
                    self.findings.record(OutputCheck::NoLoss, location, || {
                        format!("{} not delivered to this receiver", name_text(name))
                    });
                }
            }
        }
        let shortfalls = self.shortfalls();
        let counts = (self.names.len() as u64, self.suspect_differences);
        Verdict::of_rows(&self.rows, counts, shortfalls, self.findings)
    }

    /// Records that each receiver lacks at either end.
    fn shortfalls(&self) -> Vec<Shortfall> {
        let mut channels: BTreeMap<u64, (&Name, &Name)> = BTreeMap::new();
        for ((_, channel), (first, last)) in &self.bounds {
            let all = channels.entry(*channel).or_insert((first, last));
            *all = (all.0.min(first), all.1.max(last));
        }
        let mut shortfalls = Vec::new();
        for &file in self.rows.keys() {
            for (&channel, &(from, until)) in &channels {
                let mut add_shortfall = |kind, from: Bound<&Name>, until: Bound<&Name>| {
                    let records = self.names.range::<Name, _>((from, until)).count() as u64;
                    if records > 0 {
                        shortfalls.push(Shortfall { file, channel, kind, records });
                    }
                };
                match self.bounds.get(&(file, channel)) {
                    None => add_shortfall(ShortfallKind::All, Included(from), Included(until)),
                    Some((first, last)) => {
                        add_shortfall(ShortfallKind::First, Included(from), Excluded(first));
                        add_shortfall(ShortfallKind::Last, Excluded(last), Included(until));
                    }
                }
            }
        }
        shortfalls
    }

    fn check_order(&mut self, last: &BTreeMap<u64, Name>, name: &Name, location: Location) {
        let Some(last) = last.get(&name.0) else { return };
        if name < last {
            self.findings
                .record(OutputCheck::InOrder, location, || format!("{} after {}", name_text(name), name_text(last)));
        }
    }

    fn compare(&mut self, name: &Name, (hash, is_suspect): (u64, bool), location: Location) {
        let receivers = bit(location.file).unwrap_or(0);
        match self.names.entry(name.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(DeliveredRecord { hash, is_suspect, location, last: location, receivers });
            }
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.receivers |= receivers;
                let before = std::mem::replace(&mut known.last, location);
                if before.file == location.file {
                    let line = before.number;
                    self.findings.record(OutputCheck::NoDuplicates, location, || {
                        format!("{} duplicated, first in line {line}", name_text(name))
                    });
                }
                if known.hash != hash && (known.is_suspect || is_suspect) {
                    self.suspect_differences += 1;
                } else if known.hash != hash {
                    let first = known.location;
                    self.findings.record(OutputCheck::ConsistentContent, location, || {
                        format!("{}: differs from file {} line {}", name_text(name), first.file + 1, first.number)
                    });
                }
                if known.is_suspect && !is_suspect {
                    (known.hash, known.is_suspect, known.location) = (hash, is_suspect, location);
                }
            }
        }
    }
}

fn bit(file: usize) -> Option<u64> {
    1_u64.checked_shl(u32::try_from(file).ok()?)
}

fn name_text((channel, (date, restart), sequence, index): &Name) -> String {
    format!("channel {channel} {date} #{restart}, sequence {sequence} index {index}")
}

fn name_of(row: &Map<String, Value>) -> Option<Name> {
    let number = |key: &str| row.get(key)?.as_u64();
    let (head, restart) = row.get("session")?.as_str()?.rsplit_once(" #")?;
    let (_, date) = head.rsplit_once(' ')?;
    let session = (date.to_owned(), restart.parse().ok()?);
    Some((number("channel")?, session, number("input_sequence")?, number("index")?))
}

/// Hash of all fields that depend neither on the publishing gateway nor on the receive time.
fn content_hash(row: &Map<String, Value>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (key, value) in row.iter().filter(|(key, _)| !LOCAL_FIELDS.contains(&key.as_str())) {
        (key, value.to_string()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether the record comes from a book that may differ from the venue's: gateways may differ there.
fn is_suspect(row: &Map<String, Value>) -> bool {
    row.get("flags").and_then(Value::as_u64).is_some_and(|flags| flags & u64::from(dbn::flags::MAYBE_BAD_BOOK) != 0)
}

/// Fields that may differ between gateways: receive times, and flags for suspect books.
const LOCAL_FIELDS: [&str; 3] = ["ts_recv", "ts_in_delta", "flags"];

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sequence: u64, index: u64, price: u32, ts_recv: u32) -> String {
        format!(
            "{{\"channel\":1,\"session\":\"nasdaq-itch-5.0 2019-01-30 #0\",\"input_sequence\":{sequence},\
             \"index\":{index},\"ts_recv\":\"{ts_recv}\",\"price\":\"{price}\"}}\n"
        )
    }

    fn judge(outputs: &[String]) -> Verdict {
        let mut verifier = RowsVerifier::new(VerifyOptions::default());
        for (file, output) in outputs.iter().enumerate() {
            verifier.read(file, output.as_bytes()).unwrap();
        }
        verifier.finish()
    }

    fn broken(outputs: &[String]) -> Vec<OutputCheck> {
        judge(outputs).findings.iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn outputs_that_agree_keep_all_promises() {
        let output = |ts_recv| [row(1, 0, 5, ts_recv), row(1, 1, 5, ts_recv), row(3, 0, 6, ts_recv)].concat();
        let verdict = judge(&[output(7), output(8)]);
        assert!(verdict.is_kept(), "{:?}", verdict.findings);
        assert_eq!((verdict.names, verdict.republished), (3, 3));
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        let whole = [row(1, 0, 5, 0), row(2, 0, 5, 0), row(3, 0, 6, 0)].concat();
        let doubled = [row(1, 0, 5, 0), row(1, 0, 5, 0)].concat();
        assert_eq!(broken(&[doubled]), [OutputCheck::NoDuplicates]);
        let reversed = [row(2, 0, 5, 0), row(1, 0, 5, 0)].concat();
        assert_eq!(broken(&[reversed]), [OutputCheck::InOrder]);
        let kind = [row(1, 0, 5, 0), row(3, 0, 6, 0)].concat();
        assert_eq!(broken(&[whole.clone(), kind]), [OutputCheck::NoLoss]);
        let other = [row(1, 0, 5, 0), row(2, 0, 9, 0), row(3, 0, 6, 0)].concat();
        assert_eq!(broken(&[whole.clone(), other]), [OutputCheck::ConsistentContent]);
        // A receiver that started late or ended early has missed nothing.
        assert_eq!(broken(&[whole, row(2, 0, 5, 0)]), []);
    }

    #[test]
    fn differing_records_of_suspect_books_are_counted_apart() {
        let suspect = |price| row(2, 0, price, 0).replace("\"price\"", "\"flags\":132,\"price\"");
        let verdict = judge(&[suspect(9), row(2, 0, 5, 0), suspect(7)]);
        assert_eq!((verdict.is_kept(), verdict.suspect_differences), (true, 2));
        assert_eq!(broken(&[suspect(9), row(2, 0, 5, 0), row(2, 0, 6, 0)]), [OutputCheck::ConsistentContent]);
    }

    #[test]
    fn a_name_delivered_again_later_is_a_duplicate() {
        let rows = [1, 2, 3, 1].map(|sequence| row(sequence, 0, 5, 0)).concat();
        assert_eq!(broken(std::slice::from_ref(&rows)), [OutputCheck::InOrder, OutputCheck::NoDuplicates]);
        let finding = &judge(&[String::new(), rows]).findings[1];
        assert!(finding.location.number == 4 && finding.text.ends_with("duplicated, first in line 1"), "{finding:?}");
    }

    #[test]
    fn records_missing_at_either_end_are_reported_and_break_no_promise() {
        let rows = |from: u64, until| (from..until).map(|sequence| row(sequence, 0, 5, 0)).collect::<String>();
        let other_channel = row(7, 0, 5, 0).replace("\"channel\":1", "\"channel\":2");
        let verdict = judge(&[rows(1, 10), rows(3, 6) + &other_channel, String::new()]);
        assert!(verdict.is_kept(), "{:?}", verdict.findings);
        let reported: Vec<_> = verdict.shortfalls.iter().map(|of| (of.file, of.channel, of.kind, of.records)).collect();
        let expected = [
            (0, 2, ShortfallKind::All, 1),
            (1, 1, ShortfallKind::First, 2),
            (1, 1, ShortfallKind::Last, 4),
            (2, 1, ShortfallKind::All, 9),
            (2, 2, ShortfallKind::All, 1),
        ];
        assert_eq!(reported, expected);
        let files = ["a", "b", "c"].map(str::to_owned);
        let table = verdict.to_table(&files);
        for text in [
            "b starts 2 records after the other receivers",
            "b ends 4 records before the other receivers",
            "a has no records",
        ] {
            assert!(table.contains(text), "{table}");
        }
        let json = &verdict.to_json(&files)["missing_at_ends"][2];
        assert_eq!(*json, serde_json::json!({ "file": "b", "channel": 1, "kind": "tail", "records": 4 }));
        assert_eq!(judge(&[rows(1, 10), rows(1, 10)]).shortfalls, []);
    }

    #[test]
    fn rows_do_not_show_who_published() {
        let verdict = judge(&[row(1, 0, 5, 0)]);
        assert_eq!(verdict.times_broken(OutputCheck::NoDuplicates), Some(0));
        for check in [OutputCheck::SinglePublisher, OutputCheck::MonotonicEpochs] {
            assert_eq!(verdict.times_broken(check), None);
            let line = format!("{:<26} not checked: needs captures\n", check.name());
            assert!(verdict.to_table(&[]).contains(&line), "{}", verdict.to_table(&[]));
            assert!(verdict.to_json(&[])["violations"][check.name()].is_null());
        }
    }

    #[test]
    fn an_invalid_row_is_refused_with_its_location() {
        let first = row(1, 0, 5, 0);
        for junk in ["{\"a\":", "[]\n", "{}\n", "\u{0}\n"] {
            let mut verifier = RowsVerifier::new(VerifyOptions::default());
            let error = verifier.read(0, format!("{first}{junk}").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line 2 (at byte {})", first.len())), "{error}");
        }
    }
}
