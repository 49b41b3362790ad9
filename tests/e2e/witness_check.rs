//! `mdgw witness --check`: what a witness would do, or what is wrong on its host, before it is started.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use mdgw_tests::{
    gateway_fixture::{free_address, text, write_key},
    process::{self, Signal},
    tmpfs::TmpfsMount,
};

/// It would be gone for good: systemd takes a death by SIGHUP for a stop.
#[test]
fn a_witness_outlives_a_hang_up() {
    let folder = tempfile::tempdir().unwrap();
    let [config, key, votes] = ["witness.toml", "key", "votes"].map(|name| folder.path().join(name));
    write_key(&key);
    let config_text = format!(
        "node = 3\nlisten = \"{}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n[[peer]]\nnode = 1\naddress = \"127.0.0.2:27500\"\n\
         [[peer]]\nnode = 2\naddress = \"127.0.0.3:27500\"\n",
        free_address(),
        key.display(),
        votes.display(),
    );
    fs::write(&config, config_text).unwrap();
    let witness = process::start(["witness", text(&config)]);
    witness.wait_for_stderr("witness: ready");
    witness.signal(Signal::HangUp);
    let _ = witness.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn check_reports_the_plan_or_names_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let [config, key, votes] = ["witness.toml", "key", "votes"].map(|name| folder.path().join(name));
    write_key(&key);
    let listen = free_address().to_string();
    let valid_config = format!(
        "node = 3\nlisten = \"{listen}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n\
         [[peer]]\nnode = 1\naddress = \"127.0.0.2:27500\"\n[[peer]]\nnode = 2\naddress = \"127.0.0.3:27500\"\n",
        key.display(),
        votes.display(),
    );
    let check = |text_of_config: &str| {
        fs::write(&config, text_of_config).unwrap();
        process::run(["witness", "--check", text(&config)])
    };
    let checked = check(&valid_config).expect_code(0);
    for part in [listen.as_str(), "127.0.0.2:27500", "127.0.0.3:27500", text(&votes)] {
        assert!(checked.stdout.contains(part), "no {part} in\n{}", checked.stdout);
    }
    assert!(!votes.exists(), "a check creates no files");
    if let Some(mounted) = TmpfsMount::new("a witness on a full file system", votes.clone(), "64k") {
        mounted.fill();
        let refused = check(&valid_config);
        assert!(refused.code != Some(0) && refused.stderr.contains("No space left"), "{}", refused.stderr);
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 1, "the filler alone");
    }
    fs::remove_dir(&votes).unwrap_or_default();

    // An address that no interface here has, a directory below a file, a missing key.
    for (from, to, named) in [
        (listen.as_str(), "192.0.2.7:27500", "192.0.2.7:27500"),
        (text(&votes), &format!("{}/votes", key.display()), "votes"),
        (text(&key), "/nonexistent/key", "/nonexistent/key"),
    ] {
        let refused = check(&valid_config.replacen(from, to, 1));
        assert!(
            refused.code != Some(0) && refused.stderr.contains(named),
            "{to}: {}{}",
            refused.stdout,
            refused.stderr
        );
        assert!(refused.stdout.is_empty(), "{}", refused.stdout);
    }
}
