//! The view on a terminal: keys in, pictures out, and the terminal left as it was found, however it ends.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mdgw_status::snapshot::Snapshot;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use super::{Args, read_snapshot};
use crate::{
    cli::Outcome,
    top::{self, Flow, Key, Top},
};

pub(super) fn run(args: &Args, mut top: Top) -> anyhow::Result<Outcome> {
    // Before the terminal is changed: whoever ends this process gets it back.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    let updates = start_polling(args.socket.clone(), args.interval()).context("start the polling thread")?;
    let mut screen = Screen::open().context("take over the terminal")?;
    let silence_max = ANSWER_TIMEOUT.max(3 * args.interval());
    let mut last_update = Instant::now();
    while !stop.load(Relaxed) {
        for updates in updates.try_iter() {
            last_update = Instant::now();
            match updates {
                Ok(snapshot) => top.take(snapshot),
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
        screen.0.draw(|frame| top::draw(&top, frame.area(), frame.buffer_mut())).context("draw")?;
        // Keys that are there already are all taken before the next picture.
        let mut patience = KEY_WAIT;
        while event::poll(patience).context("wait for a key")? {
            if let Some(key) = key(&event::read().context("read a key")?)
                && top.key(key) == Flow::Quit
            {
                return Ok(Outcome::Done);
            }
            patience = Duration::ZERO;
        }
    }
    Ok(Outcome::Done)
}

/// The terminal, ours until it is dropped. A panic gives it back before its message is written.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| restore_terminal())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        restore_terminal();
    }
}

fn restore_terminal() {
    // A terminal that is gone needs nothing.
    let _ = ratatui::try_restore();
}

/// Looks again and again, on a thread of its own: a gateway that hangs doesn't keep keys from being heard.
fn start_polling(socket: PathBuf, interval: Duration) -> io::Result<Receiver<anyhow::Result<Snapshot>>> {
    let (updates, last_update) = sync_channel(1);
    std::thread::Builder::new().name("mdgw-top".to_owned()).spawn(move || poll_forever(&socket, interval, &updates))?;
    Ok(last_update)
}

fn poll_forever(socket: &std::path::Path, interval: Duration, updates: &SyncSender<anyhow::Result<Snapshot>>) {
    while updates.send(read_snapshot(socket)).is_ok() {
        std::thread::sleep(interval);
    }
}

/// What the view understands of it.
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

/// How long a key is waited for before news are looked at, and a signal is obeyed.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// A gateway that answers at all does so sooner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
