//! Third-party readers, as Python packages.

use std::{env, path::PathBuf};

use crate::captures::print_to_stderr;

/// The Python that `MDGW_PYTHON` names, with the packages of `tests/requirements.txt`; the test command has made it. `None`, and
/// a line that says so, where there is none: the test has nobody to read with then.
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
