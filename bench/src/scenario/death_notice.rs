//! How soon do peers learn that a gateway has died? Compares the sentinel's notice with the end of the process as the
//! kernel reports it, for the same death.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use mdgw_election::{
    announcement::Announcement,
    auth::SharedKey,
    identity::{Incarnation, Member, NodeId, NodeName},
    sentinel::{
        SentinelConnection, SentinelSource,
        registration::{GroupRegistration, WatchRegistration},
        shared_page::SharedPage,
    },
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};
use mdgw_sys::{memory::forbid_core_dumps, pidfd::PidFd};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DeathNoticeOptions {
    /// Deaths of each kind.
    #[arg(long, default_value_t = 50)]
    trials: usize,
    /// Resident memory of the gateway, MB.
    #[arg(long, value_delimiter = ',', default_value = "1,300")]
    resident_mb: Vec<usize>,
    /// SCHED_FIFO priority of the sentinel, 0 for none.
    #[arg(long, default_value_t = 50)]
    priority: u8,
    /// The program that has the sentinel; by default `mdgw` beside this one.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of the gateway process.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GatewayProcessArgs {
    program: PathBuf,
    recipients: SocketAddr,
    key_file: PathBuf,
    resident_mb: usize,
    priority: u8,
}

/// How the gateway process dies. Each kind has the same number of trials, and the kinds alternate.
#[derive(Clone, Copy, Debug)]
enum DeathKind {
    Kill,
    Abort,
}

pub(crate) fn run(options: &DeathNoticeOptions) -> Result<()> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => env::current_exe()?.with_file_name("mdgw"),
    };
    ensure!(program.exists(), "there is no {}: build the whole workspace first", program.display());
    let directory = tempfile::tempdir()?;
    let key_file = directory.path().join("key");
    fs::write(&key_file, "5e".repeat(32))?;
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600))?;
    let key = SharedKey::load(&key_file)?;
    let kinds: Vec<_> = [DeathKind::Kill, DeathKind::Abort]
        .into_iter()
        .flat_map(|death| options.resident_mb.iter().map(move |resident_mb| (death, *resident_mb)))
        .collect();
    let mut durations = vec![(Vec::new(), Vec::new()); kinds.len()];
    for _ in 0..options.trials {
        for ((death, resident_mb), (notices, ends)) in kinds.iter().zip(&mut durations) {
            let args = GatewayProcessArgs {
                program: program.clone(),
                recipients: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                key_file: key_file.clone(),
                resident_mb: *resident_mb,
                priority: options.priority,
            };
            let (notice, end) = trial(*death, args, &key)?;
            notices.push(notice);
            ends.push(end);
        }
    }
    let mut lines = Vec::new();
    for ((death, resident_mb), (notices, ends)) in kinds.iter().zip(&mut durations) {
        let ([notice, worst_notice], [end, worst_end]) = (median_and_worst(notices), median_and_worst(ends));
        if !options.json {
            println!(
                "{death:?} at {resident_mb} MB: notice {notice:.3} ms (worst {worst_notice:.3}), \
                 process gone {end:.3} ms (worst {worst_end:.3}), {} trials",
                notices.len()
            );
        }
        lines.push(json!({
            "death": format!("{death:?}"), "resident_mb": resident_mb, "trials": notices.len(),
            "notice_ms": { "median": notice, "worst": worst_notice },
            "process_gone_ms": { "median": end, "worst": worst_end },
        }));
    }
    if options.json {
        println!("{}", json!({ "scenario": "death-notice", "priority": options.priority, "kinds": lines }));
    }
    Ok(())
}

/// Ends one gateway process. Returns the times from just before its end to the arrival of the notice, and to the end of
/// the process as its pidfd reports it.
fn trial(death: DeathKind, mut args: GatewayProcessArgs, key: &SharedKey) -> Result<(Duration, Duration)> {
    let recipients = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    recipients.set_read_timeout(Some(TEST_TIMEOUT))?;
    args.recipients = recipients.local_addr()?;
    let mut gateway = start(&args)?;
    let process = PidFd::of(rustix::process::Pid::from_child(&gateway))?;
    let exited = thread::spawn(move || process.wait_for_end(TEST_TIMEOUT).map(|_| Instant::now()));
    let mut stdin = gateway.stdin.take().context("standard input is piped")?;
    let started = Instant::now();
    match death {
        DeathKind::Kill => gateway.kill()?,
        DeathKind::Abort => writeln!(stdin)?,
    }
    let mut bytes = [0; 200];
    let length = recipients.recv(&mut bytes).context("wait for the notice")?;
    let received = Instant::now();
    let exited = exited.join().map_err(|_| anyhow::anyhow!("the watching thread panicked"))??;
    gateway.wait()?;
    ensure!(Announcement::open(&bytes[..length], key).is_some(), "a notice that is not signed");
    Ok((received - started, exited - started))
}

fn start(args: &GatewayProcessArgs) -> Result<Child> {
    let mut child = Command::new(env::current_exe()?)
        .args([Path::new("death-notice-gateway"), &args.program])
        .arg(args.recipients.to_string())
        .arg(&args.key_file)
        .args([args.resident_mb.to_string(), args.priority.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("standard output is piped")?).read_line(&mut line)?;
    if line.trim() != WATCHED {
        child.kill()?;
        bail!("the gateway's part ended: {line}");
    }
    Ok(child)
}

/// The watched gateway process: aborts when it reads a line.
pub(crate) fn run_gateway_process(args: &GatewayProcessArgs) -> Result<()> {
    forbid_core_dumps()?;
    let page = Arc::new(SharedPage::create()?);
    let of_election = Arc::clone(&page);
    let (election_started, election_outcome) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let outcome = of_election.hold();
        of_election.group(0).open(Epoch::new(1, 1), MonoNs(u64::MAX));
        let _ = election_started.send(outcome);
        loop {
            // The renewal interval of the default lease profile.
            of_election.thread(0).mark_busy();
            thread::sleep(Duration::from_millis(20));
        }
    });
    election_outcome.recv()??;
    let registration = WatchRegistration {
        member: Member {
            node: NodeId(1),
            name: NodeName::new("bench").context("a name")?,
            incarnation: Incarnation(1),
        },
        groups: vec![GroupRegistration { group: 1, lease_ns: 100_000_000 }],
        records: None,
        thread_count: 1,
        recipients: vec![args.recipients],
        key_file: args.key_file.clone(),
        hang_limit_ns: None,
    };
    let source = SentinelSource::Start { program: args.program.clone(), priority: args.priority, logs_json: false };
    let resident = vec![1_u8; args.resident_mb << 20];
    let _sentinel = SentinelConnection::start(&source, &registration, &page, None)?;
    println!("{WATCHED}");
    std::io::stdin().lock().read_line(&mut String::new())?;
    std::hint::black_box(&resident);
    std::process::abort();
}

fn median_and_worst(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    [ms(times.get(times.len() / 2)), ms(times.last())]
}

const WATCHED: &str = "watched";
/// Longer than any step takes on any machine; a step that takes longer hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
