//! `bowline snapshot status`, `bowline snapshot restore`, `bowline recover` and `bowline inspect`. These commands work
//! on files that no node is using. The library does the work ([`bowline::backup`]); this module defines the arguments
//! and the output.

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

/// Exit code if the command failed or found a problem.
const EXIT_FAILED: u8 = 1;

/// Verify every byte of a snapshot, and show its contents
///
/// The snapshot may be written by `bowline snapshot save`, or by a program that embeds Bowline, with Node::backup.
///
/// Exit codes: 0 if every byte is intact, 1 if not, 2 for wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct VerifyOptions {
    /// Snapshot or backup to verify
    file: PathBuf,

    #[command(flatten)]
    output: Output,
}

/// Make a backup from a stopped member after the majority was lost permanently
///
/// Do not use this command while a majority of the members still has its disks. Start that majority instead, and
/// replace the lost members. The command does not change the directory. If several members are left, use the member
/// with the highest term, as shown by `bowline inspect`. If several have that term, use the one with the highest last
/// entry.
///
/// Exit codes: 0 if the backup was made, 1 if it failed or was not confirmed, 2 for wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct RecoverOptions {
    /// Data directory of the member
    #[arg(long)]
    dir: PathBuf,

    /// Backup file to create (must not exist)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Skip the confirmation that data may be lost
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    output: Output,
}

/// Show which member a data directory belongs to, and its contents
///
/// Reads the whole directory without changing it. No node may be running on the directory.
///
/// Exit codes: 0 if there are no problems, 1 if data is damaged or the directory belongs to no member, 2 for wrong
/// arguments.
#[derive(Args, Debug)]
pub(crate) struct InspectOptions {
    /// Data directory to inspect
    dir: PathBuf,

    #[command(flatten)]
    output: Output,
}

#[derive(Args, Clone, Copy, Debug)]
struct Output {
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

pub(crate) fn verify_main(options: &VerifyOptions, format: Format) -> ExitCode {
    let format = if options.output.json { Format::Json } else { format };
    let bar = Bar::begin("reads", format != Format::Simple);
    let verified = backup::verify_with(&options.file, &mut |done, total| bar.at(done, total));
    bar.end();
    print_result(verified, |info| report::of_backup(&info, format))
}

pub(crate) fn recover_main(options: &RecoverOptions) -> ExitCode {
    if !options.yes {
        match confirmed() {
            Ok(true) => {}
            Ok(false) => {
                crate::print_failure(&"nothing was changed: pass --yes to confirm");
                return ExitCode::from(EXIT_FAILED);
            }
            Err(error) => return failed(&error),
        }
    }
    let bar = Bar::begin("recovers", options.output.json);
    let recovered =
        backup::recover_with(&options.dir, &options.out, &mut |done, total| bar.at(done, total));
    bar.end();
    print_result(recovered, |recovered| report::of_recovered(&recovered, options.output.json))
}

/// Asks at the terminal for confirmation.
fn confirmed() -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    let mut terminal = io::stderr().lock();
    write!(
        terminal,
        "A backup of one member may lack writes that the other members acknowledged. While a majority of the members \
         has its disks, start those instead.\nIs the majority lost for good? [y/N] "
    )?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

pub(crate) fn inspect_main(options: &InspectOptions) -> ExitCode {
    let bar = Bar::begin("reads", options.output.json);
    let info = backup::inspect_with(&options.dir, &mut |done, total| bar.at(done, total));
    bar.end();
    print_result(info, |info| report::of_directory(&info, options.output.json))
}

fn print_result<T>(result: Result<T, BackupError>, report: impl FnOnce(T) -> Report) -> ExitCode {
    match result {
        Ok(result) => {
            let report = report(result);
            match report.print() {
                Err(error) => failed(&error),
                Ok(()) if report.is_ok() => ExitCode::SUCCESS,
                Ok(()) => ExitCode::from(EXIT_FAILED),
            }
        }
        Err(error @ (BackupError::Config(_) | BackupError::Jump { .. })) => {
            crate::print_failure(&error);
            ExitCode::from(crate::EXIT_USAGE)
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    crate::print_failure(error);
    ExitCode::from(EXIT_FAILED)
}
