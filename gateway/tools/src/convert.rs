//! Converts DBN to CSV, JSON lines or Parquet. Names, order and formatting of columns are those of the official client:
//! CSV and JSON are written by its own encoders, Parquet uses the same names.
//!
//! A table holds records of one type. JSON lines may hold several types, one object per record.

#[cfg(feature = "parquet")]
mod columns;
#[cfg(feature = "parquet")]
mod parquet;

use std::{
    cell::RefCell,
    io::{self, BufWriter},
    ops::ControlFlow,
    path::{Path, PathBuf},
    rc::Rc,
};

use dbn::{
    RType, Record as _, RecordRef, Schema, TsSymbolMap,
    encode::{EncodeRecordRef as _, EncodeRecordTextExt as _, csv, json},
    symbol_map::SymbolIndex as _,
};
use mdgw_captures::{
    dbn_file::schema_name,
    dbn_input::{DbnInput, DbnInputError},
    output_file::{FailedAtByte, OutputFile},
};

use crate::replay::offline::refer_to_same_file;

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// DBN file, plain or zstd; `-` is standard input.
    pub input: PathBuf,
    /// Output path; `-` is standard output.
    pub output: PathBuf,
    /// Output format.
    pub format: Format,
    /// Convert records of this schema only.
    pub schema: Option<Schema>,
    /// Prices as decimals and times as dates; false: both as raw integers.
    pub pretty: bool,
    /// Add a column with the symbol.
    pub map_symbols: bool,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated, with a header.
    Csv,
    /// One object on each line.
    Json,
    /// Apache Parquet.
    Parquet,
}

/// Result of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertSummary {
    /// Records written.
    pub records: u64,
    /// Records of other schemas, skipped.
    pub skipped: u64,
}

/// Errors of a conversion. Output written before the error stays.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// Reading the input failed; `records` were written.
    #[error("{fault} ({records} records were written before this error)")]
    Input {
        /// Error of the input.
        fault: DbnInputError,
        /// Records written before the error.
        records: u64,
    },
    /// Writing the output failed.
    #[error("write {}{at}", path.display())]
    Output {
        /// Output path.
        path: PathBuf,
        /// Length of the output at the failure.
        at: FailedAtByte,
        /// Error of the write.
        source: io::Error,
    },
    /// A record that can't be encoded.
    #[error("convert {} at byte {offset}: {source}", path.display())]
    Record {
        /// Path of the input.
        path: PathBuf,
        /// Offset of the record in the input.
        offset: u64,
        /// Error of the encoder.
        source: dbn::Error,
    },
    /// The input contains a second record type, which the table can't hold.
    #[error(
        "convert {}: record of schema {second} at byte {offset} among records of {first}; a table holds one schema: \
         choose with --schema",
        path.display()
    )]
    SeveralSchemas {
        /// Path of the input.
        path: PathBuf,
        /// Offset of the other record in the input.
        offset: u64,
        /// Record type of the table.
        first: &'static str,
        /// Type of the other record.
        second: &'static str,
    },
    /// The output would overwrite the input.
    #[error("convert: {} is the input file: choose another output file", path.display())]
    OutputIsInput {
        /// Path of the output.
        path: PathBuf,
    },
    /// This build does not support Parquet.
    #[error("convert: Parquet is not included in this build; rebuild with `cargo build --release --features parquet`")]
    NoParquet,
    /// The caller interrupted the conversion.
    #[error("convert: interrupted, after {records} records")]
    Interrupted {
        /// Records written.
        records: u64,
    },
}

/// Converts a DBN stream. `on_progress` gets the number of input bytes read so far, and may break off.
///
/// # Errors
/// See [`ConvertError`].
pub fn run(
    options: &ConvertOptions,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<ConvertSummary, ConvertError> {
    if cfg!(not(feature = "parquet")) && options.format == Format::Parquet {
        return Err(ConvertError::NoParquet);
    }
    if refer_to_same_file(&options.input, &options.output) {
        return Err(ConvertError::OutputIsInput { path: options.output.clone() });
    }
    let input_error = |records| move |fault| ConvertError::Input { fault, records };
    let mut input = DbnInput::open(&options.input).map_err(input_error(0))?;
    let symbols = options.map_symbols.then(|| TsSymbolMap::try_from(input.metadata())).transpose();
    let record_error = |offset, source| ConvertError::Record { path: options.input.clone(), offset, source };
    let symbols = symbols.map_err(|source| record_error(0, source))?;
    // If the metadata names a schema, a table without rows gets its columns too.
    let schema = options.schema.or_else(|| input.metadata().schema);
    let wanted = schema.map(RType::from);
    let mut converted = ConvertSummary::default();
    let file = OutputFile::create(&options.output).map_err(|source| RowError::Io(source).in_output(options, 0))?;
    let mut table = TableWriter::begin(BufWriter::with_capacity(BUFFER_BYTES, file), options, schema)
        .map_err(|error| error.in_output(options, 0))?;
    let ended = loop {
        let offset = input.offset();
        let record = match input.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => break Ok(()),
            Err(fault) => break Err(input_error(converted.records)(fault)),
        };
        let rtype = record.rtype().map_err(|source| record_error(offset, source))?;
        if options.schema.is_some() && Some(rtype) != wanted {
            converted.skipped += 1;
            continue;
        }
        if let Some(first) = table.rtype.filter(|first| *first != rtype && options.format != Format::Json) {
            break Err(ConvertError::SeveralSchemas {
                path: options.input.clone(),
                offset,
                first: schema_name(first),
                second: schema_name(rtype),
            });
        }
        let symbol = symbols.as_ref().map(|symbols| symbols.get_for_rec(&record).map(String::as_str));
        if let Err(error) = table.write(record, rtype, symbol) {
            return Err(error.in_output(options, offset));
        }
        converted.records += 1;
        if converted.records.is_multiple_of(RECORDS_PER_CHECK) && on_progress(input.file_bytes_read()).is_break() {
            break Err(ConvertError::Interrupted { records: converted.records });
        }
    };
    // After an error too, the output is completed so that it can be read.
    table.finish().map_err(|error| error.in_output(options, input.offset()))?;
    ended.map(|()| converted)
}

/// Writes rows to a file.
struct TableWriter {
    writer: Writer,
    /// Record type of all rows, once it is known.
    rtype: Option<RType>,
}

enum Writer {
    Csv(Box<csv::Encoder<Output>>),
    /// The encoder owns its writer, so finishing the file needs another handle to it.
    Json(json::Encoder<SharedOutput>, SharedOutput),
    /// Columns are known with the first record.
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet::Rows>),
}

type Output = BufWriter<OutputFile>;

#[derive(Clone)]
struct SharedOutput(Rc<RefCell<Output>>);

impl io::Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// Error of a row.
enum RowError {
    Encoder(dbn::Error),
    Io(io::Error),
}

impl TableWriter {
    fn begin(output: Output, options: &ConvertOptions, schema: Option<Schema>) -> Result<Self, RowError> {
        let rtype = schema.map(RType::from);
        let writer = match options.format {
            Format::Csv => {
                let builder = csv::Encoder::builder(output)
                    .use_pretty_px(options.pretty)
                    .use_pretty_ts(options.pretty)
                    .with_symbol(options.map_symbols)
                    .schema(schema);
                Writer::Csv(Box::new(builder.build().map_err(RowError::Encoder)?))
            }
            Format::Json => {
                let shared = SharedOutput(Rc::new(RefCell::new(output)));
                let encoder = json::Encoder::builder(shared.clone())
                    .use_pretty_px(options.pretty)
                    .use_pretty_ts(options.pretty)
                    .build();
                Writer::Json(encoder, shared)
            }
            #[cfg(feature = "parquet")]
            Format::Parquet => Writer::Parquet(Box::new(
                parquet::Rows::begin(output, rtype, options.pretty, options.map_symbols).map_err(RowError::Io)?,
            )),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => return Err(RowError::Io(io::ErrorKind::Unsupported.into())),
        };
        Ok(Self { writer, rtype })
    }

    /// `symbol`: `None` without a symbol column, `Some(None)` if the symbol is unknown.
    fn write(&mut self, record: RecordRef<'_>, rtype: RType, symbol: Option<Option<&str>>) -> Result<(), RowError> {
        self.rtype = Some(rtype);
        match (&mut self.writer, symbol) {
            (Writer::Csv(csv), Some(symbol)) => csv.encode_ref_with_sym(record, symbol).map_err(RowError::Encoder),
            (Writer::Csv(csv), None) => csv.encode_record_ref(record).map_err(RowError::Encoder),
            (Writer::Json(json, _), Some(symbol)) => {
                json.encode_ref_with_sym(record, symbol).map_err(RowError::Encoder)
            }
            (Writer::Json(json, _), None) => json.encode_record_ref(record).map_err(RowError::Encoder),
            #[cfg(feature = "parquet")]
            (Writer::Parquet(rows), symbol) => {
                rows.write(record.as_ref(), rtype, symbol.flatten()).map_err(RowError::Io)
            }
        }
    }

    fn finish(self) -> Result<(), RowError> {
        let output = match self.writer {
            Writer::Csv(csv) => csv.into_inner().map_err(RowError::Encoder)?,
            Writer::Json(json, shared) => {
                drop(json);
                let Some(output) = Rc::into_inner(shared.0) else { return Ok(()) };
                output.into_inner()
            }
            #[cfg(feature = "parquet")]
            Writer::Parquet(rows) => rows.finish().map_err(RowError::Io)?,
        };
        let file = output.into_inner().map_err(|error| RowError::Io(error.into_error()))?;
        file.finish().map_err(RowError::Io)
    }
}

impl RowError {
    fn in_output(self, options: &ConvertOptions, offset: u64) -> ConvertError {
        let path = options.output.clone();
        let at = FailedAtByte::of(&path);
        match self {
            Self::Io(source) | Self::Encoder(dbn::Error::Io { source, .. }) => {
                ConvertError::Output { path, at, source }
            }
            Self::Encoder(source) => ConvertError::Record { path: options.input.clone(), offset, source },
        }
    }
}

impl Format {
    /// Format by the extension of the file name; `None` if the extension is unknown.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let name = name.strip_suffix(".zst").unwrap_or(name);
        let (_, end) = name.rsplit_once('.')?;
        Some(match end {
            "csv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            "parquet" => Self::Parquet,
            _ => return None,
        })
    }
}

/// Records between two progress calls.
const RECORDS_PER_CHECK: u64 = 16_384;
const BUFFER_BYTES: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_follows_from_the_file_name() {
        let of = |name: &str| Format::of_path(Path::new(name));
        assert_eq!(of("a.b/day.csv"), Some(Format::Csv));
        assert_eq!(of("day.csv.zst"), Some(Format::Csv));
        assert_eq!(of("day.jsonl"), Some(Format::Json));
        assert_eq!(of("day.json.zst"), Some(Format::Json));
        assert_eq!(of("day.parquet"), Some(Format::Parquet));
        for name in ["-", "day", "day.dbn", "csv", "day.zst"] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
