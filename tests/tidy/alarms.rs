//! Each alarm has a runbook, each runbook an alarm, and each alarm is logged somewhere.

use std::collections::BTreeSet;

use mdgw_sys::alarm::Alarm;

use super::{SourceFile, assert_none, files, sources};

const RUNBOOKS: &str = "ops/runbooks/";
const DECLARATION: &str = "gateway/sys/src/alarm.rs";

#[test]
fn alarms_and_runbooks_are_the_same_set() {
    let pages: Vec<_> = files(&["md"]).into_iter().filter(|file| file.path.starts_with(RUNBOOKS)).collect();
    let names: Vec<_> = Alarm::ALL.iter().map(|alarm| (alarm.name(), alarm.about())).collect();
    assert_none(differences(&names, &pages));

    let page = |name: &str, text: &str| SourceFile { path: format!("{RUNBOOKS}{name}.md"), text: text.to_owned() };
    let control = [
        page(
            "README",
            "| [has-all](has-all.md) | full |\n| [no-name](no-name.md) | old |\n| [work](work.md) | planned |\n\
             | [quoted](quoted.md) | in a table |\n",
        ),
        page("has-all", "`alarm=\"has-all\"`"),
        page("no-name", "`alarm=\"other\"`"),
        page("no-alarm", "`alarm=\"no-alarm\"`"),
        page("work", "**When.** A node is restarted."),
        page("quoted", "**Shows as.** `alarm=\"quoted\"`"),
    ];
    let found = differences(&[("has-all", "full"), ("no-name", "new"), ("no-page", "lost")], &control);
    assert_eq!(
        found,
        [
            "no-name: the page does not quote alarm=\"no-name\"",
            "no-name: the table of README.md has no row \"new\"",
            "no-page: no page",
            "no-page: the table of README.md has no row \"lost\"",
            "no-alarm: a page without an alarm, and not in the table of planned work",
            "quoted: a page without an alarm, and not in the table of planned work",
        ]
    );
}

/// Alarms (name, row of the table) without a page or row, then pages without an alarm. A page about planned work begins with
/// when it applies, and README.md has a row for it.
fn differences(alarms: &[(&str, &str)], pages: &[SourceFile]) -> Vec<String> {
    let page = |name: &str| pages.iter().find(|page| page.path == format!("{RUNBOOKS}{name}.md"));
    let mut found = Vec::new();
    for (name, about) in alarms {
        match page(name) {
            None => found.push(format!("{name}: no page")),
            Some(page) if !page.text.contains(&format!("`alarm=\"{name}\"`")) => {
                found.push(format!("{name}: the page does not quote alarm=\"{name}\""));
            }
            Some(_) => {}
        }
        if !page("README").is_some_and(|table| table.text.contains(&format!("| [{name}]({name}.md) | {about} |\n"))) {
            found.push(format!("{name}: the table of README.md has no row {about:?}"));
        }
    }
    let named: BTreeSet<_> = alarms.iter().map(|(name, _)| *name).chain(["README"]).collect();
    for page_of in pages {
        let name = page_of.path.trim_start_matches(RUNBOOKS).trim_end_matches(".md");
        let has_row = page("README").is_some_and(|table| table.text.contains(&format!("| [{name}]({name}.md) | ")));
        let is_planned_work = has_row && page_of.text.contains("**When.** ");
        if !named.contains(name) && !is_planned_work {
            found.push(format!("{name}: a page without an alarm, and not in the table of planned work"));
        }
    }
    found
}

#[test]
fn each_alarm_is_logged_by_its_declared_name() {
    let code: Vec<_> =
        sources().into_iter().filter(|file| file.path.starts_with("gateway/") && file.path != DECLARATION).collect();
    let variants: Vec<_> = Alarm::ALL.iter().map(|alarm| format!("{alarm:?}")).collect();
    assert_none(misuses(&variants, &code));

    let file = |text: &str| SourceFile { path: "a.rs".to_owned(), text: text.to_owned() };
    let variants = ["Used".to_owned(), "Unused".to_owned()];
    let control = [file("warn!(alarm = Alarm::Used.name())"), file("warn!(alarm = \"used\")")];
    assert_eq!(misuses(&variants, &control), ["a.rs: an alarm named by a string", "Unused: never logged"]);
}

/// Alarms that tracing calls name by a string, then alarms that no code uses.
fn misuses(variants: &[String], code: &[SourceFile]) -> Vec<String> {
    let has_string = |file: &&SourceFile| file.text.contains("alarm = \"");
    let strings = code.iter().filter(has_string).map(|file| format!("{}: an alarm named by a string", file.path));
    let is_unused = |variant: &&String| {
        let wanted = format!("Alarm::{variant}");
        let is_use = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        !code.iter().any(|file| file.text.split(&wanted).skip(1).any(is_use))
    };
    strings.chain(variants.iter().filter(is_unused).map(|variant| format!("{variant}: never logged"))).collect()
}
