//! The subjects: this program in the role of the engine, and the peers that a script builds.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use mdgw_engine::{
    dispatch::{DispatchConfig, DispatchModel, PromotionPolicy, WaitPolicy},
    handle_set::backend_choice,
};

use super::subject::{EngineSetup, IoKind};

/// A program with its style.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) name: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Engine(EngineSetup),
    Peer { program: PathBuf, style: &'static str },
}

impl Subject {
    /// The command; the arguments that all subjects take follow.
    pub(super) fn command(&self) -> Result<Command> {
        Ok(match &self.kind {
            Kind::Engine(setup) => {
                let mut command = Command::new(std::env::current_exe().context("this program's path")?);
                command.arg("dispatch-subject").args(setup.to_arguments());
                command
            }
            Kind::Peer { program, style } => {
                let mut command = Command::new(program);
                command.arg(style);
                command
            }
        })
    }
}

/// Directory with the peers' programs. Runs the script that builds them beside this program, unless `built` has them.
pub(super) fn directory(built: Option<&Path>) -> Result<PathBuf> {
    if let Some(built) = built {
        return Ok(built.to_owned());
    }
    let directory = std::env::current_exe().context("this program's path")?.with_file_name("dispatch-peers");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/dispatch/build");
    // The script names each peer that it cannot build, with the package that is missing. The others are measured.
    let _built_all = Command::new(&script).arg(&directory).status().with_context(|| format!("run {script:?}"))?;
    Ok(directory)
}

/// A turn that binds few channels to its thread.
const SMALL_BATCH: usize = 8;

/// All subjects that can run here with that many threads. The first one is the gateway's default.
pub(super) fn subjects(peers: &Path, threads: usize, all_settings: bool) -> Vec<Subject> {
    let default = EngineSetup {
        model: DispatchModel::LeaderFollowers,
        io: IoKind::Epoll,
        wait: WaitPolicy::SpinThenPark,
        promotion: PromotionPolicy::Lazy,
        batch: DispatchConfig::default().batch_events_max,
    };
    let park = EngineSetup { wait: WaitPolicy::Park, ..default };
    let mut setups = vec![default, park, EngineSetup { promotion: PromotionPolicy::Strict, ..park }];
    if threads > 1 {
        setups.push(EngineSetup { batch: SMALL_BATCH, ..default });
    }
    let ring = if threads == 1 { IoKind::Multishot } else { IoKind::Rings };
    if backend_choice::probe_io_uring().is_ok() {
        setups.push(EngineSetup { io: ring, ..default });
    }
    if all_settings {
        let strict = EngineSetup { promotion: PromotionPolicy::Strict, ..default };
        let spin = EngineSetup { wait: WaitPolicy::Spin, ..strict };
        setups.extend([strict, spin, EngineSetup { promotion: PromotionPolicy::Lazy, ..spin }]);
        if backend_choice::probe_io_uring().is_ok() {
            setups.extend([EngineSetup { io: ring, ..park }, EngineSetup { io: ring, ..spin }]);
        }
    }
    for wait in [WaitPolicy::SpinThenPark, WaitPolicy::Park] {
        setups.push(EngineSetup { model: DispatchModel::Reactor, wait, ..default });
        if threads > 1 {
            setups.push(EngineSetup { model: DispatchModel::HalfSync, wait, ..default });
        }
    }
    let engine = setups.into_iter().map(|setup| Subject { name: setup.name(threads), kind: Kind::Engine(setup) });
    let built = ["asio", "ace", "tokio"].into_iter().map(|name| (name, peers.join(name)));
    let built = built.filter(|(_, program)| program.is_file());
    let peers = built.flat_map(|(name, program)| {
        ["one", "drain"].map(|style| {
            let kind = Kind::Peer { program: program.clone(), style };
            Subject { name: format!("{name} {style}"), kind }
        })
    });
    engine.chain(peers).collect()
}
