//! Child processes that end with this process, however it ends: after SIGKILL too, when no destructor runs.
//!
//! The kernel signals a child when the *thread* that started it ends (`PR_SET_PDEATHSIG`). Threads of tests, and those that enter the
//! namespace of a host, end long before their children should. So one thread starts all of them, and lives as long as the process.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    process::{Child, Command},
    sync::{OnceLock, mpsc},
    thread,
};

use crate::namespaces::Namespace;

/// A command whose process the kernel kills when the thread that started it ends. `setpriv` (util-linux) asks for the signal and then
/// becomes the program, with the same process id. A closure in the child would make the start a fork: the pages of this process would
/// be copied, and its threads stall.
///
/// Directory and environment are those of `command`. Standard streams have to be set on the result.
#[must_use]
pub fn bind(command: &Command) -> Command {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        bound.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    bound
}

/// Starts a command in the network namespace of the calling thread, from the thread that lives as long as this process.
///
/// # Errors
/// When it can't be started.
///
/// # Panics
/// When the starting thread has panicked.
pub fn spawn(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (requests, queue) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            for SpawnRequest { mut command, namespace, answer } in queue {
                // Sending fails only if the requester has panicked; the child is then killed with this process.
                let _ = answer.send(spawn_in(&mut command, &namespace));
            }
        });
        requests
    });
    let (answer, child) = mpsc::channel();
    let namespace = CallerNamespace { id: namespace_id()?, namespace: Namespace::current()? };
    starter.send(SpawnRequest { command, namespace, answer }).expect("the thread lives as long as the process");
    child.recv().expect("every request is answered")
}

struct SpawnRequest {
    command: Command,
    namespace: CallerNamespace,
    answer: mpsc::Sender<io::Result<Child>>,
}

struct CallerNamespace {
    /// Device and inode.
    id: (u64, u64),
    namespace: Namespace,
}

fn spawn_in(command: &mut Command, caller: &CallerNamespace) -> io::Result<Child> {
    // Entering a namespace takes root, even the own one.
    if namespace_id()? == caller.id {
        return command.spawn();
    }
    let original_namespace = Namespace::current()?;
    caller.namespace.enter();
    let child = command.spawn();
    original_namespace.enter();
    child
}

/// Identifies the calling thread's network namespace.
fn namespace_id() -> io::Result<(u64, u64)> {
    let metadata = fs::metadata("/proc/thread-self/ns/net")?;
    Ok((metadata.dev(), metadata.ino()))
}
