//! Two gateways as processes of their own, one of which leads: what they are started with, and what they say of themselves.

use std::{fs, net::SocketAddrV4, os::unix::fs::PermissionsExt as _, path::PathBuf};

use serde_json::Value;

use crate::{
    pair::wait_until,
    process::{self, Mdgw, Signal},
    site::{Site, Wanted, text},
};

/// A pair over one `file` record. Both are killed when it is dropped.
#[derive(Debug)]
pub struct ElectedPair {
    /// Where the two live: the first has node 1, the second node 2.
    pub sites: [Site; 2],
    running: [Option<Mdgw>; 2],
    wanted: Wanted,
    ends: [SocketAddrV4; 2],
}

impl ElectedPair {
    /// Two sites of one feed and one output; nothing runs yet.
    ///
    /// # Panics
    /// When the key can't be written.
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        let first = Site::numbered(1);
        let second = first.twin(2);
        // Addresses that no gateway uses without a link.
        let ends = [Site::new().requests, Site::new().requests];
        let key = first.path("key");
        fs::write(&key, "5a".repeat(32)).expect("the key can be written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the key is one's own");
        Self { sites: [first, second], running: [None, None], wanted, ends }
    }

    /// Starts a gateway; it runs when this returns.
    pub fn start(&mut self, node: u8) {
        let path = self.site(node).path("gateway.toml");
        fs::write(&path, self.config_text(node)).expect("the configuration can be written");
        let date = ["--date", "2019-01-30", "--ts-recv", "none"];
        let gateway = process::start(["run", text(&path)].into_iter().chain(date));
        gateway.says("gateway runs");
        self.running[index(node)] = Some(gateway);
        wait_until("its control socket is there", || self.status(node).is_some());
    }

    /// Kills it as a crash does.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn kill(&mut self, node: u8) {
        let gateway = self.running[index(node)].take().expect("a gateway that is killed runs");
        let _ended = gateway.end_by(Signal::Kill);
    }

    /// Ends it in order; what it said.
    ///
    /// # Panics
    /// When it doesn't run, or ends with an error.
    pub fn end(&mut self, node: u8) -> String {
        let gateway = self.running[index(node)].take().expect("a gateway that is ended runs");
        gateway.end_by(Signal::Terminate).with_code(0).stderr
    }

    /// What it says of its group; `None` when it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        let ended = self.ask(node, &["status", "--json"]);
        (ended.code == Some(0)).then(|| ended.json()["groups"][0].clone())
    }

    /// `mdgw ha` with these arguments, of that gateway.
    #[must_use]
    pub fn ask(&self, node: u8, question: &[&str]) -> process::Ended {
        let socket = self.socket(node);
        process::run(["ha"].iter().chain(question).copied().chain(["--socket", text(&socket)]))
    }

    /// Its place in the election: `leader`, `candidate`, `bystander`.
    #[must_use]
    pub fn role(&self, node: u8) -> String {
        self.status(node).map(|status| status["role"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    }

    /// Waits until that gateway leads.
    pub fn wait_until_leads(&self, node: u8) {
        wait_until("it leads", || self.role(node) == "leader");
    }

    /// Waits until one of them leads; which.
    #[must_use]
    pub fn leader(&self) -> u8 {
        let mut leader = None;
        wait_until("one of them leads", || {
            leader =
                [1, 2].into_iter().find(|node| self.running[index(*node)].is_some() && self.role(*node) == "leader");
            leader.is_some()
        });
        leader.unwrap_or_default()
    }

    /// Waits until that gateway stands for election.
    pub fn wait_until_stands(&self, node: u8) {
        wait_until("it stands", || self.role(node) == "candidate");
    }

    fn site(&self, node: u8) -> &Site {
        &self.sites[index(node)]
    }

    fn socket(&self, node: u8) -> PathBuf {
        self.site(node).path("control")
    }

    fn config_text(&self, node: u8) -> String {
        let [first, _] = &self.sites;
        let (own, other) = (index(node), 1 - index(node));
        let (peer, listen, peer_end) = (3 - node, self.ends[own], self.ends[other]);
        let (records, key) = (first.path("records"), first.path("key"));
        let audit = self.site(node).path("audit.jsonl");
        let keys =
            format!("[gateway]\naudit_file = \"{}\"\ncontrol_socket = \"{}\"", text(&audit), text(&self.socket(node)));
        let election = format!(
            "\n[election]\nbackend = \"file\"\nprofile = \"calm\"\nname = \"gw{node}\"\n\n\
             [election.file]\ndirectory = \"{}\"\n\n\
             [election.link]\nlisten = \"{listen}\"\npeer = \"{peer_end}\"\nkey_file = \"{}\"\n\n\
             [[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n",
            text(&records),
            text(&key),
        );
        self.site(node).config_text(&self.wanted).replacen("[gateway]", &keys, 1) + &election
    }
}

fn index(node: u8) -> usize {
    usize::from(node) - 1
}
