//! `[[pool]]`

use std::collections::BTreeMap;

use mdgw_engine::dispatch::{DispatchModel, PromotionPolicy, WaitPolicy};
use toml::Spanned;

use super::{NS_PER_US, Resolver};
use crate::config::{
    file, limits,
    resolved::{DISPATCH_MODELS, IoBackend, PROMOTION_POLICIES, PoolConfig, Threads, WAIT_POLICIES},
};

impl Resolver<'_> {
    pub(super) fn pools(&mut self, file: &file::File) -> Vec<PoolConfig> {
        if file.pool.is_empty() {
            self.add_problem(&(0..0), "there must be at least one [[pool]]");
        }
        let mut taken_cores = BTreeMap::new();
        let mut pools: Vec<PoolConfig> = Vec::new();
        for written in &file.pool {
            let pool = self.pool(written, &mut taken_cores);
            if pools.iter().any(|other| other.name == pool.name) {
                let span = written.get_ref().name.as_ref().map_or_else(|| written.span(), Spanned::span);
                self.add_problem(&span, format!("{:?}: duplicate pool name", pool.name));
            }
            pools.push(pool);
        }
        pools
    }

    fn pool(&mut self, written: &Spanned<file::Pool>, taken_cores: &mut BTreeMap<usize, String>) -> PoolConfig {
        let pool = written.get_ref();
        let name = self.required(&pool.name, &written.span(), "name").cloned().unwrap_or_default();
        if let Some(written) = &pool.name {
            self.check_plain_name(written);
        }
        let wait = self.one_of(pool.wait.as_ref(), &WAIT_POLICIES).unwrap_or(WaitPolicy::SpinThenPark);
        let threads = self.threads(written, &name, taken_cores);
        let priority: u8 = self.number(&pool.priority, limits::PRIORITY);
        if matches!(threads, Threads::Unpinned(_)) && wait == WaitPolicy::Spin {
            self.warnings.push(format!(
                "pool {name:?} spins without pinned cores: its threads load any core they are scheduled on"
            ));
            if let (true, Some(span)) = (priority > 0, &pool.priority) {
                self.add_problem(&span.span(), format!("{priority}: a spinning, unpinned SCHED_FIFO thread can hang the host; set `cores` or `wait = \"park\"`"));
            }
        }
        let dispatch = self.one_of(pool.dispatch.as_ref(), &DISPATCH_MODELS).unwrap_or_default();
        self.check_dispatch(dispatch, pool, threads.count());
        PoolConfig {
            threads,
            dispatch,
            io: self.one_of(pool.io.as_ref(), IoBackend::NAMES).unwrap_or_default(),
            wait,
            promotion: self
                .one_of(pool.promotion.as_ref(), &PROMOTION_POLICIES)
                .unwrap_or_else(|| PromotionPolicy::default_for(wait)),
            spin_ns: self.number::<u64>(&pool.spin_us, limits::SPIN_US) * NS_PER_US,
            quota_packets: self.number(&pool.quota, limits::QUOTA),
            batch_events: self.number(&pool.batch, limits::BATCH),
            priority: (priority > 0).then_some(priority),
            spare_channels: if dispatch.has_spare_slots() {
                self.number(&pool.spare_channels, limits::SPARE_CHANNELS)
            } else {
                0
            },
            name,
        }
    }

    /// Refuses what a dispatch model cannot do.
    fn check_dispatch(&mut self, dispatch: DispatchModel, pool: &file::Pool, thread_count: usize) {
        let (Some(written), true) = (&pool.dispatch, dispatch != DispatchModel::LeaderFollowers) else { return };
        let name = written.get_ref();
        if dispatch == DispatchModel::HalfSync && thread_count < 2 {
            self.add_problem(
                &written.span(),
                format!("{name:?}: needs two threads or more: one receives, the others process"),
            );
        }
        if let Some(spare) = pool.spare_channels.as_ref().filter(|spare| *spare.get_ref() != 0) {
            self.add_problem(
                &spare.span(),
                format!("`spare_channels` conflicts with `dispatch = {name:?}`: only with \"leader-followers\" channels come and go"),
            );
        }
        if let Some(promotion) = &pool.promotion {
            self.add_problem(
                &promotion.span(),
                format!("`promotion` conflicts with `dispatch = {name:?}`: only \"leader-followers\" promotes threads"),
            );
        }
    }

    fn threads(
        &mut self,
        written: &Spanned<file::Pool>,
        name: &str,
        taken_cores: &mut BTreeMap<usize, String>,
    ) -> Threads {
        let pool = written.get_ref();
        let Some(cores) = &pool.cores else {
            if pool.threads.is_none() {
                self.add_problem(&written.span(), "`cores` (or `threads`, for unpinned threads) is missing");
            }
            return Threads::Unpinned(self.number(&pool.threads, limits::THREADS));
        };
        if let Some(threads) = &pool.threads {
            self.add_problem(&threads.span(), "`threads` conflicts with `cores` (one pinned thread per core)");
        }
        if cores.get_ref().is_empty() {
            self.add_problem(&cores.span(), "[]: must name at least one core");
        }
        let mut pinned = Vec::new();
        for core in cores.get_ref() {
            let number: usize = self.number(&Some(core.clone()), limits::CORE);
            if let Some(other) = taken_cores.insert(number, name.to_owned()) {
                self.add_problem(&core.span(), format!("{number}: core already used by pool {other:?}"));
            }
            pinned.push(number);
        }
        Threads::Pinned(pinned)
    }
}
