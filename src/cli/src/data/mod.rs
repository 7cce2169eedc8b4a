//! `bowline snapshot status` and `restore`, `bowline recover` and `bowline inspect`: what can be done with files while
//! no node runs on them. What they do is the library's ([`bowline::backup`]); here are their arguments, and what
//! people and machines see of them.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bowline::Config;
use bowline::backup::{self, BackupError, RestoreOptions};
use clap::Args;

mod report;

pub(crate) use report::Bar;
use report::Report;

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

/// Make the data directory of one member of a new cluster from a snapshot
///
/// Run it once for each member that founds the new cluster, with the same file, the same --member list, the
/// same token and the same jump; then start the members. What the new cluster has is what the snapshot has,
/// but for leases, which have all ended, and their keys, which are deleted. Revisions go on far above the
/// snapshot's, so that fencing tokens never repeat.
///
/// Exit codes: 0 done; 1 failed; 2 wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct RestoreArguments {
    /// The snapshot, or backup
    file: PathBuf,

    /// The data directory that is made: empty, or not there yet
    #[arg(long, alias = "data-dir")]
    dir: PathBuf,

    /// Which of the members it is for
    #[arg(long)]
    name: String,

    /// A member of the new cluster, this one too; once for each, or separated by commas. None for a cluster of one
    #[arg(long = "member", alias = "initial-cluster", value_name = "NAME=HOST:PORT", value_delimiter = ',',
          value_parser = member)]
    members: Vec<(String, String)>,

    /// The new cluster's token. That of `bowline serve` is the same, if nothing is said; a program that embeds Bowline has
    /// an empty one, unless it names one
    #[arg(long, alias = "initial-cluster-token", default_value = "etcd-cluster")]
    token: String,

    /// By how much revisions rise
    ///
    /// More than the old cluster has written since the backup was taken. If a cluster was made from this
    /// backup before, more than that one jumped and wrote.
    #[arg(long, value_name = "REVISIONS", default_value_t = 1_000_000_000)]
    revision_jump: u64,

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

fn member(text: &str) -> Result<(String, String), String> {
    let (name, address) = text.split_once('=').ok_or("it is not NAME=HOST:PORT")?;
    let schemes = ["http://", "https://"];
    let bare = schemes.iter().find_map(|scheme| address.strip_prefix(scheme));
    Ok((name.to_owned(), bare.unwrap_or(address).to_owned()))
}

/// `bowline snapshot status`.
pub(crate) fn verify_main(options: &VerifyOptions, as_json: bool) -> ExitCode {
    let as_json = options.output.json || as_json;
    let bar = Bar::begin("reads", as_json);
    let verified = backup::verify_with(&options.file, &mut |done, total| bar.at(done, total));
    bar.end();
    told(verified, |info| report::of_backup(&info, as_json))
}

/// `bowline snapshot restore`.
pub(crate) fn restore_main(options: &RestoreArguments, as_json: bool) -> ExitCode {
    let as_json = options.output.json || as_json;
    let config = Config::new(&options.dir, &options.name)
        .members(options.members.clone())
        .cluster_token(&options.token);
    let how = RestoreOptions::default().revision_jump(options.revision_jump);
    let bar = Bar::begin("restores", as_json);
    let restored =
        backup::restore_with(&options.file, &config, &how, &mut |done, total| bar.at(done, total));
    bar.end();
    told(restored, |restored| report::of_restored(&restored, &options.name, as_json))
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
