//! `tests/RELIABILITY.md`: a row for each fault case, and commands that exist. That its checks are functions is checked with
//! those of the other documents (`safety.rs`).

use std::collections::BTreeSet;

use mdgw_tests::testbed::faults::CASES;

use super::{assert_none, read};

const DOCUMENT: &str = "tests/RELIABILITY.md";
/// Cells of a row about a fault, with the empty ones before and after.
const CELLS: usize = 8;

#[test]
fn each_fault_case_has_one_row() {
    let text = read(DOCUMENT);
    let rows: Vec<_> = cases(&text).collect();
    let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
    assert_none(known.iter().filter(|name| rows.iter().filter(|row| row == name).count() != 1));
    assert_none(rows.iter().filter(|row| !known.contains(row)));

    let control = "| `--case gone` | x |\n| `--case NAME` | `cargo run` |\n`--case kill`";
    assert_eq!(cases(control).collect::<Vec<_>>(), ["gone"]);
}

#[test]
fn each_row_names_a_check_or_says_that_there_is_none() {
    let text = read(DOCUMENT);
    assert!(text.lines().filter(|line| is_fault_row(line)).count() > CASES.len() + 30);
    assert_none(rows_without_check(&text));

    let control = "| fault | how | suite | long | promise | seen |\n| a | b | `e2e x a_check` | d | e | f |\n| a | b | often | d | e | f |";
    assert_eq!(rows_without_check(control).collect::<Vec<_>>(), ["| a | b | often | d | e | f |"]);
}

#[test]
fn each_command_names_a_suite_that_exists() {
    let manifests = ["tests", "tests/model", "tests/simulation"]
        .map(|package| -> toml::Table { read(&format!("{package}/Cargo.toml")).parse().expect("a manifest") });
    let tests = manifests.iter().flat_map(|manifest| manifest["test"].as_array().expect("tests"));
    let known: BTreeSet<_> = tests.map(|test| test["name"].as_str().expect("a name")).collect();
    let text = read(DOCUMENT);
    assert!(suites(&text).count() > 30);
    assert_none(suites(&text).filter(|suite| !known.contains(suite)));

    let control = "`e2e gone a_check`, `cargo test -p x --test lost -- y`, `cargo test --test SUITE`, `unit a_check`";
    assert_eq!(suites(control).collect::<Vec<_>>(), ["gone", "lost"]);
}

/// Names of the cases that have a row.
fn cases(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("| `--case ")?.split('`').next());
    names.filter(|name| *name != "NAME")
}

/// A row of a table of faults: not its head, nor the line under it.
fn is_fault_row(line: &str) -> bool {
    line.starts_with("| ")
        && line.split(" | ").count() == CELLS - 2
        && !line.starts_with("| fault ")
        && !line.contains("---")
}

fn rows_without_check(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| is_fault_row(line)).filter(|line| {
        let suite = line.split(" | ").nth(2).unwrap_or_default();
        !suite.starts_with('`') && suite != "none"
    })
}

/// Test programs that a document names, in commands and in names of checks.
fn suites(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter_map(|code| {
        let after = code.strip_prefix("e2e ").or_else(|| code.split_once("--test ").map(|(_, after)| after))?;
        after.split(' ').next().filter(|suite| *suite != "SUITE")
    })
}
