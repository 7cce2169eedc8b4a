//! `bowline watch`: prints changes of keys, or runs a command for each change.
//!
//! [`Watch`] continues at the next server if it loses its server.

use std::ffi::OsString;
use std::io::{self, BufRead};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use clap::{Args, Parser};
use tokio::sync::{mpsc, watch};

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
ETCD_WATCH_KEY and ETCD_WATCH_VALUE; all but the first are quoted, as by etcdctl. The watch ends if it fails.

With -i, lines are read from standard input: `watch [OPTIONS] KEY [RANGE_END] [-- COMMAND]` creates another watch,
`progress` requests the progress of all watches. Strings in double quotes may contain any bytes: with
`watch KEY \"\\x00\"` the range has no end.";

/// Watch keys for changes
///
/// Runs until interrupted. If KEY is omitted, watches the range from the variable ETCDCTL_WATCH_KEY to the variable
/// ETCDCTL_WATCH_RANGE_END.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct WatchOptions {
    /// Read watch commands from standard input
    #[arg(short, long)]
    interactive: bool,

    #[command(flatten)]
    what: What,
}

#[derive(Args, Clone, Debug)]
struct What {
    /// Key, or start of the range
    key: Option<OsString>,

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

#[derive(Parser, Debug)]
#[command(name = "watch", disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    what: What,
}

pub(crate) async fn run(
    client: Arc<Client>,
    output: Output,
    options: WatchOptions,
) -> Result<(), Failure> {
    if options.interactive {
        return interactive(client, output).await;
    }
    // The sender is kept alive. Nothing is sent on it, because progress requests exist only in interactive mode.
    let (_asks, asked) = watch::channel(0);
    Watching::new(&client, output, options.what)?.go_on(asked).await
}

async fn interactive(client: Arc<Client>, output: Output) -> Result<(), Failure> {
    let (lines, mut read) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let (asks, asked) = watch::channel(0u64);
    let (ended, mut ends) = mpsc::channel::<Failure>(1);
    loop {
        let line = tokio::select! {
            line = read.recv() => line,
            failure = ends.recv() => return Err(failure.unwrap_or(Failure::Exit(1))),
        };
        let line = match line {
            Some(Ok(line)) => line,
            Some(Err(error)) => {
                return Err(Failure::Local("cannot read standard input".to_owned(), error));
            }
            None => return Ok(()),
        };
        let words = quote::words(&line).map_err(Failure::Usage)?;
        match words.first().map(Vec::as_slice) {
            None => {}
            Some(b"watch") => {
                let words = words.into_iter().map(OsString::from_vec);
                let watching = crate::go_flags::parsed::<Line>(words)
                    .map_err(|error| Failure::Usage(error.to_string()))
                    .and_then(|line| Watching::new(&client, output, line.what));
                let (ended, asked) = (ended.clone(), asked.clone());
                match watching {
                    Ok(mut watching) => drop(tokio::task::spawn_local(async move {
                        if let Err(failure) = watching.go_on(asked).await {
                            drop(ended.send(failure).await);
                        }
                    })),
                    Err(failure) => failure.complain(),
                }
            }
            Some(b"progress") => asks.send_modify(|asks| *asks += 1),
            Some(_) => crate::complain(&format!("{line}: expected `watch ...` or `progress`")),
        }
    }
}

/// A watch, and what to do with its changes.
struct Watching {
    output: Output,
    watch: Watch,
    command: Vec<OsString>,
}

impl Watching {
    fn new(client: &Client, output: Output, what: What) -> Result<Self, Failure> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let (key, end) = match (what.key, variable("ETCDCTL_WATCH_KEY")) {
            (Some(_), Some(_)) => {
                let why =
                    "the key is given both as an argument and in ETCDCTL_WATCH_KEY: remove one";
                return Err(Failure::Usage(why.to_owned()));
            }
            (Some(key), None) => (key, what.range_end),
            (None, Some(key)) => (key, variable("ETCDCTL_WATCH_RANGE_END")),
            (None, None) => return Err(Failure::Usage("no key is given".to_owned())),
        };
        let mut key = key.into_vec();
        let range_end = match end {
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
        Ok(Self { output, watch: Watch::new(client.calls(), request), command: what.command })
    }

    /// Prints changes until a failure that a retry cannot fix.
    async fn go_on(&mut self, mut asked: watch::Receiver<u64>) -> Result<(), Failure> {
        loop {
            let answer = tokio::select! {
                answer = self.watch.next() => answer,
                Ok(()) = asked.changed() => {
                    self.watch.ask_progress();
                    continue;
                }
            };
            match answer {
                Ok(answer) => self.heard(&answer).await?,
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

    async fn heard(&self, answer: &pb::WatchResponse) -> Result<(), Failure> {
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
                    // The command must not read standard input, which may carry the interactive commands.
                    .stdin(Stdio::null())
                    .kill_on_drop(true)
                    .status();
                judge(program, run.await)?;
            }
        }
        Ok(())
    }
}

fn judge(program: &OsString, run: io::Result<ExitStatus>) -> Result<(), Failure> {
    let name = program.as_bytes().escape_ascii();
    match run {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Failed(format!("{name}: {status}"))),
        Err(error) => Err(Failure::Local(name.to_string(), error)),
    }
}
