//! No code of the data path logs. Formatting takes memory and time, and a full queue of the log would lose what was formatted.

use super::{SourceFile, assert_none, sources};

/// Packages that the threads of pools run.
const HOT: [&str; 6] =
    ["feeds/src/", "gateway/engine/", "gateway/publog/", "gateway/sys/", "gateway/telemetry/", "gateway/wire/"];

/// Files of these packages that log nevertheless, and on which thread.
const ALLOWED: [(&str, &str); 4] = [
    ("gateway/engine/src/handle_set/backend_choice.rs", "the main thread, at the start"),
    ("gateway/sys/src/kernel_fence/bpf.rs", "the main thread, at the start"),
    ("gateway/sys/src/sockets/membership.rs", "a cold thread of its own"),
    ("gateway/sys/src/sockets/receive.rs", "the main thread, when a line is opened"),
];

#[test]
fn the_data_path_does_not_log() {
    assert_none(findings(&sources()));

    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let mut control: Vec<_> = ALLOWED.iter().map(|(path, _)| file(path, "tracing::info!(\"x\")")).collect();
    control.push(file("gateway/engine/src/pipeline.rs", "fn f() { tracing::warn!(\"x\") }"));
    control.push(file("feeds/src/channel.rs", "use tracing::warn;"));
    control.push(file("gateway/wire/src/arbiter.rs", "fn f() { eprintln!(\"x\") }"));
    control.push(file("gateway/pair/src/lib.rs", "tracing::warn!(\"x\")"));
    control.push(file("gateway/sys/src/alarm.rs", "//! a tracing call"));
    control[0].text.clear();
    assert_eq!(
        findings(&control).collect::<Vec<_>>(),
        [
            "gateway/engine/src/pipeline.rs logs",
            "feeds/src/channel.rs logs",
            "gateway/wire/src/arbiter.rs logs",
            "gateway/engine/src/handle_set/backend_choice.rs no longer logs",
        ]
    );
}

fn findings(sources: &[SourceFile]) -> impl Iterator<Item = String> {
    let logs = |file: &&SourceFile| {
        ["tracing::", "println!", "log::"].iter().any(|call| {
            let is_call = |before: &str| !before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
            file.text.match_indices(call).any(|(at, _)| is_call(&file.text[..at]) || *call == "println!")
        })
    };
    let is_test = |file: &&SourceFile| file.path.contains("/tests");
    let of_hot = |file: &&SourceFile| HOT.iter().any(|package| file.path.starts_with(package)) && !is_test(file);
    let logging: Vec<_> = sources.iter().filter(of_hot).filter(logs).map(|file| file.path.clone()).collect();
    let unused = ALLOWED.iter().filter(|(path, _)| !logging.iter().any(|found| found == path));
    let unused: Vec<_> = unused.map(|(path, _)| format!("{path} no longer logs")).collect();
    let unexpected = logging.into_iter().filter(|path| !ALLOWED.iter().any(|(allowed, _)| allowed == path));
    unexpected.map(|path| format!("{path} logs")).chain(unused)
}
