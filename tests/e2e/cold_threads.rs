//! On which cores the threads of a gateway run.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, fs};

use mdgw_sys::affinity::usable_cores;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal, wait_until},
    skip::skip,
};

/// A gateway whose pool is pinned to these cores, and what `mdgw check` prints about it.
fn pinned_gateway(fixture: &GatewayFixture, cores: &[usize]) -> (MdgwProcess, String) {
    let config = fixture.config_text(&GatewayOptions::itch()).replacen("threads = 2", &format!("cores = {cores:?}"), 1);
    let path = fixture.path("gateway.toml");
    fs::write(&path, config).unwrap();
    let checked = process::run(["check", text(&path)]).expect_code(0).stdout;
    let gateway = process::start(["run", text(&path)]);
    gateway.wait_for_stderr("gateway running");
    (gateway, checked)
}

/// Name of each thread, and the cores on which it may run.
fn threads_of(gateway: &MdgwProcess) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned()).unwrap()
    };
    statuses.map(|status| (field(&status, "Name:"), field(&status, "Cpus_allowed_list:"))).collect()
}

#[test]
fn cold_threads_keep_off_the_cores_of_pools() {
    let usable = usable_cores();
    let [.., other, last] = *usable else {
        return skip("cold_threads_keep_off_the_cores_of_pools", "this process may use one core only");
    };
    // All cores but one belong to the pool.
    let pool: Vec<usize> = usable.iter().copied().filter(|core| *core != other).collect();
    let fixture = GatewayFixture::new();
    let (gateway, checked) = pinned_gateway(&fixture, &pool);
    assert!(checked.contains(&format!("cold threads on cores {other}\n")), "{checked}");
    wait_until("the threads of the pool are pinned, and the log's maintenance runs", || {
        let threads = threads_of(&gateway);
        threads.values().any(|cores| *cores == last.to_string()) && threads.contains_key("mdgw-maint")
    });
    let threads = threads_of(&gateway);
    let (of_pool, cold): (Vec<_>, Vec<_>) = threads.iter().partition(|(name, _)| name.starts_with("main-"));
    assert_eq!(of_pool.len(), pool.len(), "{threads:?}");
    for ((_, cores), core) in of_pool.into_iter().zip(&pool) {
        assert_eq!(*cores, core.to_string(), "{threads:?}");
    }
    assert!(cold.len() >= 2, "{threads:?}");
    assert!(cold.iter().all(|(_, cores)| **cores == other.to_string()), "{threads:?}");
    let stopped = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(stopped.stderr.contains("cold threads keep off the pools' cores"), "{}", stopped.stderr);
}

#[test]
fn a_gateway_without_a_core_for_cold_threads_warns_and_runs() {
    let usable = usable_cores();
    let fixture = GatewayFixture::new();
    let (gateway, checked) = pinned_gateway(&fixture, &usable);
    assert!(checked.contains("warning: no core is left for cold threads"), "{checked}");
    let threads = threads_of(&gateway);
    let cold = threads.iter().find(|(name, _)| !name.starts_with("main-")).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.contains(&format!("Cpus_allowed_list:\t{}\n", cold.1)), "{threads:?}");
    let stopped = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(stopped.stderr.contains("no core is left for cold threads"), "{}", stopped.stderr);
}
