//! Third-party readers, as Python packages.

use std::{env, path::PathBuf};

use crate::skip::skip;

/// The Python interpreter that `MDGW_PYTHON` names, with the packages of `tests/requirements.txt`; `tests/run` installs it.
/// `None`, with a message on standard error, without one: the test is then skipped.
#[must_use]
pub fn python(test: &str) -> Option<PathBuf> {
    let python = env::var_os("MDGW_PYTHON").map(PathBuf::from);
    if python.is_none() {
        skip(test, "no Python with the packages of tests/requirements.txt (set MDGW_PYTHON)");
    }
    python
}
