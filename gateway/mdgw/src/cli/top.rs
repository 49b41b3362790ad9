//! `mdgw top`: live view of a running gateway or replay.

mod screen;

use std::{
    fs,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use mdgw_status::{
    control::{Request, send_request},
    snapshot::Snapshot,
};

use super::{Outcome, print, quantity::parse_duration_ns, subscribers::LiveSocket, warn};
use crate::top::{self, SortBy, Top};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys: q quit, space freeze, s sort, r reverse, / filter, up and down scroll, h help.

The socket is gateway.control_socket of a gateway, or --control of `mdgw replay --offline`.
The clients of `mdgw live` are listed below the channels, the one farthest behind first.
If standard output is not a terminal, one table is printed, as with --once.

Examples:
  mdgw top
  mdgw top --socket /tmp/replay --sort lost --filter iex
  mdgw top --once --json
  mdgw top --svg top.svg --size 100x30")]
pub(super) struct Args {
    /// Control socket of the gateway, or of the replay.
    #[arg(long, value_name = "SOCKET", default_value = "/run/mdgw/control")]
    socket: PathBuf,
    #[command(flatten)]
    live: LiveSocket,
    /// Refresh interval; rates are averages over it.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration_ns)]
    interval: u64,
    /// Initial sort column: number, name, state, rate, lost, drops or p99.
    #[arg(long, value_name = "COLUMN", default_value = "number", value_parser = parse_sort)]
    sort: SortBy,
    /// Initial filter: channels with this text in name, number or state.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Take two samples, print one table and exit.
    #[arg(long)]
    once: bool,
    /// Print one line of JSON instead of a table and exit.
    #[arg(long)]
    json: bool,
    /// Write the screen as an SVG image and exit.
    #[arg(long, value_name = "OUT.svg", conflicts_with_all = ["once", "json"])]
    svg: Option<PathBuf>,
    /// Columns and rows of the image.
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "80x24", requires = "svg")]
    size: Size,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut top = Top::new(args.sort, &args.filter);
    if !args.once && !args.json && args.svg.is_none() && io::stdout().is_terminal() {
        return screen::run(args, top);
    }
    top.update(read_sample(&args.socket, &args.live)?.snapshot);
    std::thread::sleep(args.interval());
    let Sample { snapshot, problem } = read_sample(&args.socket, &args.live)?;
    top.update(snapshot);
    if let Some(problem) = problem {
        warn(&problem);
    }
    if let Some(path) = &args.svg {
        let Size { columns, rows } = args.size;
        fs::write(path, top::svg(&top, columns, rows)).with_context(|| format!("write {}", path.display()))?;
    } else if args.json {
        print(&format!("{}\n", top::json(&top)))?;
    } else {
        print(&top::text(&top))?;
    }
    Ok(Outcome::Done)
}

impl Args {
    fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval)
    }
}

/// A snapshot with the sessions of live clients.
struct Sample {
    snapshot: Snapshot,
    /// Why the sessions are not known.
    problem: Option<String>,
}

/// Requests a snapshot, and the sessions of live clients.
fn read_sample(socket: &Path, live: &LiveSocket) -> anyhow::Result<Sample> {
    let value = send_request(socket, &Request::Snapshot {})?;
    let mut snapshot: Snapshot = serde_json::from_value(value)
        .map_err(|error| anyhow!("{}: the answer is not a snapshot: {error}", socket.display()))?;
    let problem = match live.read() {
        Ok(clients) => {
            // The socket may be that of `mdgw live` itself, which has reported its sessions.
            if let Some(clients) = clients.filter(|_| snapshot.subscribers.is_empty()) {
                snapshot.subscribers = clients.subscribers;
            }
            None
        }
        Err(problem) => Some(problem),
    };
    Ok(Sample { snapshot, problem })
}

/// Size of a screen, in character cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    columns: u16,
    rows: u16,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |text: &str| text.parse().ok().filter(|cells| (1..=CELLS_MAX).contains(cells));
        let size = text.split_once('x').and_then(|(columns, rows)| Some((fits(columns)?, fits(rows)?)));
        size.map(|(columns, rows)| Self { columns, rows })
            .ok_or_else(|| format!("expected columns and rows, such as 100x30, of up to {CELLS_MAX} each"))
    }
}

fn parse_sort(text: &str) -> Result<SortBy, String> {
    SortBy::ALL.into_iter().find(|sort| sort.name() == text).ok_or_else(|| {
        let known: Vec<&str> = SortBy::ALL.iter().map(|sort| sort.name()).collect();
        format!("expected one of {}", known.join(", "))
    })
}

/// Limit of columns and of rows, larger than any screen.
const CELLS_MAX: u16 = 500;
