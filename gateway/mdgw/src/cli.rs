//! The command line: one file per subcommand. Only this module prints; the libraries below it return values.
//!
//! Exit codes: 0 success; 1 the check failed or the request was refused; 2 error, including a wrong command line. A
//! closed pipe is not an error. `mdgw doctor` exits with the worst that it found: 1 a warning, 2 a failure. `mdgw run`
//! and `mdgw mirror` exit with 1 if a fault stopped them, or their host did not let them start. `mdgw reload` exits with 3 if
//! its result is unknown. Errors go to standard error as one line: `mdgw: <act> <object>: <cause>`. With `--json`, what a
//! running process refused goes to standard output instead: `{"refused":["<reason>"]}`.

mod book;
mod capture;
mod check;
mod completions;
mod convert;
mod demo;
mod diff;
mod doctor;
mod ha;
mod inspect;
mod journal;
mod live;
mod logging;
mod man;
mod merge;
mod mirror;
mod nats;
mod quantity;
mod reload;
mod replay;
mod report;
mod run;
mod sentinel;
mod service_manager;
mod sim;
mod subscribers;
mod subscription;
mod tail;
mod top;
mod witness;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use mdgw_subscriber::{TagPolicy, load_tag_key};
use mdgw_sys::memory::forbid_core_dumps;

/// Parses the command line, runs the subcommand, reports its error.
#[must_use]
pub(crate) fn run() -> ExitCode {
    mdgw_runtime::set_commit(env!("MDGW_BUILT_FROM"));
    let outcome = match Cli::parse().command {
        Command::Book(args) => book::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Demo(args) => demo::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Ha(args) => ha::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Journal(args) => journal::run(&args),
        Command::Live(args) => live::run(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Mirror(args) => mirror::run(&args),
        Command::Nats(args) => nats::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Sentinel(args) => sentinel::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Tail(args) => tail::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Witness(args) => witness::run(&args),
    };
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::No) => ExitCode::from(1),
        Ok(Outcome::Failed) => ExitCode::from(2),
        Ok(Outcome::Unknown) => ExitCode::from(3),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            warn(&error_chain(&error));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, each printed once: the text of many errors already ends with the text of their cause.
fn error_chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Market-data gateway: exchange feeds in, one gap-free normalised stream out.
#[derive(Debug, Parser)]
#[command(
    name = "mdgw",
    version = env!("MDGW_VERSION"),
    about,
    max_term_width = 100,
    after_help = "\
Examples:
  mdgw demo
  mdgw check gateway.toml
  mdgw run gateway.toml
  mdgw capture gateway.toml -o lines.pcapng.zst

Exit codes: 0 success; 1 the check failed or the request was refused; 2 error. Run a command with --help for details."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// One variant and one file per subcommand. The order is that of the help: demo, running and watching a gateway, tools
/// for captures, the exchange simulator, the pair, installation.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run exchange simulator, gateway and subscriber on loopback and check every record. Needs no configuration and no
    /// root.
    Demo(demo::Args),
    /// Validate a configuration and print what it would run.
    Check(check::Args),
    /// Examine this host for a gateway: what is wrong, why it matters, and the command that mends it. Changes nothing.
    Doctor(doctor::Args),
    /// Run a gateway until SIGTERM or SIGINT. SIGHUP reloads the settings that may change at run time.
    Run(run::Args),
    /// Make a running gateway read its configuration again, and print what changed. Exit code 1 and the reasons if the gateway
    /// refuses.
    Reload(reload::Args),
    /// Serve official DBN live clients from the publication logs of a gateway on this host. SIGHUP reads the keys again.
    Live(live::Args),
    /// Write what the publication logs of a gateway on this host hold to DBN files, one per dataset and day.
    Journal(journal::Args),
    /// Sink what the publication logs of a gateway on this host hold into streams of NATS JetStream.
    Nats(nats::Args),
    /// Write a gateway's output, as received on another host, to publication logs there, for the commands that read logs.
    Mirror(mirror::Args),
    /// Watch a running gateway, or a replay: threads, channels, lines, latencies.
    Top(top::Args),
    /// Subscribe to a gateway's output: print the records or write a DBN file.
    Tail(tail::Args),
    /// Report latency logs as a table, percentile curves or a timeline.
    Report(report::Args),
    /// Capture lines to pcapng files, with kernel or NIC timestamps.
    Capture(capture::Args),
    /// Merge captures of a channel's lines: each message once, in sequence order.
    Merge(merge::Args),
    /// Decode captures: every packet and message, field by field.
    Inspect(inspect::Args),
    /// Show the order books of a capture at a moment, or how their tops change.
    Book(book::Args),
    /// Compare two recordings: published output, DBN files, or captures of a feed.
    Diff(diff::Args),
    /// Convert DBN to CSV, JSON lines or Parquet.
    Convert(convert::Args),
    /// Replay captures and day files, to the network or directly into the pipeline.
    Replay(replay::Args),
    /// Simulate an exchange: send a capture or a synthetic Nasdaq session on lossy lines.
    Sim(sim::Args),
    /// Query and control the gateways of a pair, and verify what they published.
    Ha(ha::Args),
    /// Vote on which gateway publishes, for gateways without a store.
    Witness(witness::Args),
    /// Watch the gateway processes of this host and notify the peers as soon as one dies.
    Sentinel(sentinel::Args),
    /// Print shell completions for all commands and options.
    Completions(completions::Args),
    /// Print the manual, or write a page for each command.
    Man(man::Args),
}

/// How a subcommand ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Success; exit code 0.
    Done,
    /// The check failed, the request was refused, or a running gateway was stopped by a fault; exit code 1.
    No,
    /// An examination found what keeps a gateway from working; exit code 2.
    Failed,
    /// What was asked for may be done or not; exit code 3.
    Unknown,
}

/// These signals end the process no more, and do nothing else. SIGHUP asks some commands for a reload, so it must not end the others:
/// systemd would take that for a stop as asked for, and start them no more.
fn outlive(signals: &[i32]) -> anyhow::Result<()> {
    for signal in signals {
        signal_hook::flag::register(*signal, Arc::default()).context("catch signals")?;
    }
    Ok(())
}

/// To be called before a command reads a key or a password: a core dump would hold it.
fn protect_secrets() -> anyhow::Result<()> {
    forbid_core_dumps().context("forbid core dumps of this process, which reads keys")
}

/// The policy of `--tag-key`: packets need a tag under one of these keys. Without a key every packet is accepted.
fn tag_policy(key_files: &[PathBuf]) -> anyhow::Result<TagPolicy> {
    if !key_files.is_empty() {
        protect_secrets()?;
    }
    let keys = key_files.iter().map(|path| load_tag_key(path));
    Ok(TagPolicy { keys: keys.collect::<Result<_, _>>()?, accepts_untagged: false })
}

/// Writes text to standard output and flushes it. The error may be a closed pipe, which [`run()`] treats as success.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context(WRITE_STDOUT)
}

/// Reports that a running process refused a request, with its reasons, one per line: in JSON, or as `text` on standard error.
fn refused(is_json: bool, reasons: &str, text: &str) -> anyhow::Result<Outcome> {
    if is_json {
        let reasons: Vec<&str> = reasons.lines().collect();
        print(&format!("{}\n", serde_json::json!({ "refused": reasons })))?;
    } else {
        warn(text);
    }
    Ok(Outcome::No)
}

const WRITE_STDOUT: &str = "write to standard output";

/// Writes a line to standard error, or reports it as this process's log does. A failure is ignored, since there is no other
/// place to report it.
fn warn(text: &str) {
    if !logging::report(text) {
        let _ = writeln!(io::stderr(), "mdgw: {text}");
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_closed_pipe_is_found_anywhere_in_the_chain() {
        let broken = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("write summary");
        assert!(is_closed_pipe(&broken));
        assert!(!is_closed_pipe(&anyhow::anyhow!("read a.pcap")));
    }

    #[test]
    fn an_error_prints_each_cause_once() {
        let repeated = anyhow::anyhow!("no such place").context("cannot read x: no such place").context("start");
        assert_eq!(error_chain(&repeated), "start: cannot read x: no such place");
        let apart = anyhow::anyhow!("no such place").context("cannot read x").context("start");
        assert_eq!(error_chain(&apart), "start: cannot read x: no such place");
    }

    /// Every command with its path (`mdgw ha verify`), the program itself first.
    fn commands() -> Vec<(String, clap::Command)> {
        fn walk(path: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
            found.push((path.to_owned(), command.clone()));
            for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
                walk(&format!("{path} {}", subcommand.get_name()), subcommand, found);
            }
        }
        let mut all = Cli::command();
        all.build();
        let mut found = Vec::new();
        walk("mdgw", &all, &mut found);
        assert!(found.len() > 15, "{}", found.len());
        found
    }

    /// Example command lines of a help text: the lines that begin with two spaces and the program's name.
    fn examples(command: &clap::Command) -> Vec<String> {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("  mdgw ")).map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn every_help_fits_a_hundred_columns_and_shows_an_example() {
        for (path, command) in commands() {
            for help in [command.clone().render_help(), command.clone().render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 100, "{path}: {} columns: {line}", line.chars().count());
                }
            }
            // A command that only groups subcommands lists these instead.
            let has_subcommands = command.get_subcommands().any(|subcommand| subcommand.get_name() != "help");
            assert!(has_subcommands || !examples(&command).is_empty(), "{path}: no example in its help");
        }
    }

    #[test]
    fn every_example_is_a_valid_command_line() {
        for (path, command) in commands() {
            for example in examples(&command) {
                assert!(example.contains(&path) && example.len() <= 98, "{path}: {example}");
                let ours = example.split('|').map(str::trim).filter(|part| part.starts_with("mdgw "));
                for part in ours {
                    let words = part.split_whitespace().take_while(|word| *word != ">");
                    if let Err(error) = Cli::try_parse_from(words) {
                        panic!("{path}: {example}: {error}");
                    }
                }
            }
        }
    }

    /// Command lines of this program in a document: those in blocks of code, which have to be complete (`true`), and those
    /// between backquotes, which may only name a command and some of its options.
    fn quoted_commands(document: &str) -> Vec<(Vec<String>, bool)> {
        let mut found = Vec::new();
        let (mut is_fenced, mut continued) = (false, String::new());
        for line in document.lines() {
            is_fenced ^= line.trim_start().starts_with("```");
            if is_fenced || line.starts_with("    ") || !continued.is_empty() {
                match line.strip_suffix('\\') {
                    Some(part) => continued.push_str(part),
                    None => {
                        found.extend(command_of(&(std::mem::take(&mut continued) + line)).map(|words| (words, true)))
                    }
                }
                if !line.contains('`') {
                    continue;
                }
            }
            let quoted = line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("mdgw "));
            found.extend(quoted.filter_map(command_of).map(|words| (words, false)));
        }
        found
    }

    /// The words of a shell's line from `mdgw` on, up to a comment, a pipe or a redirection.
    fn command_of(line: &str) -> Option<Vec<String>> {
        let ends = |word: &&str| ["#", "|", ">", "&", "&&", ";", "&)"].contains(word) || word.contains(">/");
        let words: Vec<_> = line.split_whitespace().collect();
        // Neither a picture, nor prose in an indented item, nor a user or group of that name.
        let is_ours = |pair: &[&str]| pair[0] == "mdgw" && Cli::command().find_subcommand(pair[1]).is_some();
        let begin = words.windows(2).position(is_ours).filter(|_| line.is_ascii())?;
        let words = words[begin..].iter().take_while(|word| !ends(word));
        Some(words.map(|word| example_value(word.trim_matches(['\'', '"']))).collect())
    }

    /// A value for a word in capitals, which stands for one: a number fits wherever a file's name does.
    fn example_value(word: &str) -> String {
        let is_placeholder = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        match word {
            "GROUP:PORT" | "ADDRESS:PORT" | "ADDR:PORT" => "239.1.1.1:7000".to_owned(),
            "ADDRESS" => "10.0.0.1".to_owned(),
            word if is_placeholder(word) => "1".to_owned(),
            word => word.to_owned(),
        }
    }

    /// Every document with commands for an operator: the guide, the runbooks, and what is installed beside them.
    fn documents() -> Vec<(PathBuf, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = vec![root.join("README.md")];
        for folder in ["ops", "ops/guide", "ops/runbooks", "ops/container", "ops/prometheus"] {
            let entries = std::fs::read_dir(root.join(folder)).expect("the folder exists");
            found.extend(entries.map(|entry| entry.expect("it can be listed").path()));
        }
        found.retain(|path| path.extension().is_some_and(|end| end == "md"));
        found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).expect("a text"))).collect()
    }

    #[test]
    fn every_command_line_of_the_documents_is_valid() {
        let mut wrong = Vec::new();
        let mut count = 0;
        for (path, text) in documents() {
            for (words, is_complete) in quoted_commands(&text) {
                count += 1;
                wrong.extend(fault(&words, is_complete).map(|error| format!("{}: {words:?}: {error}", path.display())));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(count > 150, "only {count} command lines");

        let page = "Run `mdgw ha hand-ovr` and `mdgw tail --jsn`; `mdgw report` is only named.\n\n    $ sudo mdgw report\n    \
                    mdgw capture a.toml \\\n        --no-such b | wc\n    mdgw tail --line GROUP:PORT --count N >/dev/null\n";
        let found = quoted_commands(page);
        let wrong: Vec<_> = found
            .iter()
            .filter(|(words, all)| fault(words, *all).is_some())
            .map(|(words, _)| words.join(" "))
            .collect();
        assert_eq!(found.len(), 6);
        assert_eq!(wrong, ["mdgw ha hand-ovr", "mdgw tail --jsn", "mdgw report", "mdgw capture a.toml --no-such b"]);
    }

    /// Why the parser refuses a command line. One that is only named may lack arguments, and its last option a value.
    fn fault(words: &[String], is_complete: bool) -> Option<String> {
        use clap::error::ErrorKind::{
            DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion, InvalidValue,
            MissingRequiredArgument, MissingSubcommand,
        };
        let error = Cli::try_parse_from(words).err()?;
        let is_fault = match error.kind() {
            DisplayHelp | DisplayVersion => false,
            InvalidValue if words.last().is_some_and(|last| last.starts_with("--")) => is_complete,
            MissingRequiredArgument | MissingSubcommand | DisplayHelpOnMissingArgumentOrSubcommand => is_complete,
            _ => true,
        };
        is_fault.then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn every_command_has_a_man_page_and_shell_completions() {
        let pages = man::pages(Cli::command());
        for (path, _) in commands() {
            let name = format!("{}.1", path.replace(' ', "-"));
            let (_, page) = pages.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("no page {name}"));
            let page = String::from_utf8_lossy(page).replace("\\-", "-");
            assert!(page.contains(".TH") && page.contains(&path.replace(' ', "-")), "{name}: {page}");
        }
        for shell in <clap_complete::Shell as clap::ValueEnum>::value_variants() {
            let script = String::from_utf8(completions::script(*shell, Cli::command())).unwrap();
            for word in ["capture", "hand-over", "until-loss"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    /// An option without effect is an error instead of being ignored.
    #[test]
    fn impairment_options_are_refused_without_lines() {
        let damages = ["--loss 0.1", "--duplicate 0.1", "--reorder 0.1", "--skew-us 5", "--never-on-all", "--seed 2"];
        for elsewhere in ["", " --to 239.1.1.1:7", " --map 239.1.1.1=239.1.1.2", " --offline"] {
            for damage in damages {
                let typed = format!("mdgw replay a.pcap {damage}{elsewhere}");
                let error = Cli::try_parse_from(typed.split(' ')).expect_err(&typed);
                assert_eq!(error.exit_code(), 2, "{typed}");
            }
        }
        let on_lines = format!("mdgw replay a.pcap --lines 239.1.1.1:7,239.1.1.2:7 {}", damages.join(" "));
        assert!(Cli::try_parse_from(on_lines.split(' ')).is_ok(), "{on_lines}");
    }

    #[test]
    fn a_mistyped_command_or_option_gets_a_suggestion() {
        for (typed, meant) in [("mdgw replya a.pcap", "replay"), ("mdgw replay --ofline a.pcap", "--offline")] {
            let error = Cli::try_parse_from(typed.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains("similar") && text.contains(meant), "{text}");
        }
    }
}
