//! Runs the `mdgw` program as a user does: starts it, reads its output line by line, and stops it. Dropping it kills it, and so does
//! the end of this process.

use std::{
    env,
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, kill_process};

use crate::bound_child;

/// Upper bound of every wait in tests. A step that takes longer is considered hung.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Polls until the condition holds.
///
/// # Panics
/// When [`TEST_TIMEOUT`] ends before.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(condition), "never: {what}");
}

/// Polls until the condition holds, at most for [`TEST_TIMEOUT`]; returns whether it holds.
#[must_use]
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The program under test: `MDGW_PROGRAM`, or else the one that Cargo builds in the profile of the calling test.
///
/// # Panics
/// When it can't be built.
#[must_use]
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // Build the whole workspace: one package alone may select other features of its dependencies, which means a rebuild of
        // several minutes.
        if let Some(program) = env::var_os("MDGW_PROGRAM") {
            return PathBuf::from(program);
        }
        // target/PROFILE/deps/test, or target/PROFILE/program for the programs under tests/bin
        let own = env::current_exe().expect("a test knows its own path");
        let folder = own.parent().expect("a program lies in a directory");
        let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
        let profile = profile.expect("the deps directory lies in that of its profile");
        let target = profile.parent().expect("a profile's directory lies in the target directory");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "mdgw", "--bin", "mdgw", "--target-dir"]).arg(target);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        for (is_on, features) in [(cfg!(feature = "stores"), "etcd,zookeeper"), (cfg!(feature = "parquet"), "parquet")]
        {
            if is_on {
                build.args(["--features", features]);
            }
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
        assert!(built.success(), "mdgw doesn't build");
        profile.join("mdgw")
    })
}

/// A running `mdgw`. Killed when it is dropped, by a panicking test too.
#[derive(Debug)]
pub struct MdgwProcess {
    /// The command line, for messages.
    command_line: String,
    child: Child,
    stdout: Arc<OutputStream>,
    stderr: Arc<OutputStream>,
}

/// A process that has exited: exit code and output.
#[derive(Clone, Debug)]
pub struct ExitedProcess {
    /// The command line, for messages.
    pub command_line: String,
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Whether the kernel wrote a core dump of it.
    pub dumped_core: bool,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

/// Signals that a test can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
    /// SIGTERM: stop in order.
    Terminate,
    /// SIGHUP: reload the configuration.
    HangUp,
    /// SIGKILL.
    Kill,
    /// SIGABRT, as after a failed assertion.
    Abort,
    /// SIGSTOP, until [`Self::Continue`].
    Stop,
    /// SIGCONT.
    Continue,
}

/// Starts `mdgw` with these arguments.
///
/// # Panics
/// When it can't be started.
pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> MdgwProcess {
    start_in(Path::new("."), arguments)
}

/// Starts `mdgw` in that directory.
///
/// # Panics
/// When it can't be started.
pub fn start_in<A: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = A>) -> MdgwProcess {
    start_with(directory, &[], arguments)
}

/// Starts that version of `mdgw`, in a cgroup if there is one: `members` is the file that processes join it by. All of
/// its memory is counted there.
///
/// # Panics
/// When it can't be started.
pub fn start_version<A: AsRef<OsStr>>(
    program: &Path,
    members: Option<&Path>,
    arguments: impl IntoIterator<Item = A>,
) -> MdgwProcess {
    let mut command = match members {
        Some(members) => {
            let mut command = Command::new("sh");
            // The process that becomes mdgw moves itself.
            command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(members).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(arguments);
    spawn(command)
}

/// Starts `mdgw` in that directory with these variables in its environment.
///
/// # Panics
/// When it can't be started.
pub fn start_with<A: AsRef<OsStr>>(
    directory: &Path,
    variables: &[(&str, &Path)],
    arguments: impl IntoIterator<Item = A>,
) -> MdgwProcess {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(directory).envs(variables.iter().copied());
    spawn(command)
}

/// Starts a command that becomes `mdgw`, as a wrapper does that ends in `exec`.
///
/// # Panics
/// When it can't be started.
#[must_use]
pub fn spawn(command: Command) -> MdgwProcess {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let command_line = command.get_args().fold(program, |mut command_line, argument| {
        let _ = write!(command_line, " {}", argument.to_string_lossy());
        command_line
    });
    let mut bound = bound_child::bind(&command);
    bound.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bound_child::spawn(bound).expect("the program starts");
    let stdout = OutputStream::read(child.stdout.take().expect("standard output is piped"));
    let stderr = OutputStream::read(child.stderr.take().expect("standard error is piped"));
    MdgwProcess { command_line, child, stdout, stderr }
}

/// Runs `mdgw` to its end.
///
/// # Panics
/// When it can't be started, or hangs.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> ExitedProcess {
    start(arguments).end()
}

impl MdgwProcess {
    /// Waits until a line of standard error, an earlier one or one to come, contains `text`. Returns the line.
    ///
    /// # Panics
    /// When the process ends before, or [`TEST_TIMEOUT`] does.
    pub fn wait_for_stderr(&self, text: &str) -> String {
        self.wait_for_stderr_times(text, 1)
    }

    /// Waits until that many lines of standard error contain `text`. Returns the last of them.
    ///
    /// # Panics
    /// When the process ends before, or [`TEST_TIMEOUT`] does.
    pub fn wait_for_stderr_times(&self, text: &str, times: usize) -> String {
        let found = self.stderr.wait(|lines| {
            let mut matching = lines.iter().filter(|line| line.contains(text));
            matching.nth(times.saturating_sub(1)).cloned()
        });
        found.unwrap_or_else(|| panic!("{}: never wrote {text:?}, but\n{}", self.command_line, self.stderr.text()))
    }

    /// Waits until a line of standard output begins with `text`.
    ///
    /// # Panics
    /// When the process ends before, or [`TEST_TIMEOUT`] does.
    pub fn wait_for_stdout(&self, text: &str) {
        let found = self.stdout.wait(|lines| lines.iter().any(|line| line.starts_with(text)).then_some(()));
        assert!(found.is_some(), "{}: never printed {text:?}, but wrote\n{}", self.command_line, self.stderr.text());
    }

    /// Standard error so far.
    #[must_use]
    pub fn stderr_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Number of the process, that of the program once a wrapper has executed it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Number of the one process that its main thread has started, such as a gateway's sentinel.
    ///
    /// # Panics
    /// When it has started none or several, or has exited.
    #[must_use]
    pub fn only_child(&self) -> u32 {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.id()));
        let children = children.unwrap_or_else(|error| panic!("{}: {error}", self.command_line));
        children.trim().parse().unwrap_or_else(|_| panic!("{}: children {children:?}", self.command_line))
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When the process has exited.
    pub fn signal(&self, signal: Signal) {
        let number = match signal {
            Signal::Interrupt => rustix::process::Signal::INT,
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::HangUp => rustix::process::Signal::HUP,
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Abort => rustix::process::Signal::ABORT,
            Signal::Stop => rustix::process::Signal::STOP,
            Signal::Continue => rustix::process::Signal::CONT,
        };
        let sent = kill_process(Pid::from_child(&self.child), number);
        sent.unwrap_or_else(|error| panic!("{}: {signal:?}: {error}", self.command_line));
    }

    /// Whether it has exited.
    ///
    /// # Panics
    /// When the system call fails.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked for").is_some()
    }

    /// Waits until it exits.
    ///
    /// # Panics
    /// When it runs longer than [`TEST_TIMEOUT`].
    pub fn end(self) -> ExitedProcess {
        self.wait_for_exit_within(TEST_TIMEOUT)
    }

    /// Waits at most that long until it exits.
    ///
    /// # Panics
    /// When it takes longer.
    pub fn wait_for_exit_within(mut self, timeout: Duration) -> ExitedProcess {
        // Both streams end with the process, since no child process holds them.
        let deadline = Instant::now() + timeout;
        for stream in [&self.stdout, &self.stderr] {
            assert!(
                stream.wait_for_eof(deadline),
                "{}: hangs, after it wrote\n{}",
                self.command_line,
                self.stderr.text()
            );
        }
        let status = self.child.wait().expect("a child can be waited for");
        ExitedProcess {
            command_line: self.command_line.clone(),
            code: status.code(),
            dumped_core: status.core_dumped(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }

    /// Sends a signal and waits for the end.
    ///
    /// # Panics
    /// When it runs longer than [`TEST_TIMEOUT`].
    pub fn stop_with(self, signal: Signal) -> ExitedProcess {
        self.signal(signal);
        self.end()
    }
}

impl Drop for MdgwProcess {
    fn drop(&mut self) {
        // In most tests the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ExitedProcess {
    /// Asserts the exit code, and returns the process.
    ///
    /// # Panics
    /// With the output, if it exited otherwise.
    #[must_use]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}{}", self.command_line, self.stdout, self.stderr);
        self
    }

    /// Its standard output as JSON.
    ///
    /// # Panics
    /// When it isn't one line of JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.stdout.lines().count(), 1, "{}: not one line\n{}", self.command_line, self.stdout);
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", self.command_line, self.stdout))
    }
}

/// What a process writes, line by line, while it runs.
#[derive(Debug, Default)]
struct OutputStream {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutputState {
    lines: Vec<String>,
    has_ended: bool,
}

impl OutputStream {
    fn read(pipe: impl Read + Send + 'static) -> Arc<Self> {
        let stream = Arc::new(Self::default());
        let thread_copy = Arc::clone(&stream);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                thread_copy.state.lock().unwrap_or_else(PoisonError::into_inner).lines.push(line);
                thread_copy.changed.notify_all();
            }
            thread_copy.state.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
            thread_copy.changed.notify_all();
        });
        stream
    }

    fn wait<R>(&self, mut find: impl FnMut(&[String]) -> Option<R>) -> Option<R> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find(&state.lines) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended || left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wait_for_eof(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.has_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn text(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lines.iter().fold(String::new(), |text, line| text + line + "\n")
    }
}
