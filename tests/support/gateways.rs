//! Gateways as processes of their own, by node id: start, query, kill, stop.

use std::fs;

use serde_json::Value;

use crate::{
    pair::wait_until,
    process::{self, ExitedProcess, MdgwProcess, Signal},
    site::{Site, text},
};

/// The gateways of some sites, numbered from 1 on. All are killed when it is dropped.
#[derive(Debug)]
pub struct GatewayProcesses {
    sites: Vec<Site>,
    running: Vec<Option<MdgwProcess>>,
}

impl GatewayProcesses {
    /// One for each site; nothing runs yet.
    #[must_use]
    pub fn new(sites: Vec<Site>) -> Self {
        let running = sites.iter().map(|_| None).collect();
        Self { sites, running }
    }

    /// Where that gateway lives.
    ///
    /// # Panics
    /// When there is none of that number.
    #[must_use]
    pub fn site(&self, node: u8) -> &Site {
        &self.sites[index(node)]
    }

    /// Where they live, in order.
    #[must_use]
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// That gateway, if it runs.
    #[must_use]
    pub fn running(&self, node: u8) -> Option<&MdgwProcess> {
        self.running[index(node)].as_ref()
    }

    /// Starts a gateway with that configuration; it runs when this returns.
    ///
    /// # Panics
    /// When the configuration can't be written, or it doesn't start.
    pub fn start(&mut self, node: u8, config: &str) {
        self.begin(node, config);
        self.wait_until_running(node);
    }

    /// Starts a gateway with that configuration, and does not wait for it.
    ///
    /// # Panics
    /// When the configuration can't be written, or it can't be started.
    pub fn begin(&mut self, node: u8, config: &str) {
        let path = self.site(node).path("gateway.toml");
        fs::write(&path, config).expect("the configuration can be written");
        let gateway = process::start(["run", text(&path), "--date", "2019-01-30", "--ts-recv", "none"]);
        self.running[index(node)] = Some(gateway);
    }

    /// Waits until a gateway that was begun runs.
    ///
    /// # Panics
    /// When it ends instead.
    pub fn wait_until_running(&self, node: u8) {
        self.running(node).expect("it was begun").wait_for_stderr("gateway runs");
        wait_until("its control socket is there", || self.status(node).is_some());
    }

    /// Kills it as a crash does.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn kill(&mut self, node: u8) {
        let gateway = self.running[index(node)].take().expect("a gateway that is killed runs");
        let _ended = gateway.stop_with(Signal::Kill);
    }

    /// Ends it in order; what it said.
    ///
    /// # Panics
    /// When it doesn't run, or ends with an error.
    pub fn end(&mut self, node: u8) -> String {
        let gateway = self.running[index(node)].take().expect("a gateway that is ended runs");
        gateway.stop_with(Signal::Terminate).expect_code(0).stderr
    }

    /// `mdgw ha` with these arguments, of that gateway.
    #[must_use]
    pub fn send_request(&self, node: u8, arguments: &[&str]) -> ExitedProcess {
        let socket = self.site(node).path("control");
        process::run(["ha"].iter().chain(arguments).copied().chain(["--socket", text(&socket)]))
    }

    /// What it says of its groups; `None` when it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        let ended = self.send_request(node, &["status", "--json"]);
        (ended.code == Some(0)).then(|| ended.json()["groups"].clone())
    }
}

fn index(node: u8) -> usize {
    usize::from(node) - 1
}
