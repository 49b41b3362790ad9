//! What a test does where it cannot run: the only place in which that is decided. Unit tests of other packages include this file.

#![allow(unreachable_pub, dead_code, reason = "a package that includes this file may need one of the functions only")]

use std::{
    env,
    io::{self, Write as _},
};

/// Reports on standard error that `test` is skipped, since this process lacks a right, a program or a feature of the kernel: `why`. With
/// `MDGW_NO_SKIP=1` that is a failure. `tests/run` sets it where it runs as root.
///
/// # Panics
/// With `MDGW_NO_SKIP=1`.
pub fn skip(test: &str, why: &str) {
    report(test, why, env::var_os("MDGW_NO_SKIP").is_some_and(|value| value == "1"));
}

/// As [`skip`], for a test that needs the real captures. They are not part of the repository, so a clone without them is no failure;
/// continuous integration (`CI` is set) has them.
///
/// # Panics
/// Where `CI` is set.
pub fn skip_without_captures(test: &str, why: &str) {
    report(test, why, env::var_os("CI").is_some());
}

fn report(test: &str, why: &str, is_failure: bool) {
    assert!(
        !is_failure,
        "{test} would be skipped, which is a failure here (MDGW_NO_SKIP=1, or CI for captures): {why}"
    );
    // Past the test harness, which hides the output of passing tests.
    writeln!(io::stderr(), "SKIPPED: {test}: {why}").expect("standard error takes a line");
}

#[cfg(test)]
mod tests {
    use std::panic;

    use super::report;

    #[test]
    fn a_skip_is_a_failure_where_it_is_not_allowed() {
        let failed = panic::catch_unwind(|| report("a_test", "no rights", true)).unwrap_err();
        let text = failed.downcast::<String>().expect("a message");
        assert!(text.contains("a_test") && text.contains("no rights"), "{text}");
    }
}
