//! The display of `mdgw top`, for a running gateway and for a replay.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Instant,
};

use mdgw_tests::{
    feeds::{self, DESTINATIONS, MIDNIGHT_NS, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal, TEST_TIMEOUT, comes_true, wait_until},
};
use serde_json::Value;

/// A gateway that is fed slowly, and its control socket.
fn running(fixture: &GatewayFixture) -> (MdgwProcess, MdgwProcess, PathBuf) {
    let (gateway, socket) = fixture.controlled_gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let [a, b] = fixture.lines.map(|line| line.to_string());
    // Longer than any of these tests.
    let day = ["--messages", "5000000", "--rate", "200"];
    let sim = process::start(["sim", "--line", &a, "--line", &b, "--interface", "lo"].into_iter().chain(day));
    (gateway, sim, socket)
}

/// Runs `mdgw top --once` until its output is wanted.
fn once(socket: &Path, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let exited = process::run(["top", "--once", "--json", "--interval", "200ms", "--socket", text(socket)]);
        let value = exited.expect_code(0).json();
        if is_wanted(&value) {
            return value;
        }
        assert!(Instant::now() < deadline, "top does not show it: {value}");
    }
}

#[test]
fn a_running_gateway_shows_its_threads_channels_lines_and_latencies() {
    let fixture = GatewayFixture::new();
    let (gateway, _sim, socket) = running(&fixture);
    let is_busy = |value: &Value| {
        let channel = &value["channels"][0];
        let is_led = channel["lines"].as_array().unwrap().iter().any(|line| line["lead_count"].as_u64() > Some(0));
        let has_latency = channel["stages"].as_array().unwrap().iter().any(|stage| stage["stage"] == "wire_to_wire");
        channel["messages_per_s"].as_f64() > Some(0.0) && is_led && has_latency
    };
    let value = once(&socket, is_busy);
    assert_eq!(value["source"], "gateway 0, epoch 1");
    let threads = value["pools"][0]["threads"].as_array().unwrap();
    let names: Vec<_> = threads.iter().map(|thread| thread["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main-0", "main-1"]);
    let known = ["leader", "spinning", "parked", "processing"];
    assert!(threads.iter().all(|thread| known.contains(&thread["role"].as_str().unwrap())), "{threads:?}");
    let channel = &value["channels"][0];
    assert_eq!((&channel["name"], &channel["pool"], &channel["id"]), (&"one".into(), &"main".into(), &1.into()));
    assert!(channel["datagrams"].as_u64() > Some(0) && channel["packets_sent"].as_u64() > Some(0), "{channel}");

    // Into a pipe, `top` writes no colours and no screen control.
    let table = process::run(["top", "--interval", "10ms", "--socket", text(&socket)]).expect_code(0).stdout;
    assert!(table.contains("main-1") && table.contains("one") && !table.contains('\u{1b}'), "{table}");
    let svg = fixture.path("top.svg");
    let _ = process::run(["top", "--interval", "10ms", "--socket", text(&socket), "--svg", text(&svg)]).expect_code(0);
    assert!(fs::read_to_string(svg).unwrap().ends_with("</svg>\n"));

    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let exited = process::run(["top", "--socket", text(&socket)]).expect_code(2);
    assert!(exited.stderr.contains("cannot connect to the control socket"), "{}", exited.stderr);
}

#[test]
fn terminal_settings_are_restored() {
    let fixture = GatewayFixture::new();
    let (gateway, sim, socket) = running(&fixture);
    for ending in [ExitBy::Key(b'q'), ExitBy::Key(3), ExitBy::Signal("TERM"), ExitBy::Signal("INT")] {
        let mut terminal = Terminal::with_top(&socket);
        terminal.wait_until_shown("space freeze");
        terminal.wait_until_shown("main-1");
        let (code, settings) = terminal.end(&ending);
        assert_eq!(code, "0", "{ending:?}");
        // The terminal is not in raw mode any more: input is line by line, with echo.
        assert!(settings.contains(" icanon") && settings.contains(" echo "), "{ending:?}: {settings}");
    }
    // The gateway stops while `top` runs: the view reports it and stays.
    let mut terminal = Terminal::with_top(&socket);
    terminal.wait_until_shown("main-1");
    drop(sim);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    terminal.wait_until_shown("cannot");
    assert_eq!(terminal.end(&ExitBy::Key(b'q')).0, "0");
}

/// As an `ssh` session that is cut off.
#[test]
fn top_ends_when_its_terminal_is_gone() {
    let fixture = GatewayFixture::new();
    let (_gateway, _sim, socket) = running(&fixture);
    let mut terminal = Terminal::with_top(&socket);
    terminal.wait_until_shown("main-1");
    let pid = terminal.value_after("pid=");
    drop(terminal);
    // Nobody may be there to collect its exit code, so a process that has ended may be left as a zombie.
    let has_ended = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        status.map_or(true, |status| status.lines().any(|line| line.starts_with("State:\tZ")))
    };
    let ended = comes_true(has_ended);
    if !ended {
        // It would take a core until the machine stops.
        let _ = Command::new("kill").args(["-KILL", &pid]).status();
    }
    assert!(ended, "top goes on without its terminal");
}

#[test]
fn top_watches_a_replay_over_its_socket() {
    let fixture = GatewayFixture::new();
    let (day, pipe, socket) = (fixture.path("day.pcap"), fixture.path("pipe"), fixture.path("control"));
    let packets = feeds::itch_packets(feeds::itch_day(120_000, 3), SESSION, MIDNIGHT_NS);
    feeds::write_capture(&day, DESTINATIONS[0], &packets);
    let whole = fs::read(day).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let feed_arguments = ["--feed", "nasdaq-itch-5.0", "--control", text(&socket)];
    let replay = process::start(["replay", "--offline", text(&pipe)].iter().chain(&feed_arguments));
    let mut pipe = File::options().write(true).open(&pipe).unwrap();
    // The end of the file is missing, so the replay waits for more input while `top` shows it.
    let (most, rest) = whole.split_at(whole.len() - 1_000);
    pipe.write_all(most).unwrap();
    wait_until("the replay opens its control socket", || socket.exists());
    let value = once(&socket, |value| value["channels"][0]["messages"].as_u64() > Some(0));
    assert_eq!(value["source"], "replay");
    assert_eq!(value["channels"][0]["name"], "0 nasdaq-itch-5.0");
    let refused = process::run(["ha", "status", "--socket", text(&socket)]).expect_code(1);
    assert!(refused.stderr.contains("this is a replay"), "{}", refused.stderr);
    pipe.write_all(rest).unwrap();
    drop(pipe);
    let _ = replay.end().expect_code(0);
    assert!(!socket.exists());
}

#[derive(Debug)]
enum ExitBy {
    Key(u8),
    Signal(&'static str),
}

/// `mdgw top` on a pseudoterminal, which script(1) creates. A shell around it prints the exit code and the terminal settings
/// afterwards.
struct Terminal {
    keys: ChildStdin,
    child: Child,
    output: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

/// Escape sequence that leaves the alternate screen.
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";

impl Terminal {
    fn with_top(socket: &Path) -> Self {
        let top = format!("exec {} top --interval 50ms --socket {}", process::program().display(), text(socket));
        // The shell does not end at a hang-up, so the kernel sends `top` no signal: it has to see that the terminal is gone.
        let shell = format!(
            "trap '' HUP; stty rows 24 cols 80; sh -c 'echo pid=$$.; {top}'; echo code=$?.; stty -a; echo over."
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--command", &shell, "/dev/null"]);
        command.env("SHELL", "/bin/sh").env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("script (util-linux) is installed");
        let (keys, mut reader) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, output) = channel();
        // The thread ends when the terminal closes.
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(count) = reader.read(&mut buffer) {
                if count == 0 || sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keys, child, output, seen: Vec::new() }
    }

    /// Waits until the terminal output contains `text`.
    fn wait_until_shown(&mut self, text: &str) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !self.seen.windows(text.len()).any(|window| window == text.as_bytes()) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(more) = self.output.recv_timeout(left) else {
                panic!("{text:?} did not appear in {}", String::from_utf8_lossy(&self.seen))
            };
            self.seen.extend(more);
        }
    }

    /// The text between `before` and the next full stop.
    fn value_after(&mut self, before: &str) -> String {
        self.wait_until_shown(before);
        let text = String::from_utf8_lossy(&self.seen).into_owned();
        let (_, after) = text.split_once(before).unwrap();
        after.split_once('.').map_or_else(String::new, |(value, _)| value.to_owned())
    }

    /// Ends `top`. Returns its exit code and the terminal settings afterwards.
    fn end(&mut self, ending: &ExitBy) -> (String, String) {
        match ending {
            ExitBy::Key(key) => self.keys.write_all(&[*key]).unwrap(),
            ExitBy::Signal(name) => {
                let pid = self.value_after("pid=");
                let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
                assert!(sent.unwrap().success());
            }
        }
        self.wait_until_shown("over.");
        self.wait_until_shown(LEAVE_SCREEN);
        let text = String::from_utf8_lossy(&self.seen).into_owned();
        (self.value_after("code="), text.rsplit_once("code=").unwrap().1.to_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
