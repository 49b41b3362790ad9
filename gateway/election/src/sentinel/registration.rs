//! The gateway's registration with its sentinel, sent once over a Unix socket: its identity, the recipients of its
//! death notice, and the descriptors. The sentinel answers with one line; no further data follows.

use std::{
    io::{self, BufRead as _, BufReader, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    net::SocketAddr,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::shared_page::{GROUPS_MAX, THREADS_MAX};
use crate::{identity::Member, record_location::RecordLocation, timing::LEASE_NS_MAX};

/// The watched gateway, and the actions after its death.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchRegistration {
    /// This start of this gateway.
    pub member: Member,
    /// Its groups, in the page's order.
    pub groups: Vec<GroupRegistration>,
    /// Location of the election records, if the backend has any.
    pub records: Option<RecordLocation>,
    /// Hot threads in the page, the election thread included.
    pub thread_count: usize,
    /// Addresses of all voters and candidates: they receive the death notice.
    #[serde(rename = "told")]
    pub recipients: Vec<SocketAddr>,
    /// File with the shared key: the sentinel signs with it.
    pub key_file: PathBuf,
    /// Kill a gateway that leads and makes no progress for this long, ns. `None`: leave a hang to the lease.
    pub hang_limit_ns: Option<u64>,
}

/// A group of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRegistration {
    /// Number of the group.
    pub group: u16,
    /// L, ns. After half of it, the sentinel releases the record on behalf if no gateway has taken over.
    pub lease_ns: u64,
}

impl WatchRegistration {
    /// Sends the registration with its descriptors and waits for the answer, as long as the stream's own time limits
    /// allow.
    ///
    /// # Errors
    /// When the sentinel is gone or refuses; with its reason.
    pub(crate) fn send(&self, stream: &mut UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?.to_le_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other(format!("too many descriptors ({})", descriptors.len())));
        }
        // The descriptors travel with the first byte.
        let sent = sendmsg(&*stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
        stream.write_all(&length[sent..])?;
        stream.write_all(&text)?;
        let mut answer = String::new();
        BufReader::new(stream).take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
        match answer.trim_end() {
            READY => Ok(()),
            "" => Err(io::Error::other("the sentinel closed the connection without an answer")),
            refusal => Err(io::Error::other(refusal.to_owned())),
        }
    }

    /// Receives a registration with its descriptors.
    ///
    /// # Errors
    /// When the data is not a registration, or its numbers are out of range.
    pub(crate) fn receive(stream: &mut UnixStream) -> io::Result<(Self, Vec<OwnedFd>)> {
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&*stream, &mut [IoSliceMut::new(&mut length)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        stream.read_exact(&mut length[got.bytes..])?;
        let length = u64::from(u32::from_le_bytes(length));
        if length > TEXT_BYTES_MAX {
            return Err(io::Error::other(format!("registration of {length} bytes exceeds the limit")));
        }
        let mut text = Vec::new();
        stream.take(length).read_to_end(&mut text)?;
        let registration: Self = serde_json::from_slice(&text).map_err(io::Error::other)?;
        registration.check().map_err(io::Error::other)?;
        Ok((registration, descriptors))
    }

    fn check(&self) -> Result<(), &'static str> {
        let Self { groups, thread_count, recipients, hang_limit_ns, .. } = self;
        if !(1..=GROUPS_MAX).contains(&groups.len()) {
            return Err("a registration must have 1 to 64 groups");
        }
        if *thread_count > THREADS_MAX {
            return Err("a registration must have at most 64 threads");
        }
        if recipients.len() > RECIPIENTS_MAX {
            return Err("a registration must have at most 256 addresses to notify");
        }
        if groups.iter().any(|group| !(1..=LEASE_NS_MAX).contains(&group.lease_ns)) {
            return Err("lease length out of range in registration");
        }
        if hang_limit_ns.is_some_and(|limit_ns| !(HANG_LIMIT_NS_MIN..=LEASE_NS_MAX).contains(&limit_ns)) {
            return Err("a hang limit must be between a millisecond and an hour");
        }
        Ok(())
    }
}

/// Answers the gateway: watched from now on, or refused and why.
///
/// # Errors
/// When the gateway is gone.
pub(crate) fn answer(stream: &mut UnixStream, refusal: Option<&io::Error>) -> io::Result<()> {
    match refusal {
        None => writeln!(stream, "{READY}"),
        Some(refusal) => writeln!(stream, "{}", refusal.to_string().replace('\n', " ")),
    }
}

const READY: &str = "ready";
/// Shared page, pidfd, and the map and the link of the kernel fence.
const DESCRIPTORS_MAX: usize = 4;
const TEXT_BYTES_MAX: u64 = 256 << 10;
const ANSWER_BYTES_MAX: u64 = 4_096;
/// Maximum number of recipients: the gateways and witnesses of a site.
const RECIPIENTS_MAX: usize = 256;
/// Shortest hang limit, ns. Checks more often than every 200 us would be a load of their own.
const HANG_LIMIT_NS_MIN: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd as _, time::Duration};

    use super::*;
    use crate::{
        access::{EtcdConfig, EtcdTls, Login, StoreAccess, ZooKeeperConfig, ZooKeeperMode},
        formats::check,
        record::tests::member,
        sentinel::shared_page::SharedPage,
    };

    fn registration() -> WatchRegistration {
        WatchRegistration {
            member: member(1, 7),
            groups: vec![GroupRegistration { group: 3, lease_ns: 100_000_000 }],
            records: Some(RecordLocation::File(PathBuf::from("/var/lib/mdgw/election"))),
            thread_count: 2,
            recipients: vec!["192.0.2.1:7000".parse().unwrap(), "[2001:db8::1]:7000".parse().unwrap()],
            key_file: PathBuf::from("/etc/mdgw/key"),
            hang_limit_ns: Some(20_000_000),
        }
    }

    /// Sends a registration between two threads. Returns what the sentinel received, and the gateway's result.
    fn exchange(
        registration: &WatchRegistration,
        refusal: Option<io::Error>,
    ) -> (io::Result<(WatchRegistration, Vec<OwnedFd>)>, io::Result<()>) {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let sentinel = std::thread::spawn(move || {
            let taken = WatchRegistration::receive(&mut theirs);
            if taken.is_ok() {
                answer(&mut theirs, refusal.as_ref()).unwrap();
            }
            taken
        });
        let page = SharedPage::create().unwrap();
        let outcome = registration.send(&mut ours, &[page.as_fd(), page.as_fd()]);
        (sentinel.join().unwrap(), outcome)
    }

    #[test]
    fn a_registration_arrives_complete_with_its_descriptors() {
        let (taken, outcome) = exchange(&registration(), None);
        outcome.unwrap();
        let (taken, descriptors) = taken.unwrap();
        assert_eq!(taken, registration());
        assert_eq!(descriptors.len(), 2);
        SharedPage::open(descriptors.into_iter().next().unwrap()).unwrap();
    }

    #[test]
    fn the_gateway_receives_the_reason_of_a_refusal() {
        let (_, outcome) = exchange(&registration(), Some(io::Error::other("two\nlines")));
        assert_eq!(outcome.unwrap_err().to_string(), "two lines");
    }

    #[test]
    fn out_of_range_registrations_are_refused() {
        let good = registration();
        let no_lease = GroupRegistration { lease_ns: 0, ..good.groups[0].clone() };
        for bad in [
            WatchRegistration { groups: Vec::new(), ..good.clone() },
            WatchRegistration { groups: vec![good.groups[0].clone(); 65], ..good.clone() },
            WatchRegistration { groups: vec![no_lease], ..good.clone() },
            WatchRegistration { thread_count: 65, ..good.clone() },
            WatchRegistration { recipients: vec![good.recipients[0]; 257], ..good.clone() },
            WatchRegistration { hang_limit_ns: Some(999_999), ..good.clone() },
        ] {
            let (taken, outcome) = exchange(&bad, None);
            assert!(taken.is_err() && outcome.is_err(), "{bad:?}");
        }
    }

    #[test]
    fn malformed_registrations_are_refused() {
        for bytes in [&b""[..], b"\x04\0", b"\x02\0\0\0{", b"\x02\0\0\0{}", b"\xff\xff\xff\xff{}"] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert!(WatchRegistration::receive(&mut theirs).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_registration_written_by_0_1_0_is_read() {
        let login = Login { user: "mdgw".to_owned(), password_file: "/etc/mdgw/password".into() };
        let endpoints = vec!["192.0.2.1:2379".to_owned(), "192.0.2.2:2379".to_owned()];
        let request_timeout = Duration::from_millis(1_050);
        let access = StoreAccess { endpoints, request_timeout, login: Some(login) };
        let identity = Some(("/etc/mdgw/own.pem".into(), "/etc/mdgw/own.key".into()));
        let tls = Some(EtcdTls { ca_file: "/etc/mdgw/ca.pem".into(), identity });
        let etcd = EtcdConfig { access: access.clone(), prefix: "/mdgw/".to_owned(), tls };
        let etcd_least =
            EtcdConfig { access: StoreAccess { login: None, ..access.clone() }, tls: None, ..etcd.clone() };
        let zookeeper = |mode| {
            RecordLocation::ZooKeeper(ZooKeeperConfig { access: access.clone(), path: "/mdgw".to_owned(), mode })
        };
        let with = |records| WatchRegistration { records: Some(records), ..registration() };
        let registrations = [
            registration(),
            with(RecordLocation::Etcd(etcd)),
            with(RecordLocation::Etcd(etcd_least)),
            with(zookeeper(ZooKeeperMode::Lease)),
            with(zookeeper(ZooKeeperMode::Latch { session: Duration::from_secs(2) })),
            WatchRegistration { records: None, recipients: Vec::new(), hang_limit_ns: None, ..registration() },
        ];
        check(
            include_str!("../../../../tests/data/formats/watch_registration.jsonl"),
            &registrations,
            |text| {
                let (mut ours, mut theirs) = UnixStream::pair().unwrap();
                let length = u32::try_from(text.len()).unwrap().to_le_bytes();
                ours.write_all(&[&length, text].concat()).unwrap();
                WatchRegistration::receive(&mut theirs).unwrap().0
            },
            |registration| {
                let (mut ours, mut theirs) = UnixStream::pair().unwrap();
                theirs.write_all(b"ready\n").unwrap();
                registration.send(&mut ours, &[SharedPage::create().unwrap().as_fd()]).unwrap();
                drop(ours);
                let mut bytes = Vec::new();
                theirs.read_to_end(&mut bytes).unwrap();
                bytes.split_off(4)
            },
        );
    }
}
