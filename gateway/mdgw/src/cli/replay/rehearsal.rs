//! What `mdgw replay` does to packets on their way, and how it looks for the rate that is too high.

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

/// What sends packets elsewhere than on lines. Said of each argument that needs `--lines`: what is required is not asked for
/// where it would conflict, and damage that nobody does must not be asked for either.
const NO_LINES: [&str; 3] = ["offline", "to", "map"];

/// Several lines, and what they do to packets.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rehearsal")]
pub(super) struct RehearsalArgs {
    /// Send each packet on these lines (A,B,…); given once for each file, the n-th file goes to the n-th.
    #[arg(long, value_name = "ADDR:PORT,ADDR:PORT", conflicts_with_all = NO_LINES)]
    lines: Vec<LineAddresses>,
    /// Chance that a packet is lost; one for all lines or one for each (0.01,0.02).
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P", requires = "lines", conflicts_with_all = NO_LINES)]
    loss: Vec<f64>,
    /// Chance that a packet comes twice; as --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P", requires = "lines", conflicts_with_all = NO_LINES)]
    duplicate: Vec<f64>,
    /// Chance that a packet is overtaken by the next ones; as --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "P", requires = "lines", conflicts_with_all = NO_LINES)]
    reorder: Vec<f64>,
    /// How much later each line delivers, in microseconds; as --loss.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "US", requires = "lines", conflicts_with_all = NO_LINES)]
    skew_us: Vec<u64>,
    /// Never lose a packet on all lines.
    #[arg(long, requires = "lines", conflicts_with_all = NO_LINES)]
    never_on_all: bool,
    /// The same seed does the same damage.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "lines", conflicts_with_all = NO_LINES)]
    seed: u64,
    /// Raise the rate step by step, from --rate (1,000 packets/s by default), until a receiver loses a packet.
    #[arg(long, conflicts_with_all = ["offline", "speed", "max", "map", "loss"])]
    pub(super) until_loss: bool,
    /// The next step's rate by this one's.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.25, value_parser = parse_factor, requires = "until_loss")]
    factor: f64,
    /// How long a step lasts.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration_ns, requires = "until_loss")]
    step: u64,
    /// Who receives: a sink of this program, or whatever programs of this host listen, of which the kernel's drop counts
    /// are read.
    #[arg(long, value_enum, default_value_t = ReceiverArg::Sink, requires = "until_loss")]
    receiver: ReceiverArg,
    /// The receiver is the gateway of this host with that control socket: messages in gaps that it declares are losses too, and its
    /// latency is told for each step that holds whole intervals of it (latency.interval_ms).
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
    /// The lines, where there are any.
    pub(super) fn rehearsal(&self, files: usize) -> anyhow::Result<Option<Rehearsal>> {
        let lines: Vec<Vec<SocketAddrV4>> = self.lines.iter().map(|lines| lines.0.clone()).collect();
        let Some(count) = lines.iter().map(Vec::len).max() else { return Ok(None) };
        ensure!(
            lines.len() == 1 || lines.len() == files,
            "replay: --lines is given {} times for {files} files: give it once, or once for each",
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

    /// Steps of a search.
    pub(super) fn ramp(&self, rate: Option<f64>) -> Rising {
        Rising { rate: rate.unwrap_or(1_000.0), factor: self.factor, step_ns: self.step }
    }

    /// Who receives in a search, and at which addresses.
    pub(super) fn receiver(
        &self,
        to: &[SocketAddrV4],
        interface: Option<&Interface>,
    ) -> anyhow::Result<(Receiver, BTreeSet<SocketAddrV4>)> {
        let lines = self.lines.iter().flat_map(|lines| lines.0.iter().copied());
        let destinations: BTreeSet<_> = lines.chain(to.iter().copied()).collect();
        ensure!(!destinations.is_empty(), "replay: --until-loss needs to know where to send: give --to or --lines");
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
