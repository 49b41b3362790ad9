//! Every text that a runbook or the guide quotes from logs and displays occurs in some source file.

use super::{SourceFile, assert_none, files, sources};

const PAGES: [&str; 2] = ["ops/guide/", "ops/runbooks/"];

/// First words of commands: a quote that begins with one is typed, not printed.
const COMMANDS: [&str; 25] = [
    "apt",
    "cargo",
    "cat",
    "chown",
    "chronyc",
    "cp",
    "df",
    "dpkg",
    "etcdctl",
    "ethtool",
    "ip",
    "journalctl",
    "kill",
    "ls",
    "mdgw",
    "nc",
    "nft",
    "ps",
    "strace",
    "sysctl",
    "systemctl",
    "tc",
    "tcpdump",
    "unshare",
    "vmstat",
];

#[test]
fn quoted_messages_occur_in_a_source() {
    let is_page = |file: &SourceFile| PAGES.iter().any(|folder| file.path.starts_with(folder));
    let pages: Vec<_> = files(&["md"]).into_iter().filter(is_page).collect();
    let is_ours = |file: &SourceFile| file.path.starts_with("gateway/") || file.path.starts_with("feeds/");
    let code: Vec<_> = sources().into_iter().filter(is_ours).map(|file| joined(&file.text)).collect();
    assert!(pages.iter().map(|page| quotes(&page.text).count()).sum::<usize>() > 20);
    assert_none(
        pages
            .iter()
            .flat_map(|page| not_printed(&page.text, &code).map(move |quote| format!("{}: `{quote}`", page.path))),
    );

    let code = [joined("error!(\"the log is \\\n    full: {error}\"); \"channel {}: stale\"")];
    let page = "`the log is full: …` `channel N: stale` `mdgw run x` `a = 1` `Log` `the log: was full`";
    assert_eq!(not_printed(page, &code).collect::<Vec<_>>(), ["the log: was full"]);
}

/// Quotes of a page that have a part which occurs in no source. `…` and words in capitals stand for values. A colon may
/// join the texts of an error and of its cause.
fn not_printed<'p>(page: &'p str, code: &[String]) -> impl Iterator<Item = &'p str> {
    quotes(page).filter(move |quote| {
        let words = quote.replace('…', " … ").replace(": ", ": … ");
        let words: Vec<_> = words.split_whitespace().collect();
        let is_value = |word: &&str| !word.chars().any(char::is_lowercase) && word.chars().any(char::is_alphanumeric);
        let parts = words.split(|word| *word == "…" || is_value(&word.trim_end_matches([':', ','])));
        let mut parts = parts.map(|part| part.join(" ")).filter(|part| !part.is_empty());
        !parts.all(|part| code.iter().any(|text| text.contains(&part)))
    })
}

/// Code spans of several words that begin in lower case and are neither a command nor a setting.
fn quotes(page: &str) -> impl Iterator<Item = &str> {
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|code| {
        let first = code.split(' ').next().unwrap_or_default();
        let is_setting = code.contains(" = ");
        code.contains(' ') && code.starts_with(char::is_lowercase) && !is_setting && !COMMANDS.contains(&first)
    })
}

/// A source in which strings that continue on the next line are joined.
fn joined(source: &str) -> String {
    let mut pieces = source.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.trim_start())
}
