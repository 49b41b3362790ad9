//! `[[output]]`, `[[output.line]]`, `[output.snapshots]` and `[retransmission]`

use std::{ops::Range, path::PathBuf};

use mdgw_feeds::identity::GroupId;
use toml::Spanned;

use super::{NS_PER_MS, Resolver, UNREADABLE_ADDRESS};
use crate::config::{
    file, limits,
    resolved::{
        ChannelSetup, Network, OutputConfig, OutputLine, OutputSnapshots, RetransmissionConfig, RetransmissionLimits,
    },
};

impl Resolver<'_> {
    pub(super) fn outputs(&mut self, file: &file::File, channels: &[ChannelSetup]) -> Vec<OutputConfig> {
        let mut outputs: Vec<OutputConfig> = Vec::new();
        for written in &file.output {
            let output = self.output(written, &outputs, channels);
            outputs.push(output);
        }
        for channel in channels {
            if !outputs.iter().any(|output| output.groups.contains(&channel.group)) {
                self.warnings.push(format!(
                    "channel {:?} is in group {}, which is in no [[output]]: it is written to its publication log but not published",
                    channel.name, channel.group.0
                ));
            }
        }
        outputs
    }

    fn output(
        &mut self,
        written: &Spanned<file::Output>,
        others: &[OutputConfig],
        channels: &[ChannelSetup],
    ) -> OutputConfig {
        let (output, table) = (written.get_ref(), written.span());
        let mut groups: Vec<GroupId> = Vec::new();
        self.required(&output.groups, &table, "groups");
        for number in output.groups.iter().flat_map(|list| list.get_ref()) {
            let group = GroupId(self.number(&Some(number.clone()), limits::GROUP_ID));
            if groups.contains(&group) || others.iter().any(|other| other.groups.contains(&group)) {
                self.add_problem(&number.span(), format!("{}: already in another output", group.0));
            }
            if !channels.iter().any(|channel| channel.group == group) {
                self.warnings.push(format!("output of group {}: no channel is in this group", group.0));
            }
            groups.push(group);
        }
        if output.line.is_empty() || output.line.len() > limits::OUTPUT_LINES_MAX {
            let (count, max) = (output.line.len(), limits::OUTPUT_LINES_MAX);
            let advice = if count == 0 { "; without any, leave out the [[output]]" } else { "" };
            self.add_problem(&table, format!("{count} lines: must have 1 to {max} [[output.line]]{advice}"));
        }
        let mut lines: Vec<OutputLine> = Vec::new();
        for written in &output.line {
            let line = self.output_line(written.get_ref(), &written.span());
            let span = written.get_ref().address.as_ref().map_or_else(|| written.span(), Spanned::span);
            self.check_address_is_free(&span, &line, &lines, others, channels);
            lines.push(line);
        }
        let snapshots = output.snapshots.as_ref().map(|written| {
            let snapshots = self.output_snapshots(written, &lines);
            let span = written.get_ref().address.as_ref().map_or_else(|| written.span(), Spanned::span);
            self.check_address_is_free(&span, &snapshots.line, &lines, others, channels);
            // Also on another interface: a receiver that joined it as a line would get the chunks.
            if lines
                .iter()
                .any(|line| line.address == snapshots.line.address && line.interface != snapshots.line.interface)
            {
                let message = format!("{}: is also an output line, on another interface", snapshots.line.address);
                self.add_problem(&span, message);
            }
            snapshots
        });
        let payload_bytes_max: usize = self.number(&output.payload_bytes_max, limits::PAYLOAD_BYTES_MAX);
        if let (Some(written), Some(_)) = (&output.payload_bytes_max, &snapshots)
            && payload_bytes_max < limits::PAYLOAD_BYTES_WITH_SNAPSHOTS_MIN
        {
            let min = limits::PAYLOAD_BYTES_WITH_SNAPSHOTS_MIN;
            self.add_problem(
                &written.span(),
                format!(
                    "{payload_bytes_max} bytes: at least {min} with a snapshot group, whose chunks hold definitions"
                ),
            );
        }
        OutputConfig {
            groups,
            lines,
            payload_bytes_max,
            heartbeat_ns: self.number::<u64>(&output.heartbeat_ms, limits::HEARTBEAT_MS) * NS_PER_MS,
            tag_key_files: self.tag_key_files(output),
            accept_untagged: output.accept_untagged.as_ref().is_some_and(|written| *written.get_ref()),
            snapshots,
        }
    }

    fn output_snapshots(&mut self, written: &Spanned<file::OutputSnapshots>, lines: &[OutputLine]) -> OutputSnapshots {
        let (snapshots, table) = (written.get_ref(), written.span());
        let mut line = self.output_line(
            &file::OutputLine {
                address: snapshots.address.clone(),
                interface: snapshots.interface.clone(),
                ttl: snapshots.ttl.clone(),
                loopback: snapshots.loopback.clone(),
                source: snapshots.source.clone(),
            },
            &table,
        );
        // The same gateways send on the lines. A line for any sender means any sender.
        if snapshots.source.is_none()
            && line.address.ip().is_multicast()
            && lines.iter().all(|line| !line.sources.is_empty())
        {
            line.sources = lines.iter().flat_map(|line| line.sources.iter().copied()).collect();
            line.sources.sort_unstable();
            line.sources.dedup();
        }
        OutputSnapshots {
            line,
            interval_ns: self.number::<u64>(&snapshots.interval_ms, limits::SNAPSHOT_INTERVAL_MS) * NS_PER_MS,
            bytes_per_second: self.number(&snapshots.bytes_per_second, limits::SNAPSHOT_GROUP_BYTES_PER_SECOND),
            passes: self.number(&snapshots.passes, limits::SNAPSHOT_PASSES),
        }
    }

    fn tag_key_files(&mut self, output: &file::Output) -> Vec<PathBuf> {
        let Some(list) = &output.tag_key_files else {
            if output.accept_untagged.as_ref().is_some_and(|written| *written.get_ref()) {
                self.warnings
                    .push("accept_untagged has no effect without tag_key_files: every packet is accepted".to_owned());
            }
            return Vec::new();
        };
        let files: Vec<PathBuf> = list.get_ref().iter().map(|path| path.get_ref().into()).collect();
        if files.is_empty() || files.len() > limits::TAG_KEYS_MAX {
            let (count, max) = (files.len(), limits::TAG_KEYS_MAX);
            self.add_problem(&list.span(), format!("{count} files: must be 1 to {max}"));
        }
        files
    }

    fn output_line(&mut self, line: &file::OutputLine, table: &Range<usize>) -> OutputLine {
        let address = self.address(&line.address, table, "address");
        let sources = self.sources(line.source.as_ref());
        if let Some(list) =
            line.source.as_ref().filter(|_| address != UNREADABLE_ADDRESS && !address.ip().is_multicast())
        {
            self.add_problem(&list.span(), format!("{address} is no multicast group; remove this key"));
        }
        OutputLine {
            sources,
            address,
            interface: self.interface(&line.interface, table),
            ttl: self.number(&line.ttl, limits::TTL),
            loopback: line.loopback.as_ref().is_some_and(|written| *written.get_ref()),
        }
    }

    /// An output's address must differ from those of other output lines on that interface and from those of all
    /// inputs.
    fn check_address_is_free(
        &mut self,
        span: &Range<usize>,
        line: &OutputLine,
        siblings: &[OutputLine],
        others: &[OutputConfig],
        channels: &[ChannelSetup],
    ) {
        if line.address == UNREADABLE_ADDRESS {
            return;
        }
        let groups = others.iter().filter_map(|other| Some(&other.snapshots.as_ref()?.line));
        let mut out = siblings.iter().chain(others.iter().flat_map(|other| &other.lines)).chain(groups);
        if out.any(|other| other.address == line.address && other.interface == line.interface) {
            let message = format!("{} on {}: duplicate output line", line.address, line.interface);
            self.add_problem(span, message);
        }
        for channel in channels {
            if let Some(input) = channel.lines.iter().find(|input| input.group == line.address) {
                self.add_problem(
                    span,
                    format!(
                        "{}: is also line {} of channel {:?}; the gateway would receive its own output",
                        line.address, input.line, channel.name
                    ),
                );
            }
        }
    }

    pub(super) fn retransmission(&mut self, written: &Spanned<file::Retransmission>) -> RetransmissionConfig {
        let (service, table) = (written.get_ref(), written.span());
        self.required(&service.allowed, &table, "allowed");
        let networks = service.allowed.iter().flat_map(|list| list.get_ref());
        let allowed: Vec<Network> = networks
            .filter_map(|text| self.parsed(text, "a network without host bits, such as \"10.1.0.0/16\""))
            .collect();
        if allowed.iter().any(|network| network.is_everyone()) {
            self.warnings.push("retransmission is open to all networks: with forged source addresses it can be used for amplification attacks".to_owned());
        }
        if service.allowed.as_ref().is_some_and(|list| list.get_ref().is_empty()) {
            self.warnings.push("retransmission serves no one: `allowed` is empty".to_owned());
        }
        RetransmissionConfig {
            listen: self.listen_address(&service.listen, &table, "retransmission"),
            snapshots: service.snapshots.as_ref().is_some_and(|value| *value.get_ref()),
            limits: RetransmissionLimits {
                allowed,
                requests_per_second: self.number(&service.requests_per_second, limits::REQUESTS_PER_SECOND),
                bytes_per_second: self.number(&service.bytes_per_second, limits::BYTES_PER_SECOND),
                snapshot_bytes_per_second: self
                    .number(&service.snapshot_bytes_per_second, limits::SNAPSHOT_BYTES_PER_SECOND),
                packets_per_request_max: self.number(&service.packets_per_request_max, limits::PACKETS_PER_REQUEST_MAX),
                requesters_max: self.number(&service.requesters_max, limits::REQUESTERS_MAX),
            },
        }
    }
}
