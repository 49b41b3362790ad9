//! The reference of all configuration keys, `ops/guide/configuration.md`. It is made from the tables here, and the
//! tests compare it with the resolver. For tests alone; `UPDATE=1` writes the document.
//!
//! Bounds, defaults and units of numbers come from [`limits`]. Everything else is checked against the resolver: which
//! keys it knows, which bounds and names it refuses, which defaults are in force.

use std::fmt::Write as _;

use super::{
    limits,
    limits::Bound,
    reload::{RELOADABLE, REVISION},
};

mod tables;
mod tests;

/// One table of the file.
struct Table {
    /// Header as written in the file, with its brackets.
    header: &'static str,
    about: &'static str,
    keys: &'static [Key],
}

struct Key {
    name: &'static str,
    allowed: Allowed,
    default: Absent,
    effect: &'static str,
}

/// Values that a key accepts.
#[derive(Clone, Copy)]
enum Allowed {
    Number(Bound),
    OneOf(&'static [&'static str]),
    Bool,
    /// Any other value; the text describes it.
    Text(&'static str),
}

/// The value in force where a key is absent.
#[derive(Clone, Copy)]
enum Absent {
    /// The key is required.
    Required,
    /// The default of the number's bound.
    OfBound,
    /// This value, as TOML.
    Value(&'static str),
    /// No fixed value; the text describes what is in force instead.
    Depends(&'static str),
}

impl Table {
    /// Path of the table: the header without brackets.
    fn path(&self) -> &'static str {
        self.header.trim_matches(['[', ']'])
    }
}

impl Key {
    /// The fixed default, as TOML.
    fn fixed_default(&self) -> Option<String> {
        match (self.default, self.allowed) {
            (Absent::OfBound, Allowed::Number(bound)) => Some(bound.default.to_string()),
            (Absent::Value(value), _) => Some(value.to_owned()),
            _ => None,
        }
    }
}

/// The text of `ops/guide/configuration.md`.
fn markdown() -> String {
    let mut text = "# Configuration keys\n\n\
        Made from the code by `UPDATE=1 cargo test -p mdgw-runtime --lib config::reference`: change \
        `gateway/runtime/src/config/reference/tables.rs`, not this page.\n\n\
        A configuration is a TOML file. Unknown keys are refused. Times and sizes carry their unit in their name.\n\
        [`ops/config/mdgw.toml`](../config/mdgw.toml) is a commented example. `mdgw check FILE --all` prints every setting in force.\n\n\
        - [What a reload may change](#what-a-reload-may-change)\n"
        .to_owned();
    for table in &tables::TABLES {
        let anchor: String = table.path().chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let _ = writeln!(text, "- [`{}`](#{anchor})", table.header);
    }
    text.push_str(
        "\n## What a reload may change\n`mdgw reload FILE` makes the gateway read its file again, waits, and prints what changed, or what the gateway refused with the reasons (exit code 1; with `--json`, as `{\"refused\":[\"REASON\"]}` on standard output). It waits for `--timeout`, 110 s by default: a reload that builds large books can take long. After five seconds without an answer it says so; at the end it exits with code 3, and the gateway [may still carry the reload out](../runbooks/main-thread-stall.md). It finds the gateway by `gateway.control_socket`. \
        SIGHUP does the same, and only the log has the result. A reload applies these changes:\n\n\
        - whole channels: a `[[channel]]` with its lines is added or removed ([what happens](upgrade.md#channels-and-output-lines-without-a-restart))\n\
        - whole output lines: an `[[output.line]]` is added or removed. A line is the same if its `address` and `interface` are\n",
    );
    for key in RELOADABLE {
        let _ = writeln!(text, "- `{key}`{}", if key == REVISION { ": may be raised" } else { "" });
    }
    text.push_str(
        "\nAny other change is refused and needs a restart; the answer and the log name each key and the reason. A reload is applied as a whole, or not at all: with one refused key the configuration in force stays. \
        Files with keys, passwords and certificates are read at the start only. While the content of a file with a key or password differs from that at the start, a reload is refused and names the file; a renewed certificate is no obstacle. \
        A reload is refused too while the group or others have access to a file with a key or password, since the next start would be. \
        A file with a key or password that is no longer there is a warning in the answer and no obstacle, since some hosts have it only while a process starts. \
        A reload is refused if the channels that it adds may take more memory than [is available](install.md#memory). \
        The gateway uses none of the tables `[live]`, `[journal]`, `[nats]` and `[mirror]`, so a change there is no obstacle; `mdgw live`, `mdgw journal`, `mdgw nats` and `mdgw mirror` read them when they start, and `mdgw live` the file that `live.key_file` names again at `mdgw reload --live FILE` (by `live.control_socket`) or on SIGHUP.\n",
    );
    for table in &tables::TABLES {
        let _ = write!(
            text,
            "\n## `{}`\n{}\n\n| key | default | allowed | unit | effect |\n| --- | --- | --- | --- | --- |\n",
            table.header, table.about
        );
        for key in table.keys {
            let default = match (key.default, key.fixed_default()) {
                (_, Some(value)) => format!("`{value}`"),
                (Absent::Depends(words), None) => words.to_owned(),
                _ => "required".to_owned(),
            };
            let (allowed, unit) = match key.allowed {
                Allowed::Number(bound) if bound.max == i64::MAX => (format!("from {}", bound.min), bound.unit),
                Allowed::Number(bound) => (format!("{} to {}", bound.min, bound.max), bound.unit),
                Allowed::OneOf(names) => {
                    (names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", "), "")
                }
                Allowed::Bool => ("`true`, `false`".to_owned(), ""),
                Allowed::Text(words) => (words.to_owned(), ""),
            };
            let _ = writeln!(text, "| `{}` | {default} | {allowed} | {unit} | {} |", key.name, key.effect);
        }
    }
    text
}
