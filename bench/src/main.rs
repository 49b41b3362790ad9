//! What the gateway costs, as ratios to rivals that run in the same round.
//!
//! Machines are noisy, and one figure in nanoseconds says little. So every scenario runs its variants alternating, in
//! several rounds, and reports the median, least and greatest *ratio* within a round beside the medians.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports on the terminal")]

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

mod decode_baseline;
mod input;
mod reference;
mod report;
mod scenario;

#[derive(Parser)]
#[command(name = "mdgw-bench", about, version)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Decoding alone, all fields, against a loop that steps over the frames and loads the same fields.
    Decode(Options),
    /// Decoding and books, against a plain book of `HashMap` and `BTreeMap`; final books are compared.
    Book(Options),
    /// The data path end to end in replay, a capture of both lines to the publication log, against the plain book alone.
    #[command(alias = "line")]
    EndToEnd(Options),
    /// One pass of one variant, for counting instructions; see `bench/instructions`.
    Once {
        /// What to run.
        variant: scenario::once::Variant,
        #[command(flatten)]
        options: Options,
    },
    /// Writes the day as a capture for each of two lines, which lack packets of their own; for `bench/peers/files`.
    Captures {
        /// Where to write `a.pcap` and `b.pcap`.
        directory: PathBuf,
        #[command(flatten)]
        options: Options,
    },
    /// Which setup of the pool's turn is best on this machine: backend, promotion, wait strategy, batch.
    Turn(scenario::turn::TurnOptions),
    /// What a dispatch model costs: Leader/Followers, half-sync and reactors beside ACE, Boost.Asio and tokio.
    Dispatch(Box<scenario::dispatch::DispatchOptions>),
    /// A subject of `dispatch`.
    #[command(hide = true)]
    DispatchSubject(scenario::dispatch::subject::SubjectArgs),
    /// How soon peers learn of a gateway's death: the sentinel's notice against the end of its process.
    #[command(alias = "notice")]
    DeathNotice(scenario::death_notice::DeathNoticeOptions),
    /// The gateway process of `death-notice`.
    #[command(hide = true)]
    DeathNoticeGateway(scenario::death_notice::GatewayProcessArgs),
    /// What the fence in the kernel adds to a send; as root.
    KernelFence(scenario::kernel_fence::KernelFenceOptions),
    /// From the publication log to a reader in another process, and what many readers cost the publisher.
    SharedMemory(scenario::shared_memory::SharedMemoryOptions),
    /// A reader of `shared-memory`.
    #[command(hide = true)]
    SharedMemoryReader(scenario::shared_memory::ReaderArgs),
    /// How long a late start by snapshot takes, and what it costs the thread of the channel.
    SnapshotStart(scenario::snapshot_start::SnapshotStartOptions),
    /// `mdgw live`: throughput over a bare loop, memory of a session, latency from the log, and what sessions cost the gateway.
    Live(scenario::live::LiveOptions),
    /// Wire to wire, seen from outside: the gateway as a program, over a bare loop that receives and sends again.
    Wire(Box<scenario::wire::WireOptions>),
}

/// Options of all scenarios.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Messages of the synthetic day.
    #[arg(long, default_value_t = 20_000_000)]
    messages: u64,
    /// Seed of the day.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Live orders that the day works up to.
    #[arg(long, default_value_t = 500_000)]
    live_orders: u32,
    /// Order ids scattered over 64 bits instead of dense ones.
    #[arg(long)]
    scattered_ids: bool,
    /// Day file to use; created if it doesn't exist. By default one in the directory for temporary files.
    #[arg(long)]
    input: Option<PathBuf>,
    /// Rounds; in each one every variant runs once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    match Cli::parse().scenario {
        Scenario::Decode(options) => scenario::decode::run(&options),
        Scenario::Book(options) => scenario::book::run(&options),
        Scenario::EndToEnd(options) => scenario::end_to_end::run(&options),
        Scenario::Once { variant, options } => scenario::once::run(variant, &options),
        Scenario::Captures { directory, options } => scenario::captures::run(&directory, &options),
        Scenario::Turn(options) => scenario::turn::run(&options),
        Scenario::Dispatch(options) => scenario::dispatch::run(&options),
        Scenario::DispatchSubject(args) => scenario::dispatch::subject::run(&args),
        Scenario::DeathNotice(options) => scenario::death_notice::run(&options),
        Scenario::DeathNoticeGateway(args) => scenario::death_notice::run_gateway_process(&args),
        Scenario::KernelFence(options) => scenario::kernel_fence::run(&options),
        Scenario::SharedMemory(options) => scenario::shared_memory::run(&options),
        Scenario::SharedMemoryReader(args) => scenario::shared_memory::run_reader(&args),
        Scenario::SnapshotStart(options) => scenario::snapshot_start::run(&options),
        Scenario::Live(options) => scenario::live::run(&options),
        Scenario::Wire(options) => scenario::wire::run(&options),
    }
}
