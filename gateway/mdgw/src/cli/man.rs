//! `mdgw man`: manual pages, generated from the definitions of the commands.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use clap_mangen::Man;

use super::{Outcome, WRITE_STDOUT};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw man | man -l -
  mdgw man /usr/local/share/man/man1")]
pub(super) struct Args {
    /// Directory to write all pages to (mdgw.1, mdgw-replay.1, …). Without it the page of mdgw itself is printed.
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &Args, command: clap::Command) -> anyhow::Result<Outcome> {
    let pages = pages(command);
    match &args.folder {
        None => {
            let mut stdout = io::stdout().lock();
            let page = pages.first().map_or(&[][..], |(_, page)| page);
            stdout.write_all(page).and_then(|()| stdout.flush()).context(WRITE_STDOUT)?;
        }
        Some(folder) => {
            fs::create_dir_all(folder).with_context(|| format!("create directory {}", folder.display()))?;
            for (name, page) in pages {
                let path = folder.join(name);
                fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
            }
        }
    }
    Ok(Outcome::Done)
}

/// File name and content of every page; the page of `mdgw` itself comes first.
pub(super) fn pages(mut command: clap::Command) -> Vec<(String, Vec<u8>)> {
    command.build();
    let mut pages = Vec::new();
    add_pages("mdgw".to_owned(), &command, &mut pages);
    pages
}

fn add_pages(name: String, command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) {
    let mut page = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(command.clone()).title(name.to_uppercase()).render(&mut page);
    pages.push((format!("{name}.1"), page));
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        add_pages(format!("{name}-{}", subcommand.get_name()), subcommand, pages);
    }
}
