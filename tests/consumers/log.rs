//! Readers of a publication log in Rust and C, on one log, also while it is written and its files are used again. What they deliver is the
//! same, byte for byte.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use mdgw_feeds::{
    channel::ChannelState,
    frame::FrameFlags,
    identity::{Sequence, Session},
};
use mdgw_log_reader::{LogChannel, LogReader, LogReaderConfig, LogStart, StreamPosition, WaitStrategy};
use mdgw_tests::{process::wait_until, skip::skip};

use super::{
    c, data_files, text,
    virtual_gateway::{CHANNEL, NEXT_DAY, VirtualGateway, session},
};

const SEGMENT_BYTES: usize = 64 << 10;
const MBO: (usize, u8) = (56, 0xa0);

#[test]
fn readers_in_rust_and_c_deliver_the_same_while_files_are_used_again() {
    let test = "readers_in_rust_and_c_deliver_the_same_while_files_are_used_again";
    let Some(mut setup) = Setup::new(test) else { return };
    setup.writer.write(&mut setup.gateway, 20);
    let c = setup.start_c(&["--start", "oldest", "--spin"]);
    let mut reader = setup.reader(None, LogStart::Oldest);
    let mut lines = Vec::new();
    let is_written = AtomicBool::new(false);
    // Some twenty segments; eight are kept.
    thread::scope(|scope| {
        let Setup { writer, gateway, .. } = &mut setup;
        let is_written = &is_written;
        scope.spawn(move || {
            for _ in 0..400 {
                writer.write(gateway, 20);
                thread::sleep(Duration::from_millis(2));
            }
            gateway.end_session();
            is_written.store(true, Relaxed);
        });
        // In this order: what is written before the flag is read.
        while !is_written.load(Relaxed) | (read(&mut reader, &mut lines) > 0) {}
    });
    let first = fs::read_dir(setup.gateway.directory()).unwrap().map(|item| item.unwrap().file_name()).min().unwrap();
    assert!(*first.to_string_lossy() > *"0000000000000010", "files were used again: {first:?}");
    c.wait_for(&lines);
    assert_eq!(reader.last_overrun(CHANNEL), None);
    assert!(lines.iter().any(|line| line.starts_with("gap ")) && lines.iter().any(|line| line.starts_with("state ")));
    // Sessions and a change of the day.
    assert!(lines.iter().filter(|line| line.starts_with("session ")).count() > 4);

    // Both readers stand still behind the last entry while the log goes on.
    setup.gateway.begin_session(NEXT_DAY + 50);
    setup.writer = Writer { number: NEXT_DAY + 50, next: 1, random: 7 };
    c.signal("STOP");
    setup.writer.write(&mut setup.gateway, 12_000);
    setup.gateway.flush();
    while read(&mut reader, &mut lines) > 0 {}
    let overrun = reader.last_overrun(CHANNEL).unwrap();
    assert!(overrun.entries > 1_000 && lines.iter().any(|line| line.starts_with("lost ")), "{overrun:?}");
    c.signal("CONT");
    c.wait_for(&lines);
    assert!(c.stop().contains("1 overruns"));
}

#[test]
fn readers_in_rust_and_c_resume_alike_at_any_name() {
    let Some(mut setup) = Setup::new("readers_in_rust_and_c_resume_alike_at_any_name") else { return };
    setup.writer.write(&mut setup.gateway, 6_000);
    setup.gateway.end_session();
    let all = setup.run_rust(None, LogStart::Oldest);
    let sessions: Vec<&str> = all.iter().filter(|line| line.starts_with("session ")).map(String::as_str).collect();
    assert!(sessions.len() >= 2);
    for (name, start) in
        [("oldest", LogStart::Oldest), ("day", LogStart::Day), ("session", LogStart::Session), ("live", LogStart::Live)]
    {
        assert_eq!(setup.run_c(&["--start", name]), (setup.run_rust(None, start), true), "{name}");
    }
    let last = setup.writer.number;
    for number in [0, last - 1, last, last + 1] {
        for sequence in [1, 17, 311, 700, 100_000] {
            let Session { feed, date, restart } = session(number);
            let position = StreamPosition::at(session(number), Sequence(sequence));
            let words = [feed as u32, date.yyyymmdd(), restart].map(|word| word.to_string());
            let sequence = sequence.to_string();
            let resumed = setup.run_c(&["--resume", &words[0], &words[1], &words[2], &sequence]);
            assert_eq!(resumed, (setup.run_rust(Some(position), LogStart::Oldest), true), "{number} {sequence}");
        }
    }
}

/// Somebody removes the log while its gateway is down, and the next start makes a new one.
#[test]
fn readers_in_rust_and_c_go_on_with_the_log_that_takes_the_place_of_a_removed_one() {
    let test = "readers_in_rust_and_c_go_on_with_the_log_that_takes_the_place_of_a_removed_one";
    let Some(mut setup) = Setup::new(test) else { return };
    setup.writer.write(&mut setup.gateway, 20);
    let c = setup.start_c(&["--start", "oldest"]);
    let mut reader = setup.reader(None, LogStart::Oldest);
    let mut lines = Vec::new();
    while read(&mut reader, &mut lines) > 0 {}
    c.wait_for(&lines);

    let Setup { gateway, mut writer, folder: _folder, .. } = setup;
    let directory = gateway.directory().to_owned();
    drop(gateway);
    assert!(!directory.exists());
    let look = Duration::from_millis(1);
    assert_eq!(reader.poll(look, &mut |_| panic!("there is no log")).unwrap().entries, 0);
    // The example looks for another log every 50 ms.
    thread::sleep(Duration::from_millis(200));

    let mut named = tempfile::Builder::new();
    named.prefix(directory.file_name().unwrap()).rand_bytes(0);
    let again = named.tempdir_in(directory.parent().unwrap()).unwrap();
    let mut gateway = VirtualGateway::in_directory(again, CHANNEL, 600, SEGMENT_BYTES);
    gateway.begin_session(0);
    let before = lines.len();
    writer.write(&mut gateway, 20);
    wait_until("the reader in Rust finds the new log", || {
        reader.poll(look, &mut |output| lines.push(text::item(&output))).unwrap().entries > 0
    });
    while read(&mut reader, &mut lines) > 0 {}
    assert!(lines.len() > before + 10, "{lines:?}");
    c.wait_for(&lines);
    c.stop();
}

/// Damage anywhere: both deliver the same, and none of them reads outside its memory.
#[test]
fn readers_in_rust_and_c_find_the_same_in_damaged_files() {
    let Some(mut setup) = Setup::new("readers_in_rust_and_c_find_the_same_in_damaged_files") else { return };
    setup.writer.write(&mut setup.gateway, 3_000);
    setup.gateway.end_session();
    let whole = setup.gateway.directory().to_owned();
    let mut random = 5;
    let (mut errors, mut losses) = (0, 0);
    for round in 0..40 {
        let damaged = setup.folder.path().join(format!("damaged-{round}"));
        fs::create_dir(&damaged).unwrap();
        for item in fs::read_dir(&whole).unwrap() {
            let path = item.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "segment") {
                continue;
            }
            let mut bytes = fs::read(&path).unwrap();
            for _ in 0..below(&mut random, 3) {
                // Sometimes in the header, where most words lead to a refusal.
                let in_header = below(&mut random, 8) == 0;
                let at =
                    if in_header { below(&mut random, 56) } else { 4_096 + below(&mut random, bytes.len() - 4_104) };
                let value = below(&mut random, usize::MAX) as u64;
                let length = 1 + below(&mut random, 8);
                bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
            }
            if below(&mut random, 12) == 0 {
                bytes.truncate(below(&mut random, bytes.len()));
            }
            fs::write(damaged.join(path.file_name().unwrap()), bytes).unwrap();
        }
        for (name, start) in [("oldest", LogStart::Oldest), ("session", LogStart::Session), ("live", LogStart::Live)] {
            let in_rust = try_run_rust(&damaged, None, start);
            let in_c = run_c(&setup.example, &damaged, &["--start", name]);
            let (c_end, rust_end) = (in_c.0.last(), in_rust.0.last());
            assert!(
                in_c == in_rust,
                "round {round}, {name}: {} and {} items, {} and {}, {c_end:?}, {rust_end:?}",
                in_c.0.len(),
                in_rust.0.len(),
                in_c.1,
                in_rust.1
            );
            errors += usize::from(!in_rust.1);
            losses += usize::from(in_rust.0.iter().any(|line| line.starts_with("lost ")));
        }
        fs::remove_dir_all(&damaged).unwrap();
    }
    assert!(errors > 3 && losses > 3, "{errors} errors, {losses} runs with losses");
}

#[test]
fn the_log_example_compiles_as_its_first_lines_say() {
    let text = fs::read_to_string(data_files::repository_path("gateway/log-reader/c/log_example.c")).unwrap();
    let command = "cc -std=c11 -O2 -I../../subscriber/c -o log_example log_example.c mdgw_log.c ../../subscriber/c/mdgw_subscriber.c";
    assert!(text.contains(command));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("log_example").display().to_string();
    let words = command.split(' ').skip(1).map(|word| if word == "log_example" { &output } else { word });
    match Command::new("cc").args(words).current_dir(data_files::repository_path("gateway/log-reader/c")).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => skip("the_log_example_compiles_as_its_first_lines_say", "no C compiler (cc)"),
    }
}

#[test]
fn the_log_header_is_valid_in_cpp() {
    let header = data_files::repository_path("gateway/log-reader/c/mdgw_log.h");
    let flags = ["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"];
    let include = data_files::repository_path("gateway/subscriber/c");
    match Command::new("c++").args(flags).arg(include).arg(header).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => skip("the_log_header_is_valid_in_cpp", "no C++ compiler (c++)"),
    }
}

struct Setup {
    folder: tempfile::TempDir,
    example: std::path::PathBuf,
    gateway: VirtualGateway,
    writer: Writer,
}

impl Setup {
    fn new(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let example = c::compile_log_example(test, folder.path())?;
        let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut gateway = VirtualGateway::in_directory(in_memory, CHANNEL, 600, SEGMENT_BYTES);
        gateway.begin_session(0);
        Some(Self { folder, example, gateway, writer: Writer { number: 0, next: 1, random: 1 } })
    }

    fn reader(&self, resume: Option<StreamPosition>, start: LogStart) -> LogReader {
        open(self.gateway.directory(), resume, start).unwrap()
    }

    fn run_rust(&self, resume: Option<StreamPosition>, start: LogStart) -> Vec<String> {
        let (lines, is_readable) = try_run_rust(self.gateway.directory(), resume, start);
        assert!(is_readable);
        lines
    }

    fn run_c(&self, arguments: &[&str]) -> (Vec<String>, bool) {
        run_c(&self.example, self.gateway.directory(), arguments)
    }

    fn start_c(&self, arguments: &[&str]) -> RunningExample {
        let (output, log) = (self.folder.path().join("c.out"), self.folder.path().join("c.log"));
        let child = Command::new(&self.example)
            .arg(self.gateway.directory())
            .arg(CHANNEL.0.to_string())
            .args(arguments)
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        RunningExample { child, output, log }
    }
}

/// The example in C while the log is written.
struct RunningExample {
    child: Child,
    output: std::path::PathBuf,
    log: std::path::PathBuf,
}

impl RunningExample {
    /// Waits until it has printed exactly these lines.
    fn wait_for(&self, lines: &[String]) {
        let expected = format!("{}\n", lines.join("\n"));
        wait_until("the reader in C prints all that the one in Rust delivered", || {
            let length = fs::metadata(&self.output).unwrap().len();
            length >= expected.len() as u64
        });
        data_files::assert_same_text("log", &fs::read_to_string(&self.output).unwrap(), &expected);
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Ends it, and returns its last words.
    fn stop(mut self) -> String {
        self.signal("TERM");
        let status = self.child.wait().unwrap();
        let log = fs::read_to_string(&self.log).unwrap();
        assert!(status.success(), "{log}");
        log
    }
}

impl Drop for RunningExample {
    fn drop(&mut self) {
        let (_gone, _reaped) = (self.child.kill(), self.child.wait());
    }
}

fn open(
    directory: &Path,
    resume: Option<StreamPosition>,
    start: LogStart,
) -> Result<LogReader, mdgw_log_reader::LogReaderError> {
    let channel = LogChannel { id: CHANNEL, directory: directory.to_owned(), resume };
    LogReader::open(LogReaderConfig { start, wait: WaitStrategy::Spin, ..LogReaderConfig::new(vec![channel]) })
}

fn read(reader: &mut LogReader, lines: &mut Vec<String>) -> usize {
    reader.poll(Duration::ZERO, &mut |output| lines.push(text::item(&output))).unwrap().entries
}

/// Everything that the log delivers, and whether it ends without an error.
fn try_run_rust(directory: &Path, resume: Option<StreamPosition>, start: LogStart) -> (Vec<String>, bool) {
    let mut lines = Vec::new();
    let Ok(mut reader) = open(directory, resume, start) else { return (lines, false) };
    loop {
        match reader.poll(Duration::ZERO, &mut |output| lines.push(text::item(&output))) {
            Ok(polled) if polled.entries == 0 => return (lines, true),
            Ok(_) => {}
            Err(_) => return (lines, false),
        }
    }
}

fn run_c(example: &Path, directory: &Path, arguments: &[&str]) -> (Vec<String>, bool) {
    let mut command = Command::new(example);
    command.arg(directory).arg(CHANNEL.0.to_string()).args(arguments).args(["--until-idle", "--spin"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    // A finding of a sanitizer ends the program with another code.
    assert!(matches!(output.status.code(), Some(0 | 2)) && !log.contains("runtime error"), "{log}");
    let lines = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    (lines, output.status.success())
}

/// Writes messages of all kinds, and sessions.
struct Writer {
    number: u32,
    next: u64,
    random: u64,
}

impl Writer {
    fn write(&mut self, gateway: &mut VirtualGateway, messages: usize) {
        for _ in 0..messages {
            let whole = FrameFlags::default();
            match below(&mut self.random, 40) {
                0 => {
                    gateway.gap(self.next, self.next + 3);
                    self.next += 2;
                }
                1 => gateway.cover(self.next + 1),
                2 => gateway.message(self.next, (25, MBO.0, MBO.1), FrameFlags::SUSPECT),
                3 => {
                    let state = if self.next.is_multiple_of(2) { ChannelState::Live } else { ChannelState::Recovering };
                    gateway.state(self.next, state);
                    continue;
                }
                4 => gateway.message(self.next, (1, 48, 0), whole),
                _ => gateway.message(self.next, (1, MBO.0, MBO.1), whole),
            }
            self.next += 1;
            if below(&mut self.random, 3) == 0 {
                gateway.flush();
            }
            if self.next > 800 {
                // Every other session has its end.
                if self.number.is_multiple_of(2) {
                    gateway.end_session();
                }
                self.number = if self.number == 4 { NEXT_DAY } else { self.number + 1 };
                self.next = 1;
                gateway.begin_session(self.number);
            }
        }
        gateway.flush();
    }
}

/// splitmix64.
fn below(state: &mut u64, end: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((mixed ^ mixed >> 31) % end as u64).unwrap()
}
