//! A reload adds channels and output lines to a running gateway, and removes them.
//!
//! ```text
//!  check → open output sockets → build channels (a thread of its own) → serve their logs → insert them into their pools
//!        → send on the new output lines → close the removed ones → remove channels
//! ```
//! Everything that can fail comes before the first removal. If a step fails, the steps before it are undone, and the old configuration
//! remains in effect. The pools' threads do what they always do: a channel is inserted into a vacant slot and first claimed
//! from the run queue, and a retired one is given up by its present holder.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mdgw_election::identity::NodeId;
use mdgw_engine::pipeline::{ChannelMessage, ChannelPipeline, OutputChange};
use mdgw_feeds::identity::{ChannelId, GroupId, Line};
use mdgw_pair::pair_link::PairLink;
use mdgw_sys::{
    batch::OutputIndex,
    clock::mono_now,
    host_memory::HostMemory,
    sockets::{Egress, InterfaceDependents, Membership},
};

use super::{
    Gateway, GroupHandle, Overrides, StartMode,
    channel_builder::{BuiltChannel, ChannelBuilder, ChannelContext, donors, monitored_inputs},
    output_slots::OutputSlots,
    pool_channels::PoolChannels,
    shutdown_position,
    wiring::{monitored_output, open_output_line},
};
use crate::{
    audit::entry::AuditEvent,
    config::{
        Changes, OutputLines, Refused, Resolved,
        resolved::{ChannelSetup, OutputLine},
    },
};

/// Called some times a second while a reload waits.
pub type ReloadTick<'t> = dyn FnMut(&mut Gateway) + 't;

/// The output sockets that a reload has opened, and those that it will close.
#[derive(Debug, Default)]
struct OutputSockets {
    opened: Vec<(OutputIndex, Option<Egress>)>,
    /// Lines that the standby listens to too, and the groups that it has joined for that.
    listened: Vec<OutputLine>,
    memberships: Vec<Membership>,
    leaving: Vec<OutputIndex>,
}

impl Gateway {
    /// Applies `changes`, those from the configuration in force, `old`, to `new`. `tick` is called some times a second meanwhile:
    /// a channel with large books or a peer's state takes a while.
    ///
    /// # Errors
    /// Everything that was refused, with the reason. The old configuration remains in effect then.
    pub fn reload(
        &mut self,
        (old, new): (&Resolved, &Resolved),
        changes: &Changes,
        tick: &mut ReloadTick<'_>,
    ) -> Result<(), Vec<Refused>> {
        if changes.has_parts() {
            self.change_parts((old, new), changes, tick)?;
        }
        if let Some(interval_ns) = changes.latency_interval_ns {
            self.latency.set_interval_ns(interval_ns);
        }
        if let Some(limits) = &changes.retransmission {
            self.cold.set_retransmission_limits(limits.clone());
        }
        for election in self.elections.values() {
            election.set_configuration(new.output_fingerprint());
        }
        Ok(())
    }

    fn change_parts(
        &mut self,
        (old, new): (&Resolved, &Resolved),
        changes: &Changes,
        tick: &mut ReloadTick<'_>,
    ) -> Result<(), Vec<Refused>> {
        let added: Vec<&ChannelSetup> = changes.added.iter().filter_map(|id| new.channel(*id)).collect();
        self.pools.iter_mut().for_each(PoolChannels::reclaim);
        self.check_slots(new, &added)?;
        self.check_outputs(&changes.outputs)?;
        let refused = new.refuse_without_memory(&added, HostMemory::read());
        if !refused.is_empty() {
            return Err(refused);
        }
        let mut output_slots = self.output_slots.clone();
        let mut sockets = OutputSockets::default();
        if let Err(refused) = self.open_outputs(&changes.outputs, &mut output_slots, &mut sockets) {
            self.close_opened(&sockets);
            return Err(vec![refused]);
        }
        let mut inserted = Vec::new();
        let applied = self
            .build(new, &added, &output_slots, tick)
            .and_then(|built| self.insert_all(new, &added, built, &mut inserted, tick))
            .and_then(|()| self.switch_outputs(&changes.outputs, &output_slots, tick));
        if let Err(refused) = applied {
            for setup in &added {
                if inserted.contains(&setup.id) {
                    self.remove_channel(setup.id, &setup.name, tick);
                }
                self.context.registry.remove(&setup.name);
            }
            // A channel that may still send on them keeps them open.
            if !self.has_stray_lines {
                self.close_opened(&sockets);
            }
            return Err(vec![refused]);
        }
        self.output_slots = output_slots;
        let egresses = sockets.opened.into_iter().filter_map(|(_, egress)| egress).collect();
        self.cold.watch(InterfaceDependents { memberships: sockets.memberships, egresses });
        for index in sockets.leaving {
            if let Some(socket) = self.context.outputs.remove(index) {
                self.cold.unwatch(vec![socket.as_raw_fd()]);
            }
        }
        for line in changes.outputs.iter().flat_map(|output| &output.removed) {
            self.stop_listening(line);
        }
        for setup in changes.removed.iter().filter_map(|id| old.channel(*id)) {
            self.remove_channel(setup.id, &setup.name, tick);
        }
        self.thread_watch.set_heartbeats(new);
        self.record_reload(old, new, changes);
        Ok(())
    }

    /// Whether the pools of the added channels run and have vacant slots.
    fn check_slots(&self, new: &Resolved, added: &[&ChannelSetup]) -> Result<(), Vec<Refused>> {
        let mut refused = Vec::new();
        let mut wanted = BTreeMap::<&str, usize>::new();
        for setup in added {
            let configured = &new.pools[setup.pool];
            let refuse = |reason: String| Refused::table(format!("channel.{}", setup.name), reason);
            let Some(pool) = self.pools.iter().find(|pool| pool.name == configured.name) else {
                refused.push(refuse(format!(
                    "pool {:?} had no channel at the start, so it does not run",
                    configured.name
                )));
                continue;
            };
            let count = wanted.entry(&configured.name).or_default();
            *count += 1;
            if *count > pool.vacant.len() {
                refused.push(refuse(format!(
                    "too few spare slots: pool {:?} has {} left (spare_channels = {} at the start)",
                    configured.name,
                    pool.vacant.len(),
                    configured.spare_channels
                )));
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(refused) }
    }

    /// Whether the lines of these outputs can change.
    fn check_outputs(&self, outputs: &[OutputLines]) -> Result<(), Vec<Refused>> {
        let failed: Vec<ChannelId> = self
            .pools
            .iter()
            .flat_map(|pool| pool.channels.all().into_iter().filter(|(index, ..)| pool.pool.failed(*index).is_some()))
            .map(|(_, id, _)| id)
            .collect();
        let has_leaving = self.pools.iter().any(|pool| !pool.leaving.is_empty());
        let mut refused = Vec::new();
        for output in outputs {
            if self.has_stray_lines || has_leaving {
                let reason = "a channel whose thread has stalled may still send on former lines; restart the gateway if that lasts";
                refused.push(refuse_output(output, reason));
            }
            if self.kernel.is_some() && !output.added.is_empty() {
                refused.push(refuse_output(output, "the kernel fence covers the addresses of the start only"));
            }
            let channels = output.groups.iter().filter_map(|group| self.group(*group)).flat_map(GroupHandle::channels);
            for channel in channels.filter(|channel| failed.contains(channel)) {
                let reason =
                    format!("channel {} is out of service and cannot change its lines; remove it first", channel.0);
                refused.push(refuse_output(output, reason));
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(refused) }
    }

    fn open_outputs(
        &self,
        outputs: &[OutputLines],
        output_slots: &mut OutputSlots,
        sockets: &mut OutputSockets,
    ) -> Result<(), Refused> {
        for output in outputs {
            // First the new ones, while the slots of the others are taken.
            for line in &output.added {
                let no_slot = || refuse_output(output, "no slot for another line");
                let index = output_slots.add(&output.groups, line).ok_or_else(no_slot)?;
                let (egress, socket) =
                    open_output_line(line).map_err(|error| refuse_output(output, error.to_string()))?;
                self.context.outputs.insert(index, socket).map_err(|_| no_slot())?;
                sockets.opened.push((index, egress));
                if let Some(standby) = &self.standby {
                    // The standby does not tell lines apart.
                    let joined = standby.add_output(monitored_output(Line::A, line));
                    sockets.memberships.extend(joined.map_err(|error| refuse_output(output, error.to_string()))?);
                    sockets.listened.push(line.clone());
                }
            }
            sockets.leaving.extend(output.removed.iter().filter_map(|line| output_slots.remove(&output.groups, line)));
        }
        Ok(())
    }

    fn close_opened(&self, sockets: &OutputSockets) {
        for (index, _) in &sockets.opened {
            drop(self.context.outputs.remove(*index));
        }
        for line in &sockets.listened {
            self.stop_listening(line);
        }
    }

    /// The standby listens to that output line no longer.
    fn stop_listening(&self, line: &OutputLine) {
        let Some(standby) = &self.standby else { return };
        match standby.remove_output(line.address, line.interface.clone()) {
            Ok(closed) => self.cold.unwatch(closed.descriptors()),
            Err(error) => {
                tracing::error!(address = %line.address, %error, "cannot stop to listen to a removed output line")
            }
        }
    }

    /// Builds the added channels on a thread of its own.
    fn build(
        &mut self,
        new: &Resolved,
        added: &[&ChannelSetup],
        output_slots: &OutputSlots,
        tick: &mut ReloadTick<'_>,
    ) -> Result<Vec<BuiltChannel>, Refused> {
        if added.is_empty() {
            return Ok(Vec::new());
        }
        let stored = self.cold.stored(added.iter().map(|setup| setup.id).collect());
        let no_answer = || Refused::table("channel".to_owned(), "the log maintenance thread does not answer");
        let stored = stored.ok_or_else(no_answer)?;
        let mut taken = BTreeMap::<&str, usize>::new();
        let slots: Vec<usize> = added
            .iter()
            .filter_map(|setup| {
                let pool = self.pools.iter().find(|pool| pool.name == new.pools[setup.pool].name)?;
                let count = taken.entry(&pool.name).or_default();
                *count += 1;
                pool.vacant.get(*count - 1).copied()
            })
            .collect();
        // A gateway that runs deletes no log.
        let overrides = Overrides { beginning: StartMode::OwnLog, ..self.context.overrides };
        // Those of the start are old by now. The channel's log and its position at its removal say where it continues.
        let context = ChannelContext { overrides, published: None, ..self.context.clone() };
        // Only a peer that has the channel can supply its state.
        let link = self.link.as_ref().map(PairLink::handle);
        let is_at_peer: Vec<bool> =
            added.iter().map(|setup| link.is_some_and(|link| !link.peer_reports(setup.id).is_empty())).collect();
        let build = move || {
            let [mut peers, mut none] = [true, false].map(|copies| donors(new, &context, copies));
            let built = added.iter().zip(slots).zip(is_at_peer).map(|((setup, slot), is_at_peer)| {
                let donors = if is_at_peer { &mut peers } else { &mut none };
                let mut builder = ChannelBuilder { config: new, context: &context, output_slots, donors };
                let stored = stored.get(&setup.id).copied().unwrap_or_default();
                let refuse = |error| Refused::table(format!("channel.{}", setup.name), format!("{error}"));
                builder.build(slot, setup, stored).map_err(refuse)
            });
            built.collect()
        };
        thread::scope(|scope| {
            let spawned = thread::Builder::new().name("mdgw-reload".to_owned()).spawn_scoped(scope, build);
            let failed = |reason: String| Refused::table("channel".to_owned(), reason);
            let building = spawned.map_err(|error| failed(format!("cannot start a thread: {error}")))?;
            while !building.is_finished() {
                tick(self);
                thread::sleep(POLL_INTERVAL);
            }
            building.join().unwrap_or_else(|_| Err(failed("the thread that builds channels panicked".to_owned())))
        })
    }

    /// Inserts the built channels. `inserted` has those that were begun with, also after an error.
    fn insert_all(
        &mut self,
        new: &Resolved,
        added: &[&ChannelSetup],
        built: Vec<BuiltChannel>,
        inserted: &mut Vec<ChannelId>,
        tick: &mut ReloadTick<'_>,
    ) -> Result<(), Refused> {
        for (setup, built) in added.iter().zip(built) {
            inserted.push(setup.id);
            self.insert_channel(&new.pools[setup.pool].name, setup, built, tick)
                .map_err(|reason| Refused::table(format!("channel.{}", setup.name), reason))?;
        }
        Ok(())
    }

    /// Each cold thread may keep it waiting for some seconds, so it ticks in between.
    fn insert_channel(
        &mut self,
        pool: &str,
        setup: &ChannelSetup,
        built: BuiltChannel,
        tick: &mut ReloadTick<'_>,
    ) -> Result<(), String> {
        let sockets = built.sockets();
        let BuiltChannel { pipeline, mut memberships, monitored, takeover_shared, log, metrics, served } = built;
        let unknown = || format!("pool {pool:?} or group {} is gone", setup.group.0);
        let group = self.groups.get(&setup.group).cloned().ok_or_else(unknown)?;
        self.cold.serve(served)?;
        tick(self);
        if let Some(standby) = &self.standby {
            self.context.history.add(setup.id, setup.feed);
            self.logs.add(setup.id, monitored.log_directory.clone());
            let joined = standby.add(monitored, monitored_inputs(setup).collect());
            memberships.extend(joined.map_err(|error| error.to_string())?);
        }
        tick(self);
        let pool = self.pools.iter_mut().find(|other| other.name == pool).ok_or_else(unknown)?;
        let index = pool.vacant.pop_front().ok_or_else(unknown)?;
        pool.channels.insert(index, setup.id, setup.name.clone());
        pool.sockets.insert(setup.id, sockets.iter().map(|(_, socket)| Arc::clone(socket)).collect());
        let (name, pool) = (pool.name.clone(), Arc::clone(&pool.pool));
        let drops = sockets.iter().map(|(handle, socket)| (handle.line, Arc::clone(socket))).collect();
        self.cold.add(
            (setup.id, setup.name.clone()),
            log,
            drops,
            InterfaceDependents { memberships, egresses: Vec::new() },
        );
        tick(self);
        self.latency.add(&setup.name, name.clone(), index, metrics);
        pool.insert(Box::new(pipeline)).map_err(|_| "its slot is taken".to_owned())?;
        group.add(setup.id, Arc::clone(&pool), index, takeover_shared);
        for (handle, socket) in &sockets {
            pool.add(socket.as_fd(), *handle).map_err(|error| format!("cannot register a line's socket: {error}"))?;
        }
        tracing::info!(channel = setup.name, pool = name, "channel added");
        Ok(())
    }

    /// Makes the channels of these outputs send on their lines of `output_slots`, and waits until each does.
    fn switch_outputs(
        &mut self,
        outputs: &[OutputLines],
        output_slots: &OutputSlots,
        tick: &mut ReloadTick<'_>,
    ) -> Result<(), Refused> {
        for (number, output) in outputs.iter().enumerate() {
            if self.send_lines(output, output_slots, tick) {
                continue;
            }
            let before = self.output_slots.clone();
            for output in &outputs[..=number] {
                self.has_stray_lines |= !self.send_lines(output, &before, tick);
            }
            if self.has_stray_lines {
                tracing::error!("some channels may still send on the output lines of the refused configuration");
            }
            let reason =
                "a channel did not change its lines in time: is it out of service, or a thread of its pool stalled?";
            return Err(refuse_output(output, reason));
        }
        Ok(())
    }

    /// Returns whether all channels of the output send on its lines of `output_slots`.
    fn send_lines(&mut self, output: &OutputLines, output_slots: &OutputSlots, tick: &mut ReloadTick<'_>) -> bool {
        let lines = output.groups.first().map_or_else(Vec::new, |group| output_slots.indices(*group));
        let change = OutputChange::new(lines);
        let groups: Vec<GroupHandle> = output.groups.iter().filter_map(|group| self.group(*group)).cloned().collect();
        let mut waiting: Vec<(usize, ChannelId)> = groups
            .iter()
            .enumerate()
            .flat_map(|(at, group)| group.channels().into_iter().map(move |id| (at, id)))
            .collect();
        let count = waiting.len();
        let begun = Instant::now();
        loop {
            // An inbox that is full has room soon.
            waiting.retain(|(at, channel)| {
                groups[*at].send(*channel, ChannelMessage::OutputsChanged(Arc::clone(&change))).is_err()
            });
            if waiting.is_empty() && change.applied_count() == count {
                return true;
            }
            if begun.elapsed() > ANSWER_TIME_MAX {
                return false;
            }
            tick(self);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Removes a channel in order: no message, no packet, no thread, then its parts. Its log's files stay.
    fn remove_channel(&mut self, channel: ChannelId, name: &str, tick: &mut ReloadTick<'_>) {
        for group in self.groups.values() {
            group.remove(channel);
        }
        let of_pool = |(at, pool): (usize, &PoolChannels)| Some((at, pool.channels.index_of(channel)?));
        let slot = self.pools.iter().enumerate().find_map(of_pool);
        let mut sockets = Vec::new();
        let mut position = None;
        if let Some((at, index)) = slot {
            sockets = self.pools[at].sockets.remove(&channel).unwrap_or_default();
            for socket in &sockets {
                // A socket whose registration failed is not there.
                let _ = self.pools[at].pool.remove(socket.as_fd());
            }
            self.pools[at].pool.retire(index);
            if let Some(mut pipeline) = self.wait_for_retired(at, index, tick) {
                position = shutdown_position(&pipeline);
                pipeline.flush_metrics(mono_now());
                drop(pipeline);
                self.pools[at].vacant.push_back(index);
            } else {
                tracing::error!(
                    channel = name,
                    "a thread of the pool still holds the removed channel: its slot and memory stay in use until the thread makes progress"
                );
                self.pools[at].leaving.push(index);
            }
            self.pools[at].channels.remove(index);
        }
        self.cold.unwatch(sockets.iter().map(|socket| socket.as_raw_fd()).collect());
        tick(self);
        if let Some(standby) = &self.standby {
            match standby.remove(channel) {
                Ok(closed) => self.cold.unwatch(closed.descriptors()),
                Err(error) => tracing::error!(channel = name, %error, "the standby still follows a removed channel"),
            }
            self.context.history.remove(channel);
            self.logs.remove(channel);
        }
        tick(self);
        self.latency.remove(channel);
        tick(self);
        self.cold.remove(channel, sockets, position);
        self.context.registry.remove(name);
        self.alarms.forget(name);
        tracing::info!(channel = name, "channel removed");
    }

    fn wait_for_retired(&mut self, at: usize, index: usize, tick: &mut ReloadTick<'_>) -> Option<Box<ChannelPipeline>> {
        let begun = Instant::now();
        loop {
            let retired = self.pools[at].pool.take_retired(index);
            if retired.is_some() || begun.elapsed() > ANSWER_TIME_MAX {
                return retired;
            }
            tick(self);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Records the change of parts in the audit, in each group that it concerns.
    fn record_reload(&self, old: &Resolved, new: &Resolved, changes: &Changes) {
        let Some(sender) = self.audit() else { return };
        let mut texts = BTreeMap::<GroupId, Vec<String>>::new();
        for setup in changes.added.iter().filter_map(|id| new.channel(*id)) {
            texts.entry(setup.group).or_default().push(format!("channel {} added", setup.name));
        }
        for setup in changes.removed.iter().filter_map(|id| old.channel(*id)) {
            texts.entry(setup.group).or_default().push(format!("channel {} removed", setup.name));
        }
        for output in &changes.outputs {
            let added = output.added.iter().map(|line| format!("output line {} added", line.address));
            let removed = output.removed.iter().map(|line| format!("output line {} removed", line.address));
            let lines: Vec<String> = added.chain(removed).collect();
            for group in &output.groups {
                texts.entry(*group).or_default().extend(lines.iter().cloned());
            }
        }
        for (group, text) in texts.into_iter().filter(|(group, _)| self.groups.contains_key(group)) {
            let text = format!("configuration reloaded: {}", text.join(", "));
            sender.record(group, NodeId(self.node), self.epoch(), AuditEvent::Notice { text, from: None });
        }
    }
}

fn refuse_output(output: &OutputLines, reason: impl Into<String>) -> Refused {
    let groups: Vec<String> = output.groups.iter().map(|group| group.0.to_string()).collect();
    Refused::table(format!("output.{}.line", groups.join("+")), reason)
}

/// How long a pool's thread may take to give up a channel or to change its lines: it does so after the packets at hand.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks whether another thread is done.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
