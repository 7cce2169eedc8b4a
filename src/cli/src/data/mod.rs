//! `bowline snapshot status` and `restore`, `bowline recover` and `bowline inspect`: what can be done with files while
//! no node runs on them. What they do is the library's ([`bowline::backup`]); here are their arguments, and what
//! people and machines see of them.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bowline::backup::{self, BackupError};
use clap::Args;

use crate::client::Format;

mod report;
mod restore;

pub(crate) use report::Bar;
use report::Report;
pub(crate) use restore::{RestoreArguments, restore_main};

/// It could not be done, or not all is well.
const EXIT_FAILED: u8 = 1;

/// Check every byte of a snapshot, and say what is in it
///
/// A snapshot is what `bowline snapshot save` writes, or a program that embeds Bowline, with Node::backup.
///
/// Exit codes: 0 every byte is as it was written; 1 not; 2 wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct VerifyOptions {
    /// The snapshot, or backup
    file: PathBuf,

    #[command(flatten)]
    output: Output,
}

/// Make a backup of what a stopped member has, when the majority is lost for ever
///
/// While a majority of the members has its disks, do not: start it, and replace the members that are lost.
/// Nothing of the directory is changed. Of several members that are left, take the one with the highest
/// term, and among those the one with the highest last entry, as `bowline inspect` shows them.
///
/// Exit codes: 0 done; 1 failed, or not confirmed; 2 wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct RecoverOptions {
    /// The data directory of the member
    #[arg(long)]
    dir: PathBuf,

    /// The backup that is made; it must not be there yet
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// What may be lost is known: do not ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    output: Output,
}

/// Say whose data directory this is, and what is in it
///
/// Reads all of it and changes nothing. No node may run on it.
///
/// Exit codes: 0 all is well; 1 something is damaged, or there is no member; 2 wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct InspectOptions {
    /// The data directory
    dir: PathBuf,

    #[command(flatten)]
    output: Output,
}

#[derive(Args, Clone, Copy, Debug)]
struct Output {
    /// Print one JSON object, and nothing else
    #[arg(long)]
    json: bool,
}

/// `bowline snapshot status`.
pub(crate) fn verify_main(options: &VerifyOptions, format: Format) -> ExitCode {
    let format = if options.output.json { Format::Json } else { format };
    if format == Format::Protobuf {
        crate::complain(&"protobuf is not supported here: use -w simple, json, fields or table");
        return ExitCode::from(crate::EXIT_USAGE);
    }
    let bar = Bar::begin("reads", format != Format::Simple);
    let verified = backup::verify_with(&options.file, &mut |done, total| bar.at(done, total));
    bar.end();
    told(verified, |info| report::of_backup(&info, format))
}

/// `bowline recover`.
pub(crate) fn recover_main(options: &RecoverOptions) -> ExitCode {
    if !options.yes {
        match confirmed() {
            Ok(true) => {}
            Ok(false) => {
                crate::complain(&"nothing was done: give --yes if it is to be done");
                return ExitCode::from(EXIT_FAILED);
            }
            Err(error) => return failed(&error),
        }
    }
    let bar = Bar::begin("recovers", options.output.json);
    let recovered =
        backup::recover_with(&options.dir, &options.out, &mut |done, total| bar.at(done, total));
    bar.end();
    told(recovered, |recovered| report::of_recovered(&recovered, options.output.json))
}

/// Whether somebody at a terminal says that they know what they do.
fn confirmed() -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    let mut terminal = io::stderr().lock();
    write!(
        terminal,
        "A backup of one member may lack what the others acknowledged. While a majority of the members \
         has its disks, start that instead.\nIs the majority lost for ever? [y/N] "
    )?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// `bowline inspect`.
pub(crate) fn inspect_main(options: &InspectOptions) -> ExitCode {
    let bar = Bar::begin("reads", options.output.json);
    let info = backup::inspect_with(&options.dir, &mut |done, total| bar.at(done, total));
    bar.end();
    told(info, |info| report::of_directory(&info, options.output.json))
}

/// Prints what came of it.
fn told<T>(result: Result<T, BackupError>, report: impl FnOnce(T) -> Report) -> ExitCode {
    match result {
        Ok(result) => {
            let report = report(result);
            match report.print() {
                Err(error) => failed(&error),
                Ok(()) if report.is_well() => ExitCode::SUCCESS,
                Ok(()) => ExitCode::from(EXIT_FAILED),
            }
        }
        Err(error @ (BackupError::Config(_) | BackupError::Jump { .. })) => {
            crate::complain(&error);
            ExitCode::from(crate::EXIT_USAGE)
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    crate::complain(error);
    ExitCode::from(EXIT_FAILED)
}
