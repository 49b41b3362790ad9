//! Two gateways as processes of their own with an election between them: their configurations and their status.

use std::net::SocketAddrV4;

use serde_json::Value;

use crate::{
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text, write_key},
    gateways::GatewayProcesses,
    process::wait_until,
};

/// A pair over one `file` record. Both are killed when it is dropped.
#[derive(Debug)]
pub struct ElectedPair {
    /// Both gateways.
    pub gateways: GatewayProcesses,
    wanted: GatewayOptions,
    link_addresses: [SocketAddrV4; 2],
    /// The link address at which each gateway's peer reaches it; differs from its own with a relay in between.
    reachable_at: [SocketAddrV4; 2],
    /// The gateways' admin listeners, if they have any.
    admin: Option<[SocketAddrV4; 2]>,
}

impl ElectedPair {
    /// Two gateways with the same lines and the same output, not yet started.
    ///
    /// # Panics
    /// When the key can't be written.
    #[must_use]
    pub fn new(wanted: GatewayOptions) -> Self {
        let first = GatewayFixture::with_node(1);
        let second = first.peer_on_same_lines(2);
        // Addresses that no gateway uses without a link.
        let link_addresses = [GatewayFixture::new().requests, GatewayFixture::new().requests];
        let key = first.path("key");
        write_key(&key);
        Self {
            gateways: GatewayProcesses::new(vec![first, second]),
            wanted,
            link_addresses,
            reachable_at: link_addresses,
            admin: None,
        }
    }

    /// Gives both gateways an admin listener.
    #[must_use]
    pub fn with_admin_listeners(mut self) -> Self {
        self.admin = Some([free_address(), free_address()]);
        self
    }

    /// The address at which that gateway listens for its peer.
    #[must_use]
    pub fn link_address(&self, node: u8) -> SocketAddrV4 {
        self.link_addresses[usize::from(node) - 1]
    }

    /// The address of that gateway's admin listener.
    ///
    /// # Panics
    /// Without [`Self::with_admin_listeners`].
    #[must_use]
    pub fn admin_address(&self, node: u8) -> SocketAddrV4 {
        self.admin.expect("the pair has admin listeners")[usize::from(node) - 1]
    }

    /// Sets the address at which the peer reaches that gateway, from the peer's next start on.
    pub fn route_link_through(&mut self, node: u8, at: SocketAddrV4) {
        self.reachable_at[usize::from(node) - 1] = at;
    }

    /// Starts a gateway and waits until it runs.
    pub fn start(&mut self, node: u8) {
        self.gateways.start(node, &self.config_text(node));
    }

    /// Starts a gateway without waiting until it runs.
    pub fn spawn(&mut self, node: u8) {
        self.gateways.spawn(node, &self.config_text(node));
    }

    /// Its status of its group; `None` if it doesn't answer.
    #[must_use]
    pub fn status(&self, node: u8) -> Option<Value> {
        self.gateways.status(node).map(|groups| groups[0].clone())
    }

    /// Its role in the election, such as `leader` or `candidate`.
    #[must_use]
    pub fn role(&self, node: u8) -> String {
        self.status(node).map(|status| status["role"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    }

    /// Waits until that gateway leads.
    pub fn wait_until_leads(&self, node: u8) {
        wait_until("the gateway leads", || self.role(node) == "leader");
    }

    /// Waits until a gateway leads, and returns its node id.
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

    /// Waits until that gateway is eligible.
    pub fn wait_until_eligible(&self, node: u8) {
        wait_until("the gateway is eligible", || self.role(node) == "candidate");
    }

    /// The configuration that a gateway is started with.
    ///
    /// # Panics
    /// When no gateway has that node id.
    #[must_use]
    pub fn config_text(&self, node: u8) -> String {
        let (first, fixture, peer) = (self.gateways.fixture(1), self.gateways.fixture(node), 3 - node);
        let (listen, peer_address) = (self.link_address(node), self.reachable_at[usize::from(peer) - 1]);
        let (records, key) = (first.path("records"), first.path("key"));
        let audit = fixture.path("audit.jsonl");
        let keys = format!(
            "[gateway]\naudit_file = \"{}\"\ncontrol_socket = \"{}\"",
            text(&audit),
            text(&fixture.path("control"))
        );
        let listen_admin =
            |admin: [SocketAddrV4; 2]| format!("\n[admin]\nlisten = \"{}\"\n", admin[usize::from(node) - 1]);
        let admin = self.admin.map(listen_admin).unwrap_or_default();
        let election = format!(
            "\n[election]\nbackend = \"file\"\nprofile = \"calm\"\nname = \"gw{node}\"\n\n\
             [election.file]\ndirectory = \"{}\"\n\n\
             [election.link]\nlisten = \"{listen}\"\npeer = \"{peer_address}\"\nkey_file = \"{}\"\n\n\
             [[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n{admin}",
            text(&records),
            text(&key),
        );
        fixture.config_text(&self.wanted).replacen("[gateway]", &keys, 1) + &election
    }
}
