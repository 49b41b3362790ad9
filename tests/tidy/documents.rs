//! Documents point to files that exist.

use std::path::{Component, Path, PathBuf};

use super::{SourceFile, assert_none, files, root};

#[test]
fn document_links_resolve() {
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
                let is_path = OUR_FOLDERS.iter().any(|ours| part.starts_with(ours)) && part.chars().all(is_path_char);
                if is_path && !exists(Path::new(part)) {
                    dead.push(part.to_owned());
                }
                continue;
            }
            for link in part.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = link.split('#').next().unwrap_or(link);
                if !target.is_empty() && !link.contains(':') && !exists(&normalised(&folder.join(target))) {
                    dead.push(link.to_owned());
                }
            }
        }
    }
    dead.into_iter()
}

const OUR_FOLDERS: [&str; 6] = [".ci/", "bench/", "feeds/", "gateway/", "ops/", "tests/"];

fn is_path_char(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '/' | '.' | '-')
}

/// Without `..` and `.`.
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
