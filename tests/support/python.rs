//! Third-party readers, as Python packages.

use std::{env, path::PathBuf};

use crate::captures::print_to_stderr;

/// The Python interpreter that `MDGW_PYTHON` names, with the packages of `tests/requirements.txt`; `tests/run` installs it.
/// `None`, with a message on standard error, without one: the test is then skipped.
#[must_use]
pub fn python(test: &str) -> Option<PathBuf> {
    let python = env::var_os("MDGW_PYTHON").map(PathBuf::from);
    if python.is_none() {
        print_to_stderr(&format!(
            "SKIPPED: {test}: no Python with the packages of tests/requirements.txt (set MDGW_PYTHON)"
        ));
    }
    python
}
