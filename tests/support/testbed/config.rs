//! Configuration files of the gateways and witnesses of a testbed.

use std::{fmt::Write as _, path::Path};

use super::{
    LINES, LINK_PORT, OUTPUT, OUTPUT_KEY, REQUEST_PORT, RETRANSMISSION_PORT, SECOND_OUTPUT, STORE_ADDRESS_MIN,
    STORE_NODES, STORE_PORT, Testbed, VENUE, VOTE_PORT, address, index,
    plan::{ElectionBackend, Plan},
};
use crate::{failover::LeaseTimingMs, gateway_fixture::text, namespaces::INTERFACE, stores::Store};

impl Testbed {
    /// That gateway's configuration, in its current revision.
    pub(super) fn config_text(&self, node: u8) -> String {
        let at = |directory: &Path, name: &str| directory.join(format!("{name}{node}")).display().to_string();
        let (state, log) = (at(self.folder.path(), "state"), at(self.fast_dir.path(), "log"));
        let votes = self.vote_and_audit_dir(node);
        let (audit, socket, key) = (self.audit_file(node), self.control_socket(node), self.path("key"));
        let own = address(node);
        let peers = || self.nodes().filter(|peer| *peer != node);
        let Plan { timing: LeaseTimingMs(lease, renewal, margin), priority, channel, output, .. } = &self.plan;
        let revision = self.revisions[index(node)];
        // A gateway touches all of its books when it starts. A short day cannot have more orders than messages.
        let messages = self.plan.messages.next_power_of_two();
        let levels_max = messages.min(LEVELS_MAX);
        // Each revision changes a key that affects the output, but not with the messages of these days.
        let orders_max = messages.min(ORDERS_MAX).max(messages / 8) + revision;
        let [line_a, line_b] = LINES;
        let kernel_fence = self.plan.has_kernel_fence;
        let sentinel = if self.plan.has_sentinel { "spawn" } else { "none" };
        let retransmission = if self.plan.requesting_receivers > 0 {
            format!(
                "[retransmission]\nlisten = \"{own}:{RETRANSMISSION_PORT}\"\nallowed = [\"10.77.0.0/24\"]\n\
                 requests_per_second = 10000\nbytes_per_second = 100000000\n"
            )
        } else {
            String::new()
        };
        let second_output = if self.plan.has_second_output {
            format!("[[output.line]]\naddress = \"{SECOND_OUTPUT}\"\ninterface = \"{INTERFACE}\"\n")
        } else {
            String::new()
        };
        let tags = if self.plan.has_packet_tags {
            format!("tag_key_files = [\"{}\"]\n", text(&self.path(OUTPUT_KEY)))
        } else {
            String::new()
        };
        let receive_buffer = self.plan.receive_buffer_bytes;
        let buffer = receive_buffer.map_or(String::new(), |bytes| format!("receive_buffer_bytes = {bytes}\n"));
        let mut config = format!(
            "[gateway]\nnode = {node}\nstate_file = \"{state}\"\nlog_dir = \"{log}\"\naudit_file = \"{}\"\n\
             control_socket = \"{}\"\nsegment_bytes = 16777216\nretention_bytes = 268435456\n\
             [[pool]]\nname = \"main\"\nthreads = 1\nwait = \"park\"\n\
             [[channel]]\nid = 1\nname = \"one\"\nfeed = \"nasdaq-itch-5.0\"\n\
             orders_max = {orders_max}\nlevels_max = {levels_max}\nwindow_packets = 16384\ngap_timeout_us = 2000\n{channel}\n\
             [[channel.line]]\nname = \"A\"\ngroup = \"{line_a}\"\ninterface = \"{INTERFACE}\"\n{buffer}\
             [[channel.line]]\nname = \"B\"\ngroup = \"{line_b}\"\ninterface = \"{INTERFACE}\"\n{buffer}\
             [channel.recovery]\nserver = \"{}:{REQUEST_PORT}\"\nattempts_max = 20\n\
             [[output]]\ngroups = [1]\nheartbeat_ms = 100\n{tags}{output}\n\
             [[output.line]]\naddress = \"{OUTPUT}\"\ninterface = \"{INTERFACE}\"\n\
             {second_output}{retransmission}\
             [latency]\ndirectory = \"{}\"\n\
             [election]\nname = \"gw{node}\"\nlease_ms = {lease}\nrenew_ms = {renewal}\nmargin_ms = {margin}\n\
             rate_error_ppm = 1000\npriority = {priority}\nrevision = {revision}\nkernel_fence = {kernel_fence}\nbackend = ",
            text(&audit),
            text(&socket),
            address(VENUE),
            at(self.fast_dir.path(), "latency"),
        );
        config += &match self.plan.backend {
            ElectionBackend::File => {
                format!(
                    "\"file\"\n[election.file]\ndirectory = \"{}\"\n",
                    self.fast_dir.path().join("records").display()
                )
            }
            ElectionBackend::Quorum => {
                let voter = |node: u8| {
                    format!("[[election.quorum.voter]]\nnode = {node}\naddress = \"{}:{VOTE_PORT}\"\n", address(node))
                };
                format!(
                    "\"quorum\"\n[election.quorum]\nlisten = \"{own}:{VOTE_PORT}\"\nkey_file = \"{}\"\n\
                     vote_directory = \"{}\"\n{}",
                    text(&key),
                    at(votes, "votes"),
                    peers().chain(self.witness_nodes()).map(voter).collect::<String>(),
                )
            }
            ElectionBackend::Emergent => {
                let members = self.nodes().map(|node| format!("\"{}:{VOTE_PORT}\"", address(node)));
                format!(
                    "\"emergent\"\n[election.emergent]\nallow_split = true\nlisten = \"{own}:{VOTE_PORT}\"\n\
                     key_file = \"{}\"\nminimum_size = 1\nfound = {}\nseeds = [{}]\n",
                    text(&key),
                    node == 1,
                    members.collect::<Vec<_>>().join(", "),
                )
            }
            ElectionBackend::Store(store) => {
                let endpoints: Vec<String> = (0..STORE_NODES)
                    .map(|number| format!("\"{}:{STORE_PORT}\"", address(STORE_ADDRESS_MIN + number)))
                    .collect();
                let name = if store == Store::ZooKeeper { "zookeeper" } else { "etcd" };
                format!("\"{name}\"\n[election.{name}]\nendpoints = [{}]\n", endpoints.join(", "))
            }
        };
        // Writing to a string cannot fail.
        let _ = write!(
            config,
            "[election.link]\nlisten = \"{own}:{LINK_PORT}\"\nkey_file = \"{}\"\nsentinel = \"{sentinel}\"\n\
             history_bytes = {}\n",
            text(&key),
            self.plan.history_bytes,
        );
        for peer in peers() {
            let link = format!("{}:{LINK_PORT}", address(peer));
            let _ = write!(config, "[[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\nlink = \"{link}\"\n");
        }
        config
    }

    /// That witness's configuration.
    pub(super) fn witness_config_text(&self, node: u8) -> String {
        let others = self.nodes().chain(self.witness_nodes()).filter(|other| *other != node);
        let peer = |node: u8| format!("[[peer]]\nnode = {node}\naddress = \"{}:{VOTE_PORT}\"\n", address(node));
        format!(
            "node = {node}\nlisten = \"{}:{VOTE_PORT}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n{}",
            address(node),
            text(&self.path("key")),
            text(&self.path(&format!("votes{node}"))),
            others.map(peer).collect::<String>(),
        )
    }
}

/// Capacity of the books in the first revision, in orders, of days of one to eight million messages.
const ORDERS_MAX: u64 = 1 << 20;
/// Capacity in price levels of days of half a million messages or more.
const LEVELS_MAX: u64 = 1 << 19;
