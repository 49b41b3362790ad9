//! The receiver in C: compiled without a warning, and with sanitizers; reads the vectors.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mdgw_tests::skip::skip;

use super::{data_files, packets, random_streams, records, streams};

/// Flags under which the receiver must compile.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-std=c11", "-O2"];
/// The same with sanitizers, of which any finding ends the program.
const SANITIZED: [&str; 4] = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn the_c_receiver_reads_all_vectors() {
    for flags in [&[][..], &SANITIZED] {
        let Some(program) = Vectors::compile("the_c_receiver_reads_all_vectors", flags) else { return };
        for file in [packets::FILE, streams::FILE, streams::GROUP_FILE, records::FILE] {
            data_files::assert_same_text(file, &program.run(&data_files::path(file)), &data_files::read(file));
        }
    }
}

#[test]
fn the_c_receiver_agrees_on_random_streams() {
    assert_agrees("the_c_receiver_agrees_on_random_streams", &random_streams::text(300));
}

#[test]
fn the_c_receiver_agrees_on_mutated_vectors() {
    assert_agrees("the_c_receiver_agrees_on_mutated_vectors", &random_streams::mutated_vectors(600));
}

#[test]
fn the_c_receiver_agrees_on_mutated_vectors_of_the_snapshot_group() {
    let test = "the_c_receiver_agrees_on_mutated_vectors_of_the_snapshot_group";
    assert_agrees(test, &random_streams::mutated_group_vectors(400));
}

fn assert_agrees(test: &str, expected: &str) {
    let Some(program) = Vectors::compile(test, &SANITIZED) else { return };
    let path = program.folder.path().join("streams.txt");
    fs::write(&path, expected).unwrap();
    data_files::assert_same_text(test, &program.run(&path), expected);
}

/// Limits of the configuration, and sockets under a flood.
#[test]
fn the_c_subscriber_checks_its_limits_and_survives_a_flood() {
    assert_succeeds("the_c_subscriber_checks_its_limits_and_survives_a_flood", "tests/consumers/subscriber.c");
}

/// Bounds, times and sockets.
#[test]
fn the_c_receiver_keeps_the_rules_of_the_snapshot_group() {
    assert_succeeds("the_c_receiver_keeps_the_rules_of_the_snapshot_group", "tests/consumers/snapshot_group.c");
}

/// Runs a program of checks.
fn assert_succeeds(test: &str, source: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("checks");
    if compile(test, &data_files::repository_path(source), &program, &SANITIZED) {
        let output = Command::new(&program).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_example_compiles_as_its_first_line_says() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_example) = compile_example("the_example_compiles_as_its_first_line_says", folder.path()) else { return };
    let text = fs::read_to_string(data_files::repository_path("gateway/subscriber/c/example.c")).unwrap();
    assert!(text.lines().next().unwrap().contains("cc -std=c11 -O2 -o example example.c mdgw_subscriber.c"));
}

/// The header is one that C++ programs can include.
#[test]
fn the_header_is_valid_in_cpp() {
    let header = data_files::repository_path("gateway/subscriber/c/mdgw_subscriber.h");
    let flags = ["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    match Command::new("c++").args(flags).arg(header).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => skip("the_header_is_valid_in_cpp", "no C++ compiler (c++)"),
    }
}

/// The example program, compiled with sanitizers in that folder. `None`, with a message, without a compiler.
pub(crate) fn compile_example(test: &str, folder: &Path) -> Option<PathBuf> {
    let example = folder.join("example");
    let source = data_files::repository_path("gateway/subscriber/c/example.c");
    compile(test, &source, &example, &SANITIZED).then_some(example)
}

/// The example that reads a log, compiled with sanitizers in that folder. `None`, with a message, without a compiler.
pub(crate) fn compile_log_example(test: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join("log_example");
    let flags = [&SANITIZED[..], &["-I", LOG_READER, LOG_READER_SOURCE]].concat();
    compile(test, &data_files::repository_path("gateway/log-reader/c/log_example.c"), &program, &flags)
        .then_some(program)
}

/// From the root of the repository, where compilers run.
const LOG_READER: &str = "gateway/log-reader/c";
const LOG_READER_SOURCE: &str = "gateway/log-reader/c/mdgw_log.c";

/// The program that prints vectors.
struct Vectors {
    folder: tempfile::TempDir,
}

impl Vectors {
    fn compile(test: &str, flags: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let source = data_files::repository_path("tests/consumers/vectors.c");
        let flags = [flags, &["-D_POSIX_C_SOURCE=200809L"]].concat();
        compile(test, &source, &folder.path().join("vectors"), &flags).then_some(Self { folder })
    }

    fn run(&self, path: &Path) -> String {
        let output = Command::new(self.folder.path().join("vectors")).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Compiles a program with the receiver. Returns `false`, with a message, without a compiler.
fn compile(test: &str, source: &Path, program: &Path, flags: &[&str]) -> bool {
    let receiver = data_files::repository_path("gateway/subscriber/c");
    let mut compiler = Command::new("cc");
    compiler.current_dir(data_files::repository_path(""));
    compiler.args(STRICT).args(flags).arg("-I").arg(&receiver).arg("-o").arg(program);
    let Ok(output) = compiler.arg(source).arg(receiver.join("mdgw_subscriber.c")).output() else {
        skip(test, "no C compiler (cc)");
        return false;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}
