//! `mdgw convert`: DBN to CSV, JSON lines and Parquet.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::bail;
use dbn::Schema;
use mdgw_tools::{
    convert::{self, ConvertOptions, Format},
    replay::summary::grouped,
};

use super::{
    Outcome,
    replay::{bar, catch_signals, continue_unless},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns are named, ordered and written as the official Python client does it: CSV and JSON as `to_csv()` and \
`to_json()`, Parquet with the columns of `to_df()`, the index among them. A table holds one schema; JSON lines may hold \
several.

Exit code 2: the input could not be read to its end, or the output not be written; what was converted before is kept \
(of Parquet, whose index stands at its end, only where it was the input that ended).

Examples:
  mdgw convert day.dbn.zst -o day.csv
  mdgw convert day.dbn -o trades.parquet --schema trades
  mdgw replay --offline A.pcap B.pcap --schema mbo -o - | mdgw convert - -o - --to json")]
pub(super) struct Args {
    /// DBN file, plain or zstd, told by content; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File to write; CSV and JSON are compressed if it ends in .zst; - is standard output.
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// Format, where the name of the output doesn't tell it (.csv, .json, .jsonl, .parquet).
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Option<FormatArg>,
    /// Only records of this schema: mbo, mbp-1, mbp-10, trades, status, definition, imbalance, statistics.
    #[arg(long, value_name = "SCHEMA", value_parser = parse_schema)]
    schema: Option<Schema>,
    /// Prices as decimals and times as dates; false: both as the integers that they are.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pretty: bool,
    /// A column with the symbol, as the metadata has it.
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
            None => bail!("convert: {} doesn't tell a format: give it with --to csv|json|parquet", args.out.display()),
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
    let bar = bar(std::slice::from_ref(&args.file));
    let converted = convert::run(&options, &mut |file_bytes| {
        bar.set_position(file_bytes);
        continue_unless(&stop)
    });
    bar.finish_and_clear();
    let converted = converted?;
    // Standard output may be the table's.
    let skipped = match converted.skipped {
        0 => String::new(),
        count => format!(", {} of other schemas left out", grouped(count)),
    };
    let (records, out) = (grouped(converted.records), args.out.display());
    writeln!(io::stderr(), "{out}: {records} records{skipped}")?;
    Ok(Outcome::Done)
}

fn parse_schema(text: &str) -> Result<Schema, String> {
    use mdgw_feeds::channel::SchemaSet;
    let known = SchemaSet::NAMES.iter().any(|(_, name)| *name == text.trim());
    let names: Vec<&str> = SchemaSet::NAMES.iter().map(|(_, name)| *name).collect();
    text.trim().parse().ok().filter(|_| known).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}
