//! `bowline watch`: prints changes of keys, or runs a command for each change.
//!
//! If the connection to a server breaks, [`Watch`] continues at the next server.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use clap::Args;

use super::connect::Client;
use super::failure::{EXIT_CODES, Failure};
use super::print::{Output, kv};
use super::quote;
use super::range::revision;
use bowline_client::{Error, Watch, prefix_end};
use bowline_proto::etcdserverpb as pb;

const EXAMPLES: &str = "\
Examples:
  bowline watch greeting
  bowline watch config/ --prefix --rev 7             all changes from revision 7 on
  bowline watch config/ --prefix -- ./reload.sh      run the command after each change, one at a time

The command's environment has ETCD_WATCH_REVISION, ETCD_WATCH_EVENT_TYPE (\"PUT\" or \"DELETE\"),
ETCD_WATCH_KEY and ETCD_WATCH_VALUE; all but the first are quoted, as by etcdctl. The watch ends if it fails.";

/// Watch keys for changes
///
/// Runs until interrupted.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct WatchOptions {
    /// Key, or start of the range
    key: OsString,

    /// End of the range (exclusive)
    #[arg(conflicts_with = "prefix")]
    range_end: Option<OsString>,

    /// Treat KEY as a prefix
    #[arg(long)]
    prefix: bool,

    /// Start with the changes of this revision (0: only new changes)
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    rev: i64,

    /// Also print the previous key and value
    #[arg(long)]
    prev_kv: bool,

    /// Print progress notifications while nothing changes
    #[arg(long)]
    progress_notify: bool,

    /// Command to run for each change
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) async fn run(
    client: Arc<Client>,
    output: Output,
    options: WatchOptions,
) -> Result<(), Failure> {
    Watching::new(&client, output, options).print_changes().await
}

/// A watch, and what to do with its changes.
struct Watching {
    output: Output,
    watch: Watch,
    command: Vec<OsString>,
}

impl Watching {
    fn new(client: &Client, output: Output, what: WatchOptions) -> Self {
        let mut key = what.key.into_vec();
        let range_end = match what.range_end {
            Some(end) => end.into_vec().into(),
            None if what.prefix => prefix_end(&key),
            None => Default::default(),
        };
        if key.is_empty() && what.prefix {
            key = vec![0];
        }
        let request = pb::WatchCreateRequest {
            key: key.into(),
            range_end,
            start_revision: what.rev,
            prev_kv: what.prev_kv,
            progress_notify: what.progress_notify,
            ..Default::default()
        };
        Self { output, watch: Watch::new(client.calls(), request), command: what.command }
    }

    /// Prints changes until a failure that a retry cannot fix.
    async fn print_changes(&mut self) -> Result<(), Failure> {
        loop {
            match self.watch.next().await {
                Ok(answer) => self.received(&answer).await?,
                Err(error) => {
                    if let Error::Canceled(answer) = &error
                        && self.output.format != super::options::Format::Simple
                    {
                        self.output.show(&**answer)?;
                    }
                    return Err(error.into());
                }
            }
        }
    }

    async fn received(&self, answer: &pb::WatchResponse) -> Result<(), Failure> {
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        if answer.events.is_empty() {
            self.output.say(format!("progress notify: {revision}"))?;
        }
        self.output.show(answer)?;
        for event in &answer.events {
            let row = event.kv.clone().unwrap_or_default();
            if let Some((program, arguments)) = self.command.split_first() {
                let run = tokio::process::Command::new(program)
                    .args(arguments)
                    .env("ETCD_WATCH_REVISION", revision.to_string())
                    .env("ETCD_WATCH_EVENT_TYPE", quote::go(kv::kind(event).as_bytes()))
                    .env("ETCD_WATCH_KEY", quote::go(&row.key))
                    .env("ETCD_WATCH_VALUE", quote::go(&row.value))
                    .stdin(Stdio::null())
                    .kill_on_drop(true)
                    .status();
                check_status(program, run.await)?;
            }
        }
        Ok(())
    }
}

fn check_status(program: &OsString, run: io::Result<ExitStatus>) -> Result<(), Failure> {
    let name = program.as_bytes().escape_ascii();
    match run {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Failed(format!("{name}: {status}"))),
        Err(error) => Err(Failure::Local(name.to_string(), error)),
    }
}
