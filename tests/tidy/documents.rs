//! Documents point to files and headings that exist.
//!
//! A document refers to a heading by a link with an anchor, `[Add a feed](contributing.md#add-a-feed)`, so that the
//! reference can be checked. Text in quotation marks beside the name of a document is refused, and so is a quoted
//! heading of another document: neither can be checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use super::{SourceFile, assert_none, files, read, root};

#[test]
fn document_links_resolve() {
    let documents = files(&["md"]);
    assert!(documents.iter().any(|file| file.path == "README.md"));
    let exists = |path: &Path| root().join(path).exists();
    let references = documents.iter().flat_map(|SourceFile { path, text }| {
        dead_links(path, text, exists).map(move |link| format!("{path}: {link}"))
    });
    assert_none(references);

    let control = "[a](x.md#top) [b](../ops/y) [c](https://z/) `gateway/src/gone.rs` `cd gateway/x`\n\
                   ```\n[d](none)\n```\n\n    [e](none)\n- [f\n  g](none \"title\")\n";
    let found: Vec<_> = dead_links("bench/R.md", control, |path| path == Path::new("bench/x.md")).collect();
    assert_eq!(found, ["../ops/y", "gateway/src/gone.rs", "none"]);
}

#[test]
fn anchors_name_headings() {
    let documents = files(&["md"]);
    let headings = Headings::of(&documents);
    let dead = documents.iter().flat_map(|file| headings.dead_anchors(&file.path, &file.text));
    assert_none(dead);

    let control = [
        SourceFile {
            path: "a/one.md".to_owned(),
            text: "# Bird's eye: `x_y`, 2 of 3\n## Twice\n## Twice\n".to_owned(),
        },
        SourceFile {
            path: "two.md".to_owned(),
            text: "# Two [of](x.md) *them*\n```\n# no heading\n```\n[a](#two-of-them) [b](#no-heading) \
                   [c](a/one.md#birds-eye-x_y-2-of-3) [d](a/one.md#twice-1) [e](a/one.md#twice-2) [f](a/one.md#Twice)\n"
                .to_owned(),
        },
    ];
    let headings = Headings::of(&control);
    let found: Vec<_> = headings.dead_anchors("two.md", &control[1].text).collect();
    assert_eq!(found, ["two.md: #no-heading", "two.md: a/one.md#twice-2", "two.md: a/one.md#Twice"]);
}

#[test]
fn quoted_headings_are_links() {
    let documents = files(&["md"]);
    let headings = Headings::of(&documents);
    let bare = documents.iter().flat_map(|file| headings.quoted(&file.path, &file.text));
    assert_none(bare);

    let control = [
        SourceFile { path: "one.md".to_owned(), text: "# One\n## A short tour\n## Cores\n".to_owned() },
        SourceFile {
            path: "two.md".to_owned(),
            text: "See README.md, \"Several gateways\".\nAs in \u{201c}A short tour\u{201d}.\nA gateway said \"no\" once.\n\
                   [\"A short tour\"](one.md#a-short-tour), one.md.\n`wait = \"spin\"` in one.md\nA \"Cores\" list.\n"
                .to_owned(),
        },
    ];
    let found: Vec<_> = Headings::of(&control).quoted("two.md", &control[1].text).collect();
    assert_eq!(found, ["two.md: \"Several gateways\"", "two.md: \"A short tour\""]);
}

/// A path with a name after it, as in `gateway/sys/src/fence.rs`: `Fence::open`, points to a file that has the name.
#[test]
fn names_beside_paths_are_in_the_files() {
    let source = |path: &str| root().join(path).is_file().then(|| read(path));
    let mut count = 0;
    for SourceFile { path, text } in files(&["md"]) {
        let named = named_items(&text);
        count += named.len();
        assert_none(missing_names(&named, source).map(|missing| format!("{path}: {missing}")));
    }
    assert!(count > 20, "only {count} names beside paths");

    let text = "| x | `gateway/a.rs`: `Fence::open`, `Gone` | `gateway/a.rs` (`shut`)\n`gateway/b.rs`: `open`\n\n    `feeds/c.rs`: `d`";
    let found = named_items(text);
    let [fence, gone, shut, other] = ["Fence::open", "Gone", "shut", "open"];
    assert_eq!(
        found,
        [("gateway/a.rs", fence), ("gateway/a.rs", gone), ("gateway/a.rs", shut), ("gateway/b.rs", other)]
    );
    let source = |path: &str| (path == "gateway/a.rs").then(|| "impl Fence { fn open() {} fn reshut() {} }".to_owned());
    let missing: Vec<_> = missing_names(&found, source).collect();
    assert_eq!(missing, ["gateway/a.rs: Gone", "gateway/a.rs: shut"]);
}

/// Names in code that follow the path of a source file: after a colon, or in parentheses, several with commas between.
fn named_items(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for line in prose(text) {
        let parts: Vec<_> = line.split('`').collect();
        let mut path = None;
        for (before, code) in parts.iter().zip(&parts[1..]).step_by(2).map(|(before, code)| (*before, *code)) {
            let is_item = code.chars().all(|character| character.is_alphanumeric() || "_:".contains(character));
            if code.ends_with(".rs") && OUR_FOLDERS.iter().any(|ours| code.starts_with(ours)) {
                path = Some(code);
            } else if let Some(path) = path.filter(|_| is_item && [": ", " (", ", "].contains(&before)) {
                found.push((path, code));
            } else {
                path = None;
            }
        }
    }
    found
}

/// Names that their file does not have; a file that does not exist is reported elsewhere.
fn missing_names(named: &[(&str, &str)], source: impl Fn(&str) -> Option<String>) -> impl Iterator<Item = String> {
    let is_missing = |(path, item): &&(&str, &str)| {
        let name = item.rsplit("::").next().unwrap_or(item).split('{').next().unwrap_or_default();
        let is_part = |character: char| !(character.is_alphanumeric() || character == '_');
        source(path).is_some_and(|text| !text.split(is_part).any(|word| word == name))
    };
    let missing: Vec<_> = named.iter().filter(is_missing).map(|(path, item)| format!("{path}: {item}")).collect();
    missing.into_iter()
}

/// ARCHITECTURE.md has a limit, since it is read as a whole, before any code.
#[test]
fn the_architecture_stays_short() {
    assert_none(excess_words(&read("ARCHITECTURE.md"), 2_500));

    assert_eq!(excess_words("| a | `b c` |\n", 5), Some("6 words, at most 5".to_owned()));
    assert_eq!(excess_words("| a | `b c` |\n", 6), None);
}

/// Reports the number of words, counted as `wc -w` does, if it exceeds `words_max`.
fn excess_words(text: &str, words_max: usize) -> Option<String> {
    let count = text.split_whitespace().count();
    (count > words_max).then(|| format!("{count} words, at most {words_max}"))
}

/// The README's table shows output of the demo: the demo prints a row with the name of each row of the table.
#[test]
fn readme_shows_the_rows_that_the_demo_prints() {
    let source = read("gateway/mdgw/src/cli/demo.rs");
    assert_none(rows_not_printed(&read("README.md"), &source));

    let control =
        "<!-- demo output: begin -->\n\n    feed     x\n    line A   1\n    gone by  2\n<!-- demo output: end -->\n";
    let found = rows_not_printed(control, "row(\"feed\", x); format!(\"line {}\", line)");
    assert_eq!(found, ["gone by"]);
}

fn rows_not_printed(readme: &str, source: &str) -> Vec<String> {
    let table = readme
        .split_once("<!-- demo output: begin -->")
        .and_then(|(_, rest)| rest.split_once("<!-- demo output: end -->"));
    let (table, _) = table.expect("the README shows what the demo prints");
    let names = table.lines().filter_map(|line| Some(line.strip_prefix("    ")?.split_once("  ")?.0));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 2, "{names:?}");
    let is_printed = |name: &&str| {
        let general = format!("{} {{}}", name.split(' ').next().unwrap_or_default());
        source.contains(&format!("\"{name}\"")) || source.contains(&format!("\"{general}\""))
    };
    names.into_iter().filter(|name| !is_printed(name)).map(str::to_owned).collect()
}

/// The headings of all documents.
struct Headings {
    /// The anchors of each document, by its path.
    anchors: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Headings of several words, as text. Single words are left out, since they are quoted for other reasons too.
    texts: BTreeSet<String>,
}

impl Headings {
    fn of(documents: &[SourceFile]) -> Self {
        let mut all = Self { anchors: BTreeMap::new(), texts: BTreeSet::new() };
        for SourceFile { path, text } in documents {
            let mut used: BTreeMap<String, usize> = BTreeMap::new();
            let anchors = all.anchors.entry(PathBuf::from(path)).or_default();
            for line in prose(text).filter(|line| line.starts_with('#')) {
                let Some((marks, heading)) = line.split_once(' ') else { continue };
                if marks.len() > 6 || marks.chars().any(|mark| mark != '#') {
                    continue;
                }
                let heading = rendered(heading);
                let slug = slug(&heading);
                let count = used.entry(slug.clone()).or_default();
                anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
                *count += 1;
                if heading.contains(' ') {
                    all.texts.insert(heading);
                }
            }
        }
        all
    }

    /// Links whose anchor no heading of the linked document has.
    fn dead_anchors(&self, document: &str, text: &str) -> impl Iterator<Item = String> {
        let folder = Path::new(document).parent().unwrap_or_else(|| Path::new(""));
        let is_dead = |link: &String| {
            let Some((file, anchor)) = link.split_once('#').filter(|_| !is_foreign(link)) else { return false };
            let target = if file.is_empty() { PathBuf::from(document) } else { normalised(&folder.join(file)) };
            // Anchors of source files, and missing documents, are checked elsewhere.
            self.anchors.get(&target).is_some_and(|anchors| !anchors.contains(anchor))
        };
        let dead: Vec<_> = links(text).into_iter().filter(is_dead).map(|link| format!("{document}: {link}")).collect();
        dead.into_iter()
    }

    /// Text in quotation marks, outside of links and code, that is a heading or stands beside the name of a document.
    fn quoted(&self, document: &str, text: &str) -> impl Iterator<Item = String> {
        let mut found = Vec::new();
        for line in prose(text).filter(|line| !line.starts_with('#')) {
            let names_document = line.contains(".md");
            let plain = without_links(&without_code(line)).replace(['\u{201c}', '\u{201d}'], "\"");
            for quoted in plain.split('"').skip(1).step_by(2) {
                let is_title = names_document && quoted.starts_with(char::is_uppercase);
                if is_title || self.texts.contains(quoted.trim_end_matches(['.', ','])) {
                    found.push(format!("{document}: \"{quoted}\""));
                }
            }
        }
        found.into_iter()
    }
}

/// Lines that are not in a fenced or indented block of code. An indented line below a list item is prose, unless it
/// follows an empty line.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_fenced, mut follows_prose) = (false, false);
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        let is_code = is_fenced || is_fence || (line.starts_with("    ") && !follows_prose);
        follows_prose = !is_code && !line.trim().is_empty() && !line.starts_with('#');
        !is_code
    })
}

/// Targets of all links in the prose, also of links whose text continues on the next line.
fn links(text: &str) -> Vec<String> {
    let plain: Vec<String> = prose(text).map(without_code).collect();
    let plain = plain.join("\n");
    let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter_map(|target| target.split_whitespace().next()).map(str::to_owned).collect()
}

fn is_foreign(link: &str) -> bool {
    link.contains(':')
}

fn without_code(line: &str) -> String {
    let parts: Vec<_> = line.split('`').step_by(2).collect();
    parts.join("x")
}

/// The line without its links: `[text](target)` is left out completely.
fn without_links(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, from)) = rest.split_once('[') {
        plain.push_str(before);
        rest = match from.split_once("](").and_then(|(_, target)| target.split_once(')')) {
            Some((_, after)) => after,
            None => from,
        };
    }
    plain + rest
}

/// The text of a heading: links are replaced by their text, marks of emphasis and code are removed.
fn rendered(heading: &str) -> String {
    let mut plain = String::new();
    let mut rest = heading.trim();
    while let Some((before, from)) = rest.split_once("](") {
        plain.push_str(&before.replace('[', ""));
        rest = from.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.replace(['`', '*'], "")
}

/// The anchor that GitHub gives a heading: lower case, spaces as hyphens, no punctuation but `-` and `_`.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Files that do not exist: targets of the document's links, and paths of this repository that it names as code.
fn dead_links(document: &str, text: &str, exists: impl Fn(&Path) -> bool) -> impl Iterator<Item = String> {
    let folder = Path::new(document).parent().unwrap_or_else(|| Path::new(""));
    let is_dead = |link: &String| {
        let target = link.split('#').next().unwrap_or(link);
        !target.is_empty() && !is_foreign(link) && !exists(&normalised(&folder.join(target)))
    };
    let mut dead: Vec<String> = Vec::new();
    let mut linked = links(text);
    linked.retain(is_dead);
    for line in prose(text) {
        let on_line = linked.iter().position(|link| line.contains(&format!("]({link}")));
        dead.extend(on_line.map(|index| linked.remove(index)));
        let code = line.split('`').skip(1).step_by(2);
        let is_path =
            |part: &&str| OUR_FOLDERS.iter().any(|ours| part.starts_with(ours)) && part.chars().all(is_path_char);
        dead.extend(code.filter(is_path).filter(|part| !exists(Path::new(part))).map(str::to_owned));
    }
    dead.extend(linked);
    dead.into_iter()
}

const OUR_FOLDERS: [&str; 6] = [".ci/", "bench/", "feeds/", "gateway/", "ops/", "tests/"];

fn is_path_char(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '/' | '.' | '-')
}

/// The path without `..` and `.`.
fn normalised(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut flat, component| {
        match component {
            Component::ParentDir => drop(flat.pop()),
            Component::CurDir => {}
            other => flat.push(other),
        }
        flat
    })
}
