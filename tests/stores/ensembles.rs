//! Tests of the test stores themselves: nodes, health checks, failures.

use std::{
    fs,
    net::{SocketAddrV4, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use mdgw_tests::{
    process::TEST_TIMEOUT,
    stores::{Certificate, Ensemble, Store},
};

#[test]
fn etcd_survives_the_loss_of_its_leader() {
    survives_the_loss_of_its_leader(Store::Etcd);
}

#[test]
fn zookeeper_survives_the_loss_of_its_leader() {
    survives_the_loss_of_its_leader(Store::ZooKeeper);
}

#[test]
fn a_panicking_test_leaves_no_store_behind() {
    if !Store::EtcdTls.is_installed("a_panicking_test_leaves_no_store_behind") {
        return;
    }
    let (sender, receiver) = std::sync::mpsc::channel::<(PathBuf, Vec<SocketAddrV4>)>();
    let failing = thread::spawn(move || {
        let ensemble = Ensemble::start(Store::EtcdTls, 1);
        let certificate = ensemble.certificate(Certificate::Client);
        assert!(fs::read_to_string(&certificate).is_ok_and(|text| text.contains("BEGIN CERTIFICATE")));
        sender.send((certificate, ensemble.addresses())).expect("the test listens");
        panic!("as a failing test does");
    });
    let (certificate, addresses) = receiver.recv().expect("the store starts");
    assert!(failing.join().is_err());
    assert!(!certificate.parent().is_some_and(Path::exists), "the directory was not removed");
    assert!(addresses.iter().all(|address| TcpStream::connect(address).is_err()), "it runs");
}

fn survives_the_loss_of_its_leader(store: Store) {
    if !store.is_installed("survives_the_loss_of_its_leader") {
        return;
    }
    let mut ensemble = Ensemble::start(store, 3);
    let old = ensemble.leader();
    ensemble.kill(old);
    ensemble.await_serving();
    assert_ne!(ensemble.leader(), old);
    ensemble.restart(old);
    ensemble.await_serving();
    let new = ensemble.leader();
    // A paused node keeps its connections and answers nothing; the others elect a leader.
    ensemble.pause(new);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while ensemble.leader() == new {
        assert!(Instant::now() < deadline, "a stopped node still leads");
        thread::sleep(Duration::from_millis(20));
    }
    ensemble.resume(new);
    ensemble.await_serving();
}
