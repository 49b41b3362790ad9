//! `mdgw convert`: DBN to CSV, JSON lines and Parquet.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::bail;
use dbn::Schema;
use mdgw_status::quantity::Count;
use mdgw_tools::convert::{self, ConvertOptions, Format};

use super::{
    Outcome,
    replay::{catch_signals, continue_unless, progress_bar},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Column names, order and formats equal those of the official Python client: `to_csv()`, `to_json()`, and `to_df()` for \
Parquet, the index included. A table holds one schema; JSON lines may hold several.

Exit code 2: the input could not be read to its end, or the output could not be written. Records converted before the \
error are kept; a Parquet file is kept only after an input error, since its index is at the end.

Examples:
  mdgw convert day.dbn.zst -o day.csv
  mdgw convert day.dbn -o trades.parquet --schema trades
  mdgw replay --offline A.pcap B.pcap --schema mbo -o - | mdgw convert - -o - --to json")]
pub(super) struct Args {
    /// DBN file, plain or zstd, detected from the content; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File to write; CSV and JSON are compressed if it ends in .zst; - is standard output.
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// Format, if the output's extension does not determine it (.csv, .json, .jsonl, .parquet).
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Option<FormatArg>,
    /// Only records of this schema: mbo, mbp-1, mbp-10, trades, status, definition, imbalance, statistics.
    #[arg(long, value_name = "SCHEMA", value_parser = parse_schema)]
    schema: Option<Schema>,
    /// Prices as decimals and times as dates; false: both as raw integers.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pretty: bool,
    /// Add a column with the symbol from the metadata.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    map_symbols: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FormatArg {
    Csv,
    Json,
    Parquet,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = catch_signals()?;
    let format = match args.to {
        Some(FormatArg::Csv) => Format::Csv,
        Some(FormatArg::Json) => Format::Json,
        Some(FormatArg::Parquet) => Format::Parquet,
        None => match Format::of_path(&args.out) {
            Some(format) => format,
            None => {
                bail!("convert: cannot determine the format from {}: give --to csv|json|parquet", args.out.display())
            }
        },
    };
    let options = ConvertOptions {
        input: args.file.clone(),
        output: args.out.clone(),
        format,
        schema: args.schema,
        pretty: args.pretty,
        map_symbols: args.map_symbols,
    };
    let bar = progress_bar(std::slice::from_ref(&args.file));
    let converted = convert::run(&options, &mut |file_bytes| {
        bar.set_position(file_bytes);
        continue_unless(&stop)
    });
    bar.finish_and_clear();
    let converted = converted?;
    // Standard error, since standard output may carry the table.
    let skipped = match converted.skipped {
        0 => String::new(),
        count => format!(", {} of other schemas skipped", Count(count)),
    };
    let (records, out) = (Count(converted.records), args.out.display());
    writeln!(io::stderr(), "{out}: {records} records{skipped}")?;
    Ok(Outcome::Done)
}

fn parse_schema(text: &str) -> Result<Schema, String> {
    use mdgw_feeds::channel::SchemaSet;
    let known = SchemaSet::NAMES.iter().any(|(_, name)| *name == text.trim());
    let names: Vec<&str> = SchemaSet::NAMES.iter().map(|(_, name)| *name).collect();
    text.trim().parse().ok().filter(|_| known).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}
