//! A group's record in real stores: the guarantees of swap, read and watch while nodes are killed, hang, restart, or are
//! restored from old data.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use mdgw_election::{
    access::{EtcdConfig, EtcdTls, Login, StoreAccess, ZooKeeperConfig, ZooKeeperMode},
    identity::{Incarnation, Member},
    record::Record,
    record_location::RecordLocation,
    register::{Outcome, StoreLink, Version},
    sentinel::release_on_behalf::{ReleaseResult, release_on_behalf},
};
use mdgw_feeds::identity::GroupId;
use mdgw_stores::{etcd, zookeeper};
use mdgw_tests::{
    gateway_fixture::write_secret,
    process::TEST_TIMEOUT,
    stores::{
        Certificate, Ensemble, PASSWORD, Store, USER,
        register_client::{RegisterClient, record},
    },
};

#[test]
fn etcd_swaps_only_the_version_that_was_read() {
    with_store(Store::Etcd, 1, swaps_only_the_version_that_was_read);
}

#[test]
fn zookeeper_swaps_only_the_version_that_was_read() {
    with_store(Store::ZooKeeper, 1, swaps_only_the_version_that_was_read);
}

#[test]
fn etcd_counts_each_swap_of_two_writers_once() {
    with_store(Store::Etcd, 1, counts_each_swap_of_two_writers_once);
}

#[test]
fn zookeeper_counts_each_swap_of_two_writers_once() {
    with_store(Store::ZooKeeper, 1, counts_each_swap_of_two_writers_once);
}

#[test]
fn etcd_notifies_each_watcher_of_the_newest_record() {
    with_store(Store::Etcd, 3, notifies_each_watcher_of_the_newest_record);
}

#[test]
fn zookeeper_notifies_each_watcher_of_the_newest_record() {
    with_store(Store::ZooKeeper, 3, notifies_each_watcher_of_the_newest_record);
}

#[test]
fn etcd_continues_when_a_node_dies_or_hangs() {
    with_store(Store::Etcd, 3, continues_when_a_node_dies_or_hangs);
}

#[test]
fn zookeeper_continues_when_a_node_dies_or_hangs() {
    with_store(Store::ZooKeeper, 3, continues_when_a_node_dies_or_hangs);
}

#[test]
fn etcd_lets_a_sentinel_release_a_dead_holder() {
    with_store(Store::Etcd, 1, lets_a_sentinel_release_a_dead_holder);
}

#[test]
fn zookeeper_lets_a_sentinel_release_a_dead_holder() {
    with_store(Store::ZooKeeper, 1, lets_a_sentinel_release_a_dead_holder);
}

#[test]
fn etcd_without_a_majority_swaps_nothing_and_recovers() {
    with_store(Store::Etcd, 3, swaps_nothing_without_a_majority_and_recovers);
}

#[test]
fn zookeeper_without_a_majority_swaps_nothing_and_recovers() {
    with_store(Store::ZooKeeper, 3, swaps_nothing_without_a_majority_and_recovers);
}

#[test]
fn etcd_never_applies_a_lost_swap_late() {
    with_store(Store::Etcd, 1, never_applies_a_lost_swap_late);
}

#[test]
fn zookeeper_never_applies_a_lost_swap_late() {
    with_store(Store::ZooKeeper, 1, never_applies_a_lost_swap_late);
}

#[test]
fn etcd_restored_from_a_backup_shows_the_old_record() {
    with_store(Store::Etcd, 3, shows_the_old_record_when_restored_from_a_backup);
}

#[test]
fn zookeeper_restored_from_a_backup_shows_the_old_record() {
    with_store(Store::ZooKeeper, 3, shows_the_old_record_when_restored_from_a_backup);
}

#[test]
fn etcd_requires_a_client_certificate() {
    let tls = |ensemble: &Ensemble| EtcdTls {
        ca_file: ensemble.certificate(Certificate::Ca),
        identity: Some((ensemble.certificate(Certificate::Client), ensemble.certificate(Certificate::ClientKey))),
    };
    with_store(Store::EtcdTls, 1, |ensemble| {
        let with = |tls: Option<EtcdTls>| {
            let config = EtcdConfig { tls, ..etcd_config(ensemble) };
            RegisterClient::open(|events| etcd::open(&config, GROUP, events).expect("etcd opens"))
        };
        let mut client = with(Some(tls(ensemble)));
        let version = client.put(Version::NONE, &record(1));
        assert_eq!(client.read().map(|found| found.version), Some(version));

        let other_user = EtcdTls { identity: None, ..tls(ensemble) };
        let distrusted = EtcdTls { ca_file: ensemble.certificate(Certificate::Client), ..tls(ensemble) };
        for refused in [None, Some(other_user), Some(distrusted)] {
            let outcome = with(refused.clone()).try_read();
            assert!(matches!(outcome, Outcome::Failed(_)), "{refused:?}: {outcome:?}");
        }
    });
}

#[test]
fn etcd_requires_the_password() {
    with_store(Store::EtcdPassword, 1, |ensemble| {
        let files = tempfile::tempdir().expect("a directory for passwords");
        let login = |password: &str| {
            let password_file = files.path().join(password.len().to_string());
            write_secret(&password_file, &format!("{password}\n"));
            Some(Login { user: USER.to_owned(), password_file })
        };
        let with = |login: Option<Login>, prefix: &str| {
            let config = etcd_config(ensemble);
            let access = StoreAccess { login, ..config.access };
            let config = EtcdConfig { access, prefix: prefix.to_owned(), tls: None };
            RegisterClient::open(|events| etcd::open(&config, GROUP, events).expect("etcd opens"))
        };
        let mut client = with(login(PASSWORD), PREFIX);
        let version = client.put(Version::NONE, &record(1));
        client.watch();
        client.wait_for_change(|found| found.is_some_and(|found| found.version == version));

        for (refused, prefix) in [(None, PREFIX), (login("wrong"), PREFIX), (login(PASSWORD), "/elsewhere/")] {
            let outcome = with(refused.clone(), prefix).try_read();
            assert!(matches!(outcome, Outcome::Failed(_)), "{refused:?} {prefix}: {outcome:?}");
        }
    });
}

#[test]
fn zookeeper_denies_other_users() {
    with_store(Store::ZooKeeper, 1, |ensemble| {
        let files = tempfile::tempdir().expect("a directory for passwords");
        let with = |user: &str| {
            let password_file = files.path().join(user);
            write_secret(&password_file, &format!("{PASSWORD}\n"));
            let config = zookeeper_config(ensemble);
            let login = Some(Login { user: user.to_owned(), password_file });
            let config = ZooKeeperConfig { access: StoreAccess { login, ..config.access }, ..config };
            RegisterClient::open(|events| zookeeper::open(&config, GROUP, events).expect("ZooKeeper opens"))
        };
        let mut owner = with(USER);
        let version = owner.put(Version::NONE, &record(1));
        for mut other_user in [with("other-user"), client(ensemble)] {
            for outcome in [other_user.try_read(), other_user.swap(version, &record(2))] {
                assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
            }
        }
        assert_eq!(owner.read().map(|found| found.version), Some(version));
    });
}

fn swaps_only_the_version_that_was_read(ensemble: &mut Ensemble) {
    let mut client = client(ensemble);
    assert_eq!(client.read(), None);
    let first = client.put(Version::NONE, &record(1));
    assert_eq!(client.swap(Version::NONE, &record(2)), Outcome::Refused);
    let renewed = Record { renewal: 1, ..record(1) };
    let second = client.put(first, &renewed);
    assert!(second > first && first > Version::NONE, "{first:?} {second:?}");
    for stale in [Version::NONE, first, Version(second.0 + 1), Version(u64::MAX)] {
        let outcome = client.swap(stale, &record(2));
        assert!(matches!(outcome, Outcome::Refused | Outcome::Failed(_)), "{stale:?}: {outcome:?}");
    }
    let found = client.read().expect("the record is there");
    assert_eq!((found.version, found.record), (second, renewed));
}

fn counts_each_swap_of_two_writers_once(ensemble: &mut Ensemble) {
    client(ensemble).put(Version::NONE, &record(1));
    let writers = [1, 2].map(|node| {
        let mut client = client(ensemble);
        thread::spawn(move || client.increment_until(node, SWAPS))
    });
    let unknown = writers.map(|writer| writer.join().expect("the writer counts"));
    assert_eq!(unknown, [0, 0]);
    assert_eq!(client(ensemble).read().map(|found| found.record.renewal), Some(2 * SWAPS));
}

fn notifies_each_watcher_of_the_newest_record(ensemble: &mut Ensemble) {
    let mut writer = client(ensemble);
    let mut watchers = [client(ensemble), client(ensemble)];
    watchers.iter_mut().for_each(RegisterClient::watch);
    for watcher in &mut watchers {
        assert_eq!(watcher.wait_for_change(|_| true), None, "the watch reports that there is no record yet");
    }
    let mut version = writer.put(Version::NONE, &record(1));
    for renewal in 1..=20 {
        version = writer.put(version, &Record { renewal, ..record(1) });
    }
    for watcher in &mut watchers {
        let mut last = Version::NONE;
        watcher.wait_for_change(|found| {
            let found = found.expect("the record isn't removed").version;
            assert!(found > last, "{found:?} after {last:?}");
            last = found;
            found == version
        });
    }
    // A watch that starts late is notified of the present record.
    let mut late = client(ensemble);
    late.watch();
    assert_eq!(late.wait_for_change(|_| true).map(|found| found.version), Some(version));
}

fn continues_when_a_node_dies_or_hangs(ensemble: &mut Ensemble) {
    let mut client = client(ensemble);
    client.put(Version::NONE, &record(1));
    let mut count = 0;
    // Each node in turn, so that both the node of the client's connection and the store's leader are affected.
    for node in 0..ensemble.count() {
        ensemble.kill(node);
        client.increment_until(1, SWAPS);
        ensemble.restart(node);
        ensemble.await_serving();
        ensemble.pause(node);
        client.increment_until(1, SWAPS);
        ensemble.resume(node);
        count += 2 * SWAPS;
        assert_eq!(client.read().map(|found| found.record.renewal), Some(count));
    }
}

fn swaps_nothing_without_a_majority_and_recovers(ensemble: &mut Ensemble) {
    let mut client = client(ensemble);
    let version = client.put(Version::NONE, &record(1));
    ensemble.kill(0);
    ensemble.kill(1);
    for renewal in 1..=5 {
        let outcome = client.swap(version, &Record { renewal, ..record(1) });
        assert!(matches!(outcome, Outcome::Unknown(_) | Outcome::Failed(_)), "{outcome:?}");
    }
    client.await_link(StoreLink::InDoubt);
    ensemble.restart(0);
    ensemble.restart(1);
    client.increment_until(1, SWAPS);
    client.await_link(StoreLink::Up);
}

fn never_applies_a_lost_swap_late(ensemble: &mut Ensemble) {
    let mut client = client(ensemble);
    let mut version = client.put(Version::NONE, &record(1));
    for round in 1..=5 {
        // All nodes, since the client may be connected to any of them after a reconnect.
        (0..ensemble.count()).for_each(|node| ensemble.pause(node));
        let lost = Record { renewal: round, ..record(7) };
        let outcome = client.swap(version, &lost);
        assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
        (0..ensemble.count()).for_each(|node| ensemble.resume(node));
        // The swap took effect or not; in neither case may it take effect after a later one.
        let found = client.read().expect("the record is there");
        assert!(found.version == version || found.record == lost, "{found:?}");
        let next = Record { renewal: round, ..record(1) };
        version = loop {
            let found = client.read().expect("the record is there");
            if let Outcome::Swapped(version) = client.swap(found.version, &next) {
                break version;
            }
        };
        for _ in 0..20 {
            assert_eq!(client.read().map(|found| found.record), Some(next.clone()));
        }
    }
}

fn shows_the_old_record_when_restored_from_a_backup(ensemble: &mut Ensemble) {
    let empty = ensemble.back_up();
    let mut first = client(ensemble);
    let old = first.put(Version::NONE, &record(1));
    drop(first);
    let backup = ensemble.back_up();
    let (mut writer, mut watcher) = (client(ensemble), client(ensemble));
    watcher.watch();
    let mut version = old;
    for renewal in 1..=5 {
        version = writer.put(version, &Record { renewal, ..record(1) });
    }
    watcher.wait_for_change(|found| found.is_some_and(|found| found.version == version));
    ensemble.restore(&backup);
    watcher.wait_for_change(|found| found.is_some_and(|found| found.record.renewal == 0));
    assert_eq!(writer.read().map(|found| found.record), Some(record(1)));
    assert_eq!(writer.swap(version, &record(2)), Outcome::Refused);
    ensemble.restore(&empty);
    assert_eq!(watcher.wait_for_change(|found| found.is_none()), None);
    assert_eq!(writer.read(), None);
}

fn lets_a_sentinel_release_a_dead_holder(ensemble: &mut Ensemble) {
    let held = record(1);
    let dead = held.holder.clone().expect("it is held");
    let later = Member { incarnation: Incarnation(dead.incarnation.0 + 1), ..dead.clone() };
    let mut client = client(ensemble);
    client.put(Version::NONE, &held);
    let place = match ensemble.store() {
        Store::ZooKeeper => RecordLocation::ZooKeeper(zookeeper_config(ensemble)),
        Store::Etcd | Store::EtcdTls | Store::EtcdPassword => RecordLocation::Etcd(etcd_config(ensemble)),
    };
    for (member, marked, left) in [
        (later, ReleaseResult::NotHeld, held.clone()),
        (dead, ReleaseResult::Released, Record { holder: None, ..held }),
    ] {
        let (sender, events) = mpsc::channel();
        // As a sentinel does: opens the register only when needed, and sends a request at once.
        let mut register =
            mdgw_stores::open(&place, GROUP, Arc::new(move |event| drop(sender.send(event)))).expect("it opens");
        assert_eq!(release_on_behalf(&mut *register, &events, &member, TEST_TIMEOUT), marked);
        assert_eq!(client.read().map(|found| found.record), Some(left));
    }
}

/// Runs `test` where the store is installed.
fn with_store(store: Store, count: usize, test: impl FnOnce(&mut Ensemble)) {
    let name = thread::current().name().unwrap_or_default().to_owned();
    if store.is_installed(&name) {
        test(&mut Ensemble::start(store, count));
    }
}

fn client(ensemble: &Ensemble) -> RegisterClient {
    match ensemble.store() {
        Store::ZooKeeper => {
            let config = zookeeper_config(ensemble);
            RegisterClient::open(|events| zookeeper::open(&config, GROUP, events).expect("ZooKeeper opens"))
        }
        Store::Etcd | Store::EtcdTls | Store::EtcdPassword => {
            let config = etcd_config(ensemble);
            RegisterClient::open(|events| etcd::open(&config, GROUP, events).expect("etcd opens"))
        }
    }
}

fn etcd_config(ensemble: &Ensemble) -> EtcdConfig {
    EtcdConfig { access: access(ensemble), prefix: PREFIX.to_owned(), tls: None }
}

fn zookeeper_config(ensemble: &Ensemble) -> ZooKeeperConfig {
    ZooKeeperConfig { access: access(ensemble), path: "/mdgw".to_owned(), mode: ZooKeeperMode::Lease }
}

fn access(ensemble: &Ensemble) -> StoreAccess {
    let endpoints = ensemble.addresses().iter().map(ToString::to_string).collect();
    StoreAccess { endpoints, request_timeout: REQUEST_TIMEOUT, login: None }
}

const GROUP: GroupId = GroupId(1);
const PREFIX: &str = "/mdgw/";
const SWAPS: u64 = 50;
/// Longer than a password check, shorter than a test.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
