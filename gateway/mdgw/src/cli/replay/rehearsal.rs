//! Options of `mdgw replay` that inject faults on the lines and search for the highest rate without loss.

use std::{collections::BTreeSet, net::SocketAddrV4, path::PathBuf, str::FromStr};

use anyhow::ensure;
use mdgw_captures::{
    impairment::{LineImpairment, LossPolicy},
    pacer::Rising,
};
use mdgw_sys::sockets::Interface;
use mdgw_tools::replay::{until_loss::Receiver, wire::Rehearsal};

use super::super::{
    quantity::parse_duration_ns,
    sim::{chance, value_of_line},
};

/// Options that exclude `--lines`. Each argument that requires `--lines` lists them as conflicts: clap does not enforce
/// a required option that conflicts with a given one, and a fault option without lines would have no effect.
const NO_LINES: [&str; 3] = ["offline", "to", "map"];

/// Send on several lines with injected faults.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rehearsal")]
pub(super) struct RehearsalArgs {
    /// Send each packet on these lines (A,B,…); if given once per file, the n-th value is for the n-th file.
    #[arg(long, value_name = "ADDR:PORT,ADDR:PORT", conflicts_with_all = NO_LINES)]
    lines: Vec<LineAddresses>,
    /// Probability of loss; one value for all lines, or one per line (0.01,0.02).
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P", requires = "lines", conflicts_with_all = NO_LINES)]
    loss: Vec<f64>,
    /// Probability of duplication; values as for --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P", requires = "lines", conflicts_with_all = NO_LINES)]
    duplicate: Vec<f64>,
    /// Probability of reordering; values as for --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P", requires = "lines", conflicts_with_all = NO_LINES)]
    reorder: Vec<f64>,
    /// Added delay of each line, microseconds; values as for --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "US", requires = "lines", conflicts_with_all = NO_LINES)]
    skew_us: Vec<u64>,
    /// Never lose the same packet on all lines.
    #[arg(long, requires = "lines", conflicts_with_all = NO_LINES)]
    never_on_all: bool,
    /// Seed of the injected faults.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "lines", conflicts_with_all = NO_LINES)]
    seed: u64,
    /// Increase the rate in steps, from --rate (default 1,000 packets/s), until a receiver loses a packet.
    #[arg(long, conflicts_with_all = ["offline", "speed", "max", "map", "loss"])]
    pub(super) until_loss: bool,
    /// Factor from one step's rate to the next.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.25, value_parser = parse_factor, requires = "until_loss")]
    factor: f64,
    /// Duration of a step.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration_ns, requires = "until_loss")]
    step: u64,
    /// Receiver: a sink in this program, or the programs of this host that listen on the destinations (their kernel
    /// drop counts are read).
    #[arg(long, value_enum, default_value_t = ReceiverArg::Sink, requires = "until_loss")]
    receiver: ReceiverArg,
    /// The receiver is the gateway of this host with this control socket. Messages in gaps that it declares count as
    /// losses; its latency is reported for each step that contains complete latency intervals (latency.interval_ms).
    #[arg(long, value_name = "SOCKET", requires = "until_loss", conflicts_with = "receiver")]
    gateway: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ReceiverArg {
    Sink,
    Host,
}

/// Addresses of the lines of one channel, A first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LineAddresses(Vec<SocketAddrV4>);

impl FromStr for LineAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addresses: Result<Vec<_>, _> = text.split(',').map(|address| address.trim().parse()).collect();
        addresses.map(Self).map_err(|_| "expected ADDR:PORT of IPv4, several separated by commas".to_owned())
    }
}

impl RehearsalArgs {
    /// Lines and faults; `None` without `--lines`.
    pub(super) fn rehearsal(&self, files: usize) -> anyhow::Result<Option<Rehearsal>> {
        let lines: Vec<Vec<SocketAddrV4>> = self.lines.iter().map(|lines| lines.0.clone()).collect();
        let Some(count) = lines.iter().map(Vec::len).max() else { return Ok(None) };
        ensure!(
            lines.len() == 1 || lines.len() == files,
            "replay: --lines is given {} times for {files} files: give it once, or once per file",
            lines.len()
        );
        let impairment = (0..count).map(|line| {
            Ok(LineImpairment {
                loss: chance("--loss", &self.loss, line, count)?,
                duplicate: chance("--duplicate", &self.duplicate, line, count)?,
                reorder: chance("--reorder", &self.reorder, line, count)?,
                skew_ns: value_of_line("--skew-us", &self.skew_us, line, count)?.saturating_mul(1_000),
            })
        });
        let loss_policy = if self.never_on_all { LossPolicy::NeverOnAllLines } else { LossPolicy::Independent };
        Ok(Some(Rehearsal {
            impairment: impairment.collect::<anyhow::Result<_>>()?,
            lines,
            loss_policy,
            seed: self.seed,
        }))
    }

    /// Rates and step duration of `--until-loss`.
    pub(super) fn ramp(&self, rate: Option<f64>) -> Rising {
        Rising { rate: rate.unwrap_or(1_000.0), factor: self.factor, step_ns: self.step }
    }

    /// Receiver and destination addresses of `--until-loss`.
    pub(super) fn receiver(
        &self,
        to: &[SocketAddrV4],
        interface: Option<&Interface>,
    ) -> anyhow::Result<(Receiver, BTreeSet<SocketAddrV4>)> {
        let lines = self.lines.iter().flat_map(|lines| lines.0.iter().copied());
        let destinations: BTreeSet<_> = lines.chain(to.iter().copied()).collect();
        ensure!(!destinations.is_empty(), "replay: --until-loss needs a destination: give --to or --lines");
        let receiver = match (self.receiver, &self.gateway) {
            (_, Some(socket)) => Receiver::Gateway(socket.clone()),
            (ReceiverArg::Sink, None) => Receiver::Sink(interface.cloned()),
            (ReceiverArg::Host, None) => Receiver::Host,
        };
        Ok((receiver, destinations))
    }
}

fn parse_factor(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 1.0).ok_or_else(|| "not above 1".to_owned())
}
