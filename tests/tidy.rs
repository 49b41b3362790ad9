//! What neither the compiler nor clippy sees: where unsafe code may stand, who may know whom, what may be linked, and
//! whether the documents speak of files that exist. Each rule is shown to catch what it is there for.

use std::{
    env, fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use mdgw::config::Resolved;

/// Where unsafe code may stand, and why there. A folder ends in a slash.
const UNSAFE_PLACES: [(&str, &str); 10] = [
    ("feeds/src/book/memory.rs", "advice about memory is a system call"),
    ("feeds/src/book/prefetch.rs", "hints to the cache have no safe form"),
    ("gateway/publog/src/segment.rs", "memory that other processes map"),
    ("gateway/src/engine/claim.rs", "the cell that a claim guards"),
    ("gateway/src/net/batch/", "headers that the kernel writes through"),
    ("gateway/src/net/epoll/", "system calls"),
    ("gateway/src/net/ring.rs", "requests whose memory the kernel holds"),
    ("gateway/src/net/ring/", "requests whose memory the kernel holds"),
    ("gateway/src/sys/", "system calls"),
    ("tests/support/counting_allocator.rs", "an allocator is an unsafe trait"),
];

/// For each of our packages, which others of ours it may know.
const KNOWS: [(&str, &[&str]); 6] = [
    ("feeds/Cargo.toml", &[]),
    ("gateway/publog/Cargo.toml", &[]),
    ("gateway/subscriber/Cargo.toml", &["mdgw-feeds", "mdgw-publog"]),
    ("gateway/Cargo.toml", &["mdgw-feeds", "mdgw-publog", "mdgw-subscriber"]),
    ("bench/Cargo.toml", &["mdgw", "mdgw-feeds", "mdgw-publog", "mdgw-subscriber"]),
    ("tests/Cargo.toml", &["mdgw", "mdgw-feeds", "mdgw-publog", "mdgw-subscriber"]),
];

/// All that `feeds` may link: it is a function of bytes and times. `libc` is there for one piece of advice about the books' memory.
const FEEDS_LINKS: [&str; 4] = ["dbn", "hdrhistogram", "libc", "zerocopy"];

/// Modules of the gateway on the straight line.
const HOT: [&str; 5] = ["engine", "fence", "net", "pipeline", "publish"];
/// What they may know of the gateway besides each other.
const HOT_KNOWS: [&str; 4] = ["sys", "observe::channels", "observe::counters", "observe::stages"];
/// Packages that have no business there.
const HOT_SHUNS: [&str; 8] =
    ["anyhow", "clap", "etcd_client", "mdgw_subscriber", "ratatui", "serde", "tokio", "zookeeper_client"];

/// Who may know the consumer's side: whoever plays a consumer.
const CONSUMERS: [&str; 3] = ["gateway/src/cli/", "gateway/src/demo.rs", "gateway/src/demo/"];

/// Longest source file, and those that may be longer, with the reason.
const LINES_MAX: usize = 1_000;
const LONG_FILES: [(&str, &str); 0] = [];

/// Macros that mean "not finished".
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

#[test]
fn unsafe_code_stands_in_its_places() {
    let found = sources().into_iter().filter(|file| has_word(&code_of(&file.text), "unsafe"));
    let found: Vec<_> = found.map(|file| file.path).collect();
    assert_none(found.iter().filter(|path| !is_in(path, &UNSAFE_PLACES)).map(|path| format!("{path}: unsafe code")));

    let control = |text: &str| has_word(&code_of(text), "unsafe");
    assert!(control("fn f() { unsafe { g() } }"));
    assert!(control("let s = \"//\"; unsafe impl Send for S {}"));
    assert!(!control("// unsafe\nlet s = r#\"unsafe \"{}\" \"#; let c = '\"'; #![deny(unsafe_code)] /* unsafe */"));
    assert!(!is_in("gateway/src/pipeline.rs", &UNSAFE_PLACES));
    // A place that needs it no more leaves the list.
    let is_idle = |place: &&str| !found.iter().any(|path| is_in(path, &[(place, "")]));
    assert!(is_idle(&"gateway/src/pipeline.rs"));
    assert_none(UNSAFE_PLACES.iter().map(|(place, _)| *place).filter(is_idle));
}

#[test]
fn packages_know_only_whom_they_may() {
    for (manifest, allowed) in KNOWS {
        assert_none(unknown_to(&read(manifest), allowed).map(|name| format!("{manifest}: {name}")));
    }
    let feeds = read("feeds/Cargo.toml");
    assert_none(linked(&feeds, &["dependencies", "build-dependencies"]).filter(|name| !FEEDS_LINKS.contains(&&**name)));

    let control =
        "[dependencies]\nmdgw.workspace = true\nlibc = \"1\"\n[target.'cfg(unix)'.dependencies]\nrustix = \"1\"";
    assert_eq!(unknown_to(control, &["mdgw-feeds"]).collect::<Vec<_>>(), ["mdgw"]);
    assert_eq!(linked(control, &["dependencies"]).count(), 3);
}

#[test]
fn the_straight_line_knows_nothing_cold() {
    for SourceFile { path, text } in sources() {
        let Some(module) = module_of(&path) else { continue };
        let code = code_of(&text);
        if HOT.contains(&module) {
            assert_none(cold_paths(&code).map(|cold| format!("{path}: crate::{cold}")));
            assert_none(HOT_SHUNS.iter().filter(|name| has_word(&code, name)).map(|name| format!("{path}: {name}")));
        }
        let plays_consumer = CONSUMERS.iter().any(|place| path.starts_with(place));
        assert!(plays_consumer || !has_word(&code, "mdgw_subscriber"), "{path}: knows the consumer's side");
    }

    let control =
        "use crate::{fence::Fence, observe::{counters::A, latency_thread::B}, config};\ncrate::retransmit::f()";
    let found: Vec<_> = cold_paths(control).collect();
    assert_eq!(found, ["observe::latency_thread::B", "config", "retransmit::f"]);
    assert_eq!(module_of("gateway/src/net/ring/buffers.rs"), Some("net"));
    assert_eq!(module_of("gateway/src/fence.rs"), Some("fence"));
    assert_eq!(module_of("gateway/tests/fence.rs"), None);
}

#[test]
fn documents_point_to_what_exists() {
    let documents = files(&["md"]);
    assert!(documents.iter().any(|file| file.path == "README.md"));
    let exists = |path: &Path| root().join(path).exists();
    for SourceFile { path, text } in documents {
        assert_none(dead_links(&path, &text, exists).map(|link| format!("{path}: {link}")));
    }

    let control =
        "[a](x.md#top) [b](../ops/y) [c](https://z/) `gateway/src/gone.rs` `cd gateway/x`\n```\n[d](none)\n```\n";
    let found: Vec<_> = dead_links("bench/R.md", control, |path| path == Path::new("bench/x.md")).collect();
    assert_eq!(found, ["../ops/y", "gateway/src/gone.rs"]);
}

#[test]
fn files_are_short_enough_to_be_read() {
    let long = |file: &SourceFile| file.text.lines().count() > LINES_MAX;
    let control = SourceFile { path: "x.rs".to_owned(), text: "\n".repeat(LINES_MAX + 1) };
    assert!(long(&control));
    let found: Vec<_> = sources().into_iter().filter(long).map(|file| file.path).collect();
    assert_none(found.iter().filter(|path| !is_in(path, &LONG_FILES)));
    assert_none(LONG_FILES.iter().filter(|(path, _)| !found.iter().any(|long| long == path)).map(|(path, _)| path));
}

#[test]
fn nothing_is_left_unfinished() {
    for SourceFile { path, text } in sources() {
        assert_none(unfinished(&text).map(|what| format!("{path}: {what}")));
    }
    let control = format!("fn f() {{ todo!() }} // {}: later\nlet s = \"dbg!(x)\";", REMINDERS[0]);
    assert_eq!(unfinished(&control).collect::<Vec<_>>(), ["todo!", REMINDERS[0]]);
}

#[test]
fn example_configurations_are_valid() {
    let examples: Vec<_> = files(&["toml"]).into_iter().filter(|file| file.path.starts_with("ops/config/")).collect();
    assert!(examples.len() >= 2, "mdgw.toml and loopback.toml");
    for SourceFile { path, text } in &examples {
        assert_none(Resolved::from_text(Path::new(path), text).err().map(|error| error.to_string()));
    }
    let control = format!("{}\nno_such_key = 1\n", examples[0].text);
    assert!(Resolved::from_text(Path::new("control.toml"), &control).is_err());
}

#[test]
fn licences_of_all_that_is_linked_are_allowed() {
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
    // The client of a store that is not asked for, and what it takes to build it.
    let found = |features: &[&str]| linked_packages(features).into_iter().any(|(name, _)| name == "prost-build");
    assert!(!found(&[]), "linked by default");
    assert!(found(&["--features", "mdgw/etcd"]));
}

/// A file of the repository, by its path from the root.
#[derive(Debug)]
struct SourceFile {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

fn sources() -> Vec<SourceFile> {
    let found = files(&["rs"]);
    assert!(found.len() > 100, "only {} source files", found.len());
    found
}

/// All files with these endings, but for what is built or hidden.
fn files(endings: &[&str]) -> Vec<SourceFile> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("the repository can be listed") {
            let entry = entry.expect("the repository can be listed");
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let path = folder.join(&name);
            if entry.file_type().expect("the repository can be listed").is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted)) {
                let path = path.into_os_string().into_string().expect("names are UTF-8");
                found.push(SourceFile { text: read(&path), path });
            }
        }
    }
    found
}

#[track_caller]
fn assert_none<T: ToString>(complaints: impl IntoIterator<Item = T>) {
    let complaints: Vec<_> = complaints.into_iter().map(|complaint| complaint.to_string()).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn is_in(path: &str, places: &[(&str, &str)]) -> bool {
    places.iter().any(|(place, _)| if place.ends_with('/') { path.starts_with(place) } else { path == *place })
}

/// First module below the gateway's root.
fn module_of(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("gateway/src/")?;
    Some(rest.split_once('/').map_or_else(|| rest.trim_end_matches(".rs"), |(folder, _)| folder))
}

/// Rust without comments and without what stands in texts.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if character == '"' {
            quoted_bytes(rest)
        } else if let Some(hashes) = raw_text_hashes(rest, &code) {
            let close = format!("\"{}", "#".repeat(hashes));
            rest[hashes + 2..].find(&close).map_or(rest.len(), |end| hashes + 2 + end + close.len())
        } else {
            character_bytes(rest)
        };
        if skipped == 0 {
            code.push(character);
            rest = &rest[character.len_utf8()..];
        } else {
            code.push(' ');
            rest = &rest[skipped..];
        }
    }
    code
}

/// Bytes of the text that begins here, quotes included.
fn quoted_bytes(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, character)| {
        let ends = *character == '"' && !escaped;
        escaped = *character == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |(end, _)| end + 1)
}

/// Hashes of a raw text that begins here.
fn raw_text_hashes(rest: &str, before: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let in_word = before.ends_with(|last: char| is_word(last) && last != 'b');
    (after[hashes..].starts_with('"') && !in_word).then_some(hashes)
}

/// Bytes of a character in quotes, 0 if this is none (a lifetime begins with the same sign).
fn character_bytes(rest: &str) -> usize {
    let Some(inner) = rest.strip_prefix('\'') else { return 0 };
    if let Some(escape) = inner.strip_prefix('\\') {
        return escape.char_indices().skip(1).find(|(_, end)| *end == '\'').map_or(0, |(end, _)| end + 3);
    }
    let bytes = inner.chars().next().map_or(0, char::len_utf8);
    if inner[bytes..].starts_with('\'') { bytes + 2 } else { 0 }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|character| !is_word(character)).any(|found| found == word)
}

/// Packages of ours in a manifest that are not among the allowed.
fn unknown_to(manifest: &str, allowed: &[&str]) -> impl Iterator<Item = String> {
    let all = linked(manifest, &["dependencies", "dev-dependencies", "build-dependencies"]);
    all.filter(|name| name.starts_with("mdgw") && !allowed.contains(&&**name))
}

/// Names in these tables of a manifest, those of single targets too.
fn linked(manifest: &str, tables: &[&str]) -> impl Iterator<Item = String> {
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let of_targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let names: Vec<String> = of_targets
        .chain([&manifest])
        .flat_map(|part| tables.iter().filter_map(|table| part.get(*table)?.as_table()))
        .flat_map(|table| table.keys().cloned())
        .collect();
    names.into_iter()
}

/// What the code of a hot module takes from the gateway's root and may not.
fn cold_paths(code: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    for (at, start) in code.match_indices("crate::") {
        if !code[..at].ends_with(|last: char| is_word(last) || last == '$') {
            tree_paths(&mut code[at + start.len()..].chars().peekable(), "", &mut found);
        }
    }
    let allowed = |path: &String| {
        let within =
            |module: &&str| path.strip_prefix(*module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        HOT.iter().chain(&HOT_KNOWS).any(within)
    };
    found.retain(|path| !allowed(path));
    found.into_iter()
}

/// Paths of one `use` tree (or of a path in an expression), from its root.
fn tree_paths(code: &mut std::iter::Peekable<std::str::Chars<'_>>, prefix: &str, found: &mut Vec<String>) {
    let mut path = prefix.to_owned();
    loop {
        while code.next_if(|next| next.is_whitespace()).is_some() {}
        if code.next_if_eq(&'{').is_some() {
            while code.next_if_eq(&'}').is_none() && code.peek().is_some() {
                tree_paths(code, &path, found);
                while code.next_if(|next| next.is_whitespace() || *next == ',').is_some() {}
            }
            return;
        }
        let mut word = String::new();
        while let Some(next) = code.next_if(|next| is_word(*next) || *next == '*') {
            word.push(next);
        }
        path.push_str(&word);
        if word.is_empty() || code.next_if_eq(&':').is_none() || code.next_if_eq(&':').is_none() {
            break;
        }
        path.push_str("::");
    }
    // `a as b`, or whatever else follows.
    while code.next_if(|next| !matches!(next, ',' | '}' | ';')).is_some() {}
    found.push(path);
}

/// Links of a document to files, and paths of ours that it names as code, which do not exist.
fn dead_links(document: &str, text: &str, exists: impl Fn(&Path) -> bool) -> impl Iterator<Item = String> {
    let folder = Path::new(document).parent().unwrap_or_else(|| Path::new(""));
    let mut is_fenced = false;
    let mut dead = Vec::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fenced || is_fence {
            continue;
        }
        for (number, part) in line.split('`').enumerate() {
            if number % 2 == 1 {
                let is_path = OUR_FOLDERS.iter().any(|ours| part.starts_with(ours)) && part.chars().all(is_of_path);
                if is_path && !exists(Path::new(part)) {
                    dead.push(part.to_owned());
                }
                continue;
            }
            for link in part.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = link.split('#').next().unwrap_or(link);
                if !target.is_empty() && !link.contains(':') && !exists(&flattened(&folder.join(target))) {
                    dead.push(link.to_owned());
                }
            }
        }
    }
    dead.into_iter()
}

const OUR_FOLDERS: [&str; 6] = [".ci/", "bench/", "feeds/", "gateway/", "ops/", "tests/"];

fn is_of_path(character: char) -> bool {
    is_word(character) || matches!(character, '/' | '.' | '-')
}

/// Without `..` and `.`.
fn flattened(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut flat, component| {
        match component {
            Component::ParentDir => drop(flat.pop()),
            Component::CurDir => {}
            other => flat.push(other),
        }
        flat
    })
}

/// Words in comments that mean the same as the macros; in two halves, so that they don't stand here.
const REMINDERS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

fn unfinished(text: &str) -> impl Iterator<Item = String> {
    let code = code_of(text);
    let macros = UNFINISHED
        .iter()
        .map(|name| format!("{name}!"))
        .filter(move |call| code.match_indices(call.as_str()).any(|(at, _)| !code[..at].ends_with(is_word)));
    let reminders: Vec<_> =
        REMINDERS.iter().filter(|word| has_word(text, word)).map(|word| (*word).to_owned()).collect();
    macros.chain(reminders)
}

/// Name and licence of every package that the workspace links here with these features, our own left out.
fn linked_packages(features: &[&str]) -> Vec<(String, String)> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let told = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &target])
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo can be run");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("cargo tells JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let packages = told["packages"].as_array().expect("cargo lists packages").iter();
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
    /// `None` for what is no expression.
    fn of(text: &str) -> Option<Self> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut words = spaced.split_whitespace().peekable();
        let licence = Self::any(&mut words)?;
        words.next().is_none().then_some(licence)
    }

    fn any<'t>(words: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>) -> Option<Self> {
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
                let inner = Self::any(words)?;
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
