//! Two gateways as processes of their own with an election between them: their configurations and their status.

use std::net::SocketAddrV4;

use serde_json::Value;

use crate::{
    gateways::GatewayProcesses,
    pair::wait_until,
    site::{Site, SiteConfig, text, write_key},
};

/// A pair over one `file` record. Both are killed when it is dropped.
#[derive(Debug)]
pub struct ElectedPair {
    /// The two.
    pub gateways: GatewayProcesses,
    wanted: SiteConfig,
    link_addresses: [SocketAddrV4; 2],
    /// Where the gateways find each other's ends; elsewhere, where something lies between.
    reachable_at: [SocketAddrV4; 2],
}

impl ElectedPair {
    /// Two sites of one feed and one output; nothing runs yet.
    ///
    /// # Panics
    /// When the key can't be written.
    #[must_use]
    pub fn new(wanted: SiteConfig) -> Self {
        let first = Site::numbered(1);
        let second = first.peer_on_same_lines(2);
        // Addresses that no gateway uses without a link.
        let link_addresses = [Site::new().requests, Site::new().requests];
        let key = first.path("key");
        write_key(&key);
        Self {
            gateways: GatewayProcesses::new(vec![first, second]),
            wanted,
            link_addresses,
            reachable_at: link_addresses,
        }
    }

    /// Where a gateway listens for the other one.
    #[must_use]
    pub fn link_address(&self, node: u8) -> SocketAddrV4 {
        self.link_addresses[usize::from(node) - 1]
    }

    /// From its next start on, the other gateway finds this one's end there.
    pub fn route_link_through(&mut self, node: u8, at: SocketAddrV4) {
        self.reachable_at[usize::from(node) - 1] = at;
    }

    /// Starts a gateway; it runs when this returns.
    pub fn start(&mut self, node: u8) {
        self.gateways.start(node, &self.config_text(node));
    }

    /// Starts a gateway, and does not wait for it.
    pub fn begin(&mut self, node: u8) {
        self.gateways.begin(node, &self.config_text(node));
    }

    /// What it says of its group; `None` when it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        self.gateways.status(node).map(|groups| groups[0].clone())
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
                [1, 2].into_iter().find(|node| self.gateways.running(*node).is_some() && self.role(*node) == "leader");
            leader.is_some()
        });
        leader.unwrap_or_default()
    }

    /// Waits until that gateway stands for election.
    pub fn wait_until_eligible(&self, node: u8) {
        wait_until("it stands", || self.role(node) == "candidate");
    }

    /// The configuration that a gateway is started with.
    ///
    /// # Panics
    /// When there is none of that number.
    #[must_use]
    pub fn config_text(&self, node: u8) -> String {
        let (first, site, peer) = (self.gateways.site(1), self.gateways.site(node), 3 - node);
        let (listen, peer_address) = (self.link_address(node), self.reachable_at[usize::from(peer) - 1]);
        let (records, key) = (first.path("records"), first.path("key"));
        let audit = site.path("audit.jsonl");
        let keys = format!(
            "[gateway]\naudit_file = \"{}\"\ncontrol_socket = \"{}\"",
            text(&audit),
            text(&site.path("control"))
        );
        let election = format!(
            "\n[election]\nbackend = \"file\"\nprofile = \"calm\"\nname = \"gw{node}\"\n\n\
             [election.file]\ndirectory = \"{}\"\n\n\
             [election.link]\nlisten = \"{listen}\"\npeer = \"{peer_address}\"\nkey_file = \"{}\"\n\n\
             [[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n",
            text(&records),
            text(&key),
        );
        site.config_text(&self.wanted).replacen("[gateway]", &keys, 1) + &election
    }
}
