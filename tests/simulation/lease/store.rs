//! The simulated store: one versioned record, its watch, its outages and backups.

use mdgw_election::{
    core::Input,
    register::{Outcome, RegisterEvent, RegisterRequest, StoreLink, Version, Versioned},
};

use super::cluster::{Event, LeaseCluster, SimulatedGateway};

#[derive(Default)]
pub(super) struct SimulatedStore {
    stored: Option<Versioned>,
    is_down: bool,
    /// Number of restored backups.
    pub(super) restore_count: u64,
    backup: Option<Versioned>,
}

impl LeaseCluster {
    pub(super) fn is_partitioned(&self, from: usize, to: usize) -> bool {
        self.partitions.get(&(from, to)).is_some_and(|count| *count > 0)
    }

    pub(super) fn store_index(&self) -> usize {
        self.gateways.len()
    }

    pub(super) fn send_to_store(&mut self, from: usize, request: RegisterRequest) {
        if request == RegisterRequest::Reconnect {
            let restore_count = self.store.restore_count;
            let gateway = &mut self.gateways[from];
            gateway.connection += 1;
            gateway.store_restore_count = restore_count;
            gateway.last_watch_ns = 0;
            return self.notify_watch(from);
        }
        let SimulatedGateway { incarnation, connection, store_restore_count: restore_count, .. } = self.gateways[from];
        if self.is_partitioned(from, self.store_index()) {
            return;
        }
        let delay_ns = self.delay_ns();
        self.after(
            delay_ns,
            Event::AtStore { from, incarnation, connection, restore_count, request: Box::new(request) },
        );
    }

    pub(super) fn handle_at_store(
        &mut self,
        from: usize,
        incarnation: u64,
        connection: u64,
        restore_count: u64,
        request: &RegisterRequest,
    ) {
        // A restore ends all connections, so a request that was sent before is lost.
        if self.store.is_down || restore_count != self.store.restore_count {
            return;
        }
        let (request_id, outcome) = match request {
            RegisterRequest::Read(request_id) => (*request_id, Outcome::Read(self.store.stored.clone())),
            RegisterRequest::CompareAndSwap { request_id, expected, record } => {
                let version = self.store.stored.as_ref().map_or(Version::NONE, |stored| stored.version);
                if *expected == version || !self.setup.version_check {
                    let version = Version(version.0 + 1);
                    self.store.stored = Some(Versioned { version, record: (**record).clone() });
                    for gateway in 0..self.gateways.len() {
                        self.notify_watch(gateway);
                    }
                    (*request_id, Outcome::Swapped(version))
                } else {
                    (*request_id, Outcome::Refused)
                }
            }
            RegisterRequest::Reconnect => return,
        };
        if self.is_partitioned(self.store_index(), from) {
            return;
        }
        let is_unknown = !self.faults_stopped && self.random.chance(self.setup.faults.unknown);
        let outcome = if is_unknown { Outcome::Unknown("connection lost".to_owned()) } else { outcome };
        let input = Box::new(Input::Backend(RegisterEvent::Answer { request_id, outcome }));
        let slow_ns = match self.setup.faults.slow_answer_ns {
            0 => 0,
            slow_answer_ns => self.random.below(slow_answer_ns),
        };
        let delay_ns = self.delay_ns() + slow_ns;
        self.after(delay_ns, Event::ToGateway { to: from, incarnation, connection: Some(connection), input });
    }

    /// Notifies a watching gateway of the present record. Notifications arrive in order; a partition drops them.
    pub(super) fn notify_watch(&mut self, to: usize) {
        if self.store.is_down || self.is_partitioned(self.store_index(), to) {
            return;
        }
        let at_ns = (self.now_ns + self.delay_ns()).max(self.gateways[to].last_watch_ns + 1);
        self.gateways[to].last_watch_ns = at_ns;
        let SimulatedGateway { incarnation, connection, .. } = self.gateways[to];
        let input = Box::new(Input::Backend(RegisterEvent::Changed(self.store.stored.clone())));
        self.after(at_ns - self.now_ns, Event::ToGateway { to, incarnation, connection: Some(connection), input });
    }

    pub(super) fn store_down(&mut self, lasts_ns: u64) {
        self.store.is_down = true;
        self.after(lasts_ns, Event::StoreUp);
    }

    pub(super) fn store_up(&mut self) {
        self.store.is_down = false;
        for gateway in 0..self.gateways.len() {
            self.notify_watch(gateway);
        }
    }

    pub(super) fn back_up(&mut self) {
        self.store.backup = self.store.stored.clone();
    }

    /// Restores the backup, after an outage.
    pub(super) fn restore(&mut self, lasts_ns: u64) {
        if self.store.backup.is_none() {
            return;
        }
        self.store.stored = self.store.backup.clone();
        self.store.restore_count += 1;
        for gateway in 0..self.gateways.len() {
            // The connection ends. The gateway is notified of that before it receives anything over the next connection.
            self.gateways[gateway].connection += 1;
            self.send(gateway, Input::Backend(RegisterEvent::StoreLink(StoreLink::InDoubt)), 0);
        }
        self.store_down(lasts_ns);
    }

    pub(super) fn heal(&mut self, from: usize, to: usize) {
        if let Some(count) = self.partitions.get_mut(&(from, to)) {
            *count = count.saturating_sub(1);
        }
        if from == self.store_index() {
            self.notify_watch(to);
        }
    }
}
