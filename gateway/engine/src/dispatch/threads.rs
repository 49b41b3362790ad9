//! Threads that are set up one by one and begin together: a pool that cannot start has touched no channel.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
};

use mdgw_sys::{affinity, scheduler};

use super::{
    pool_state::{PoolState, panic_text},
    roles::Role,
};
use crate::{
    dispatch::{ChannelHandler, DispatchConfig, StartError, ThreadConfig},
    handle_set::HandleSet,
};

/// The threads of a pool. Dropping the team joins them, so they have to be stopped before.
pub(super) struct ThreadTeam {
    /// One for each thread that has not begun. A gate that is closed instead of opened ends its thread.
    gates: Vec<mpsc::Sender<()>>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl ThreadTeam {
    /// Spawns one thread for each of the configuration's. The first one has the number `first_number`. Returns when all of
    /// them are pinned, have their priority and have called [`StartSignal::is_opened`].
    pub(super) fn set_up(
        config: &DispatchConfig,
        first_number: usize,
        body: impl Fn(usize, &StartSignal) + Clone + Send + 'static,
    ) -> Result<Self, StartError> {
        let (report, reports) = mpsc::channel();
        let mut team = Self { gates: Vec::new(), handles: Vec::new() };
        for (index, thread) in config.threads.iter().copied().enumerate() {
            let (opener, gate) = mpsc::channel();
            team.gates.push(opener);
            let number = first_number + index;
            let (signal, body) = (StartSignal { number, report: report.clone(), gate }, body.clone());
            let main = move || match pin_and_prioritise(thread, number) {
                Ok(()) => body(index, &signal),
                Err(error) => signal.refuse(error),
            };
            let spawned = thread::Builder::new().name(format!("{}-{number}", config.name)).spawn(main);
            let handle =
                spawned.map_err(|source| StartError::Thread { thread: number, action: "be started", source })?;
            team.handles.push(handle);
        }
        // Each thread reports once, and this end keeps a sender too: the receiver cannot be disconnected.
        for report in reports.iter().take(config.threads.len()) {
            report?;
        }
        Ok(team)
    }

    /// Lets the threads begin.
    pub(super) fn begin(&mut self) {
        for gate in self.gates.drain(..) {
            // A thread that has ended already has stopped the pool and left the reason as its fault.
            let _disconnected = gate.send(());
        }
    }

    /// Waits for the threads. Those that have not begun never do.
    pub(super) fn join(&mut self) {
        self.gates.clear();
        for handle in self.handles.drain(..) {
            // Its panic, if any, has become the pool's fault.
            let _panic = handle.join();
        }
    }
}

impl Drop for ThreadTeam {
    fn drop(&mut self) {
        self.join();
    }
}

/// A thread's end of its start.
pub(super) struct StartSignal {
    number: usize,
    report: mpsc::Sender<Result<(), StartError>>,
    gate: mpsc::Receiver<()>,
}

impl StartSignal {
    /// Number of the thread in its dispatch, from 0.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Reports that the thread is set up, and waits. `false`: another thread could not be set up, so this one ends.
    pub(super) fn is_opened(&self) -> bool {
        // The starting thread waits for all reports, or has given up; a closed gate says which.
        let _disconnected = self.report.send(Ok(()));
        self.gate.recv().is_ok()
    }

    fn refuse(&self, error: StartError) {
        let _disconnected = self.report.send(Err(error));
    }
}

/// Runs one thread of a pool: `body` sets it up, waits for the signal and works. A panic becomes the pool's fault.
pub(super) fn run_thread<S: HandleSet, H: ChannelHandler>(
    shared: &PoolState<S, H>,
    index: usize,
    signal: &StartSignal,
    body: impl FnOnce() -> Result<(), StartError>,
) {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    shared.gauges[index].set_role(Role::Absent);
    shared.gauges[index].mark_idle();
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => signal.refuse(error),
        Err(panic) => {
            let thread = signal.number;
            shared.stop_with(format!("thread {thread} of the pool panicked: {}", panic_text(&*panic)));
            let failed = io::Error::other("it panicked");
            signal.refuse(StartError::Thread { thread, action: "be set up", source: failed });
        }
    }
}

/// Pins the calling thread to its core and sets its priority.
fn pin_and_prioritise(config: ThreadConfig, thread: usize) -> Result<(), StartError> {
    if let Some(core) = config.core {
        affinity::pin_to(core).map_err(|source| StartError::Pin { thread, source })?;
    }
    if let Some(priority) = config.fifo_priority {
        scheduler::set_fifo(priority).map_err(|source| StartError::Priority { thread, priority, source })?;
    }
    Ok(())
}
