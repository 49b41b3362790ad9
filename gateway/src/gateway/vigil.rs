//! The gateway's side of its sentinel: a thread that holds the page's mutex as long as the process lives, and the epochs
//! under which it leads.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};

use super::{GatewayError, election::directory_of};
use crate::{
    config::resolved::{Backend, ElectionConfig, LinkConfig, SentinelChoice},
    election::{
        core::CloseReason,
        driver::Election,
        identity::Member,
        latch::{LeaderLatch as _, Listener},
    },
    sentinel::{
        Sentinel, Source,
        charge::{Charge, GroupCharge, RegisterCharge},
        forbid_core_dumps,
        page::{GroupWords, Page},
    },
};

/// While this lives, the sentinel watches. Dropping it tells the sentinel that all is in order.
#[derive(Debug)]
pub(super) struct Vigil {
    /// Dropped to end the thread.
    end: Option<mpsc::Sender<()>>,
    holder: Option<JoinHandle<()>>,
    sentinel: Sentinel,
}

impl Vigil {
    /// `None` where the configuration wants no sentinel.
    ///
    /// # Errors
    /// When it can't be started or reached, or refuses.
    pub(super) fn start(
        link: &LinkConfig,
        member: Member,
        election: &ElectionConfig,
        elections: &BTreeMap<GroupId, Election>,
    ) -> Result<Option<Self>, GatewayError> {
        let source = match &link.sentinel {
            SentinelChoice::None => return Ok(None),
            SentinelChoice::Started => Source::Start { program: "/proc/self/exe".into(), priority: 0 },
            SentinelChoice::Service(path) => Source::Service(path.clone()),
        };
        // Until a dump is written nobody could learn of the death.
        forbid_core_dumps().map_err(GatewayError::io("switch core dumps off"))?;
        let (page, end, holder) = hold_page().map_err(GatewayError::io("make the page of the sentinel"))?;
        let charge = Charge {
            member,
            groups: elections.keys().map(|group| group_charge(election, *group)).collect::<Result<_, _>>()?,
            thread_count: 0,
            told: vec![SocketAddr::V4(link.peer)],
            key_file: std::path::absolute(&link.key_file).map_err(GatewayError::io("find the key"))?,
            hang_limit_ns: None,
        };
        let sentinel = Sentinel::start(&source, &charge, &page, None)
            .map_err(|error| GatewayError::io("have a sentinel")(io::Error::other(error)))?;
        for (index, election) in elections.values().enumerate() {
            election.listen(Arc::new(Leads(page.group(index))));
            // It may have begun to lead before it was listened to.
            if election.has_leadership() {
                page.group(index).open(election.view().epoch, FOR_GOOD);
            }
        }
        tracing::info!("a sentinel watches; core dumps are off");
        Ok(Some(Self { end: Some(end), holder: Some(holder), sentinel }))
    }

    /// Why nobody watches any more.
    pub(super) fn fault(&mut self) -> Option<String> {
        self.sentinel.fault()
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(holder) = self.holder.take() {
            // It has no result; one that panicked has let the page go.
            let _ended = holder.join();
        }
    }
}

/// Where the sentinel can reach the record, it marks it when nobody has taken over: only files need no connection.
fn group_charge(election: &ElectionConfig, group: GroupId) -> Result<GroupCharge, GatewayError> {
    let register = match &election.backend {
        Backend::File(directory) => {
            let directory = std::path::absolute(directory_of(directory, group));
            Some(RegisterCharge::File(directory.map_err(GatewayError::io("find the election's directory"))?))
        }
        _ => None,
    };
    Ok(GroupCharge { group: group.0, lease_ns: election.timing.lease_ns, register })
}

/// A thread that holds the page until it is told to close it.
fn hold_page() -> io::Result<(Arc<Page>, mpsc::Sender<()>, JoinHandle<()>)> {
    let page = Arc::new(Page::create()?);
    let held = Arc::clone(&page);
    let (end, until) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let holder = std::thread::Builder::new().name("mdgw-vigil".to_owned()).spawn(move || {
        let holding = held.hold();
        let holds = holding.is_ok();
        let _gone = tell.send(holding);
        if holds {
            let _ended = until.recv();
            if let Err(error) = held.close() {
                tracing::warn!(%error, "the sentinel takes the end for a death");
            }
        }
    })?;
    told.recv().map_err(io::Error::other)??;
    Ok((page, end, holder))
}

/// Writes a group's epoch where the sentinel finds it: it must name the leadership that ended.
struct Leads(GroupWords);

impl Listener for Leads {
    fn gained(&self, epoch: Epoch) {
        self.0.open(epoch, FOR_GOOD);
    }

    fn lost(&self, _epoch: Epoch, _reason: CloseReason) {
        self.0.close();
    }
}

/// The sentinel asks for a deadline only where it judges hangs.
const FOR_GOOD: MonoNs = MonoNs(u64::MAX);
