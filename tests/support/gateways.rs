//! Starts, queries, kills and stops gateways as separate processes, by node id.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mdgw_status::control::{Request, send_request};
use serde_json::Value;

use crate::{
    gateway_fixture::{GatewayFixture, text},
    process::{self, ExitedProcess, MdgwProcess, Signal, wait_until},
};

/// One gateway process for each fixture, with node ids from 1 on. Dropping it kills all of them.
#[derive(Debug)]
pub struct GatewayProcesses {
    fixtures: Vec<GatewayFixture>,
    programs: Vec<PathBuf>,
    running: Vec<Option<MdgwProcess>>,
}

impl GatewayProcesses {
    /// One gateway for each fixture, not yet started.
    #[must_use]
    pub fn new(fixtures: Vec<GatewayFixture>) -> Self {
        let programs = vec![process::program().to_owned(); fixtures.len()];
        let running = fixtures.iter().map(|_| None).collect();
        Self { fixtures, programs, running }
    }

    /// That gateway's fixture.
    ///
    /// # Panics
    /// When no gateway has that node id.
    #[must_use]
    pub fn fixture(&self, node: u8) -> &GatewayFixture {
        &self.fixtures[index(node)]
    }

    /// All fixtures, in order of node id.
    #[must_use]
    pub fn fixtures(&self) -> &[GatewayFixture] {
        &self.fixtures
    }

    /// That gateway, if it runs.
    #[must_use]
    pub fn running(&self, node: u8) -> Option<&MdgwProcess> {
        self.running[index(node)].as_ref()
    }

    /// Sets the `mdgw` that this gateway is, from its next start on; the program under test unless set.
    pub fn set_program(&mut self, node: u8, program: &Path) {
        program.clone_into(&mut self.programs[index(node)]);
    }

    /// Starts a gateway with that configuration and waits until it runs.
    ///
    /// # Panics
    /// When the configuration can't be written, or it doesn't start.
    pub fn start(&mut self, node: u8, config: &str) {
        self.spawn(node, config);
        self.wait_until_running(node);
    }

    /// Starts a gateway with that configuration without waiting until it runs.
    ///
    /// # Panics
    /// When the configuration can't be written, or it can't be started.
    pub fn spawn(&mut self, node: u8, config: &str) {
        let path = self.fixture(node).path("gateway.toml");
        fs::write(&path, config).expect("the configuration can be written");
        let mut command = Command::new(&self.programs[index(node)]);
        command.args(["run", text(&path), "--date", "2019-01-30", "--ts-recv", "none"]);
        self.running[index(node)] = Some(process::spawn(command));
    }

    /// Waits until a started gateway runs.
    ///
    /// # Panics
    /// When it ends instead.
    pub fn wait_until_running(&self, node: u8) {
        let gateway = self.running(node).expect("a started gateway");
        // Another version may word it differently.
        if self.programs[index(node)] == process::program() {
            let _line = gateway.wait_for_stderr("gateway running");
        }
        wait_until("the control socket answers", || self.status(node).is_some());
    }

    /// Kills it with SIGKILL.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn kill(&mut self, node: u8) {
        let gateway = self.running[index(node)].take().expect("a running gateway");
        let _ended = gateway.stop_with(Signal::Kill);
    }

    /// Stops it in order (SIGTERM). Returns its standard error.
    ///
    /// # Panics
    /// When it doesn't run, or ends with an error.
    pub fn stop(&mut self, node: u8) -> String {
        let gateway = self.running[index(node)].take().expect("a running gateway");
        gateway.stop_with(Signal::Terminate).expect_code(0).stderr
    }

    /// Runs `mdgw ha` with these arguments on that gateway's control socket.
    #[must_use]
    pub fn ha(&self, node: u8, arguments: &[&str]) -> ExitedProcess {
        let socket = self.fixture(node).path("control");
        process::run(["ha"].iter().chain(arguments).copied().chain(["--socket", text(&socket)]))
    }

    /// Its status of all groups; `None` if it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        let socket = self.fixture(node).path("control");
        send_request(&socket, &Request::Status {}).ok().map(|status| status["groups"].clone())
    }
}

fn index(node: u8) -> usize {
    usize::from(node) - 1
}
