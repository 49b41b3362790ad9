//! Linked packages: their licences, and those that a first build must do without.

use std::{env, process::Command};

use super::{assert_none, read, root};

#[test]
fn licences_of_linked_packages_are_allowed() {
    let deny: toml::Table = read(".deny.toml").parse().expect("the deny list is TOML");
    let allow = deny["licenses"]["allow"].as_array().expect("it lists licences");
    let allow: Vec<&str> = allow.iter().filter_map(toml::Value::as_str).collect();
    let packages = linked_packages(&["--all-features"]);
    assert!(packages.len() > 50, "only {} packages", packages.len());
    let refused = packages.iter().filter(|(_, licence)| !Licence::of(licence).is_some_and(|all| all.allowed(&allow)));
    assert_none(refused.map(|(name, licence)| format!("{name}: {licence:?}")));

    let allowed = |text| Licence::of(text).is_some_and(|licence| licence.allowed(&["MIT", "Zlib"]));
    for text in ["MIT", "GPL-3.0-only OR MIT", "Apache-2.0/MIT", "(MIT OR X) AND Zlib", "X WITH Y OR MIT"] {
        assert!(allowed(text), "{text}");
    }
    for text in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT", "MIT WITH Y", "MIT Zlib"] {
        assert!(!allowed(text), "{text}");
    }
}

#[test]
fn the_first_command_needs_no_protocol_compiler() {
    // Store clients and their build dependencies are not built by default.
    let found = |features: &[&str]| linked_packages(features).into_iter().any(|(name, _)| name == "prost-build");
    assert!(!found(&[]), "linked by default");
    assert!(found(&["--features", "mdgw/etcd"]));
}

/// Name and licence of every package that the workspace links here with these features, our own left out.
fn linked_packages(features: &[&str]) -> Vec<(String, String)> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &target])
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo can be run");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("cargo prints JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().expect("cargo lists packages").iter();
    let foreign = packages.filter(|package| !package["source"].is_null());
    foreign.map(|package| (text(&package["name"]), text(&package["license"]))).collect()
}

/// A licence expression (SPDX; a slash is an old way to say "or").
#[derive(Debug)]
enum Licence {
    Name(String),
    Any(Vec<Self>),
    All(Vec<Self>),
}

impl Licence {
    /// Parses an expression; `None` if the text is not a valid expression.
    fn of(text: &str) -> Option<Self> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut words = spaced.split_whitespace().peekable();
        let licence = Self::parse_or(&mut words)?;
        words.next().is_none().then_some(licence)
    }

    fn parse_or<'t>(words: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>) -> Option<Self> {
        let mut parts = vec![Self::all(words)?];
        while words.next_if_eq(&"OR").is_some() {
            parts.push(Self::all(words)?);
        }
        Some(Self::Any(parts))
    }

    fn all<'t>(words: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>) -> Option<Self> {
        let mut parts = vec![Self::one(words)?];
        while words.next_if_eq(&"AND").is_some() {
            parts.push(Self::one(words)?);
        }
        Some(Self::All(parts))
    }

    fn one<'t>(words: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>) -> Option<Self> {
        match words.next()? {
            "(" => {
                let inner = Self::parse_or(words)?;
                words.next_if_eq(&")").map(|_| inner)
            }
            "OR" | "AND" | "WITH" | ")" => None,
            name if words.next_if_eq(&"WITH").is_some() => Some(Self::Name(format!("{name} WITH {}", words.next()?))),
            name => Some(Self::Name(name.to_owned())),
        }
    }

    fn allowed(&self, allow: &[&str]) -> bool {
        match self {
            Self::Name(name) => allow.contains(&name.as_str()),
            Self::Any(parts) => parts.iter().any(|part| part.allowed(allow)),
            Self::All(parts) => parts.iter().all(|part| part.allowed(allow)),
        }
    }
}
