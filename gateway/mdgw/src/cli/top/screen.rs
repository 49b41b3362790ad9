//! The view on a terminal. It reads keys, draws the screen, and restores the terminal on every exit path.

use std::{
    fs::File,
    io::{self, IsTerminal as _},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{Args, Sample, read_sample};
use crate::{
    cli::{Outcome, subscribers::LiveSocket},
    top::{self, Flow, Key, Top},
};

pub(super) fn run(args: &Args, mut top: Top) -> anyhow::Result<Outcome> {
    // Before the terminal is changed, so that a signal also restores it.
    let stop = Arc::new(AtomicBool::new(false));
    stop_at_signals(Arc::clone(&stop)).context("catch signals")?;
    let updates =
        start_polling(args.socket.clone(), args.live.clone(), args.interval()).context("start the polling thread")?;
    let mut screen = Screen::open().context("take over the terminal")?;
    let silence_max = ANSWER_TIMEOUT.max(3 * args.interval());
    let mut last_update = Instant::now();
    while !stop.load(Relaxed) {
        for update in updates.try_iter() {
            last_update = Instant::now();
            match update {
                Ok(Sample { snapshot, problem }) => {
                    top.update(snapshot);
                    problem.into_iter().for_each(|problem| top.set_problem(problem));
                }
                Err(error) => top.set_problem(format!("{error:#}; retrying")),
            }
        }
        if last_update.elapsed() > silence_max {
            top.set_problem(format!(
                "no answer from {} for {} s",
                args.socket.display(),
                last_update.elapsed().as_secs()
            ));
        }
        screen.terminal.draw(|frame| top::draw(&top, frame.area(), frame.buffer_mut())).context("draw")?;
        if screen.wait().context("wait for a key")? == Terminal::Gone {
            bail!("top: the terminal is gone");
        }
        // All pending keys are handled before the next draw.
        while event::poll(Duration::ZERO).context("wait for a key")? {
            if let Some(key) = key(&event::read().context("read a key")?)
                && top.key(key) == Flow::Quit
            {
                return Ok(Outcome::Done);
            }
        }
    }
    Ok(Outcome::Done)
}

/// Sets `stop` at a signal, and ends the process if that does not: on a terminal that hangs up between a wait and `event::poll`, the
/// latter never returns.
fn stop_at_signals(stop: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || {
        if signals.forever().next().is_some() {
            stop.store(true, Relaxed);
            std::thread::sleep(STOP_TIME);
            restore_terminal();
            std::process::exit(EXIT_AFTER_STOP_TIME);
        }
    };
    std::thread::Builder::new().name("mdgw-top-stop".to_owned()).spawn(wait)?;
    Ok(())
}

/// The terminal in raw mode until dropped. A panic restores it before its message is printed.
struct Screen {
    terminal: DefaultTerminal,
    /// Where keys come from: standard input if that is a terminal, else the controlling one. Decided once, since a terminal that has hung
    /// up is none any more.
    keys: OwnedFd,
}

/// Whether there is still a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Terminal {
    Present,
    Gone,
}

impl Screen {
    fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let keys =
            if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()? } else { File::open("/dev/tty")?.into() };
        let terminal = ratatui::try_init().inspect_err(|_| restore_terminal())?;
        Ok(Self { terminal, keys })
    }

    /// Waits for input. On a terminal that has hung up, `event::poll` would read nothing for ever, and never return.
    fn wait(&self) -> io::Result<Terminal> {
        let mut watched = [PollFd::new(&self.keys, PollFlags::IN)];
        let timeout = Timespec::try_from(KEY_WAIT).map_err(io::Error::other)?;
        match poll(&mut watched, Some(&timeout)) {
            // A signal, such as that of a changed size.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_gone = watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        Ok(if is_gone { Terminal::Gone } else { Terminal::Present })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.terminal.show_cursor();
        restore_terminal();
    }
}

fn restore_terminal() {
    // Fails only if the terminal is gone.
    let _ = ratatui::try_restore();
}

/// Polls for snapshots on a separate thread, so that a gateway that hangs does not block the keys.
fn start_polling(
    socket: PathBuf,
    live: LiveSocket,
    interval: Duration,
) -> io::Result<Receiver<anyhow::Result<Sample>>> {
    let (updates, last_update) = sync_channel(1);
    let poll = move || poll_forever(&socket, &live, interval, &updates);
    std::thread::Builder::new().name("mdgw-top".to_owned()).spawn(poll)?;
    Ok(last_update)
}

fn poll_forever(
    socket: &std::path::Path,
    live: &LiveSocket,
    interval: Duration,
    updates: &SyncSender<anyhow::Result<Sample>>,
) {
    while updates.send(read_sample(socket, live)).is_ok() {
        std::thread::sleep(interval);
    }
}

/// Translates a terminal event into a key of the view.
fn key(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return None };
    if *kind == KeyEventKind::Release {
        return None;
    }
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(_) if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => return None,
        KeyCode::Char(character) => Key::Char(*character),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

/// How long an orderly end may take after a signal.
const STOP_TIME: Duration = Duration::from_secs(1);
/// Exit code if it takes longer.
const EXIT_AFTER_STOP_TIME: i32 = 1;
/// Longest wait for a key before snapshots and signals are checked.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// After this time without answer, the gateway is reported as silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
