//! The receiver in Python reads the vectors.

use std::{fs, process::Command};

use mdgw_tests::skip::skip;

use super::{data_files, packets, random_streams, records, streams};

#[test]
fn the_python_receiver_reads_all_vectors() {
    for file in [packets::FILE, streams::FILE, streams::GROUP_FILE, records::FILE] {
        let expected = data_files::read(file);
        let Some(found) = vectors("the_python_receiver_reads_all_vectors", &data_files::path(file)) else { return };
        data_files::assert_same_text(file, &found, &expected);
    }
}

#[test]
fn the_python_receiver_agrees_on_random_streams() {
    assert_agrees("the_python_receiver_agrees_on_random_streams", &random_streams::text(150));
}

#[test]
fn the_python_receiver_agrees_on_mutated_vectors() {
    assert_agrees("the_python_receiver_agrees_on_mutated_vectors", &random_streams::mutated_vectors(300));
}

#[test]
fn the_python_receiver_agrees_on_mutated_vectors_of_the_snapshot_group() {
    let test = "the_python_receiver_agrees_on_mutated_vectors_of_the_snapshot_group";
    assert_agrees(test, &random_streams::mutated_group_vectors(300));
}

fn assert_agrees(test: &str, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("streams.txt");
    fs::write(&path, expected).unwrap();
    let Some(found) = vectors(test, &path) else { return };
    // A malformed packet that repeats what was delivered counts as a duplicate.
    let without_refusals =
        |text: &str| text.lines().filter(|line| !line.starts_with("> refused ")).collect::<Vec<_>>().join("\n");
    data_files::assert_same_text(test, &without_refusals(&found), &without_refusals(expected));
}

/// Sockets under a flood, rival epochs, and thousands of damaged packets.
#[test]
fn the_python_subscriber_survives_a_flood_and_damage() {
    run("the_python_subscriber_survives_a_flood_and_damage", "tests/consumers/subscriber.py");
}

/// What the vectors of the snapshot group do not hold: times, bounds, epochs, a service beside the group, and the group's socket.
#[test]
fn the_python_receiver_keeps_the_rules_of_the_snapshot_group() {
    run("the_python_receiver_keeps_the_rules_of_the_snapshot_group", "tests/consumers/snapshot_group.py");
}

/// Runs a program of tests, which ends with an error if one of them fails.
fn run(test: &str, program: &str) {
    let Ok(output) = Command::new("python3").arg(data_files::repository_path(program)).output() else {
        return skip(test, "python3 is not installed");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A file of vectors with what the receiver makes of it.
fn vectors(test: &str, path: &std::path::Path) -> Option<String> {
    let program = data_files::repository_path("tests/consumers/vectors.py");
    let Ok(output) = Command::new("python3").arg(program).arg(path).output() else {
        skip(test, "python3 is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}
