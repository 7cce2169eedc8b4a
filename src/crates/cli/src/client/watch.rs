//! `bowline watch`: prints changes of keys, or runs a command for each change.
//!
//! If a watch loses its server, the command opens a new watch at the next server, starting after the last printed
//! change or progress notification. No change is lost or repeated.

use std::ffi::OsString;
use std::io::{self, BufRead};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure, passes};
use super::ordered::is_ordered;
use super::print::{Output, kv};
use super::quote;
use super::range::{prefix_end, revision};
use bowline_proto::etcdserverpb as pb;
use pb::watch_request::RequestUnion;

/// Capacity of the queue of watch requests.
const REQUESTS: usize = 4;

/// Pause before a reconnect, after no server could be reached or a connection has failed.
const REOPEN_PAUSE: Duration = Duration::from_millis(300);

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
    Watching::new(client, output, options.what)?.go_on(asked).await
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
                    .and_then(|line| Watching::new(Arc::clone(&client), output, line.what));
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

/// An open watch stream.
struct Open {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    link: Link,
    /// Whether the server's progress notifications are reliable.
    is_ordered: bool,
}

/// A watch and its progress.
struct Watching {
    client: Arc<Client>,
    output: Output,
    request: pb::WatchCreateRequest,
    command: Vec<OsString>,
}

impl Watching {
    fn new(client: Arc<Client>, output: Output, what: What) -> Result<Self, Failure> {
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
        Ok(Self { client, output, request, command: what.command })
    }

    /// Prints changes until a failure that a retry cannot fix.
    async fn go_on(&mut self, mut asked: watch::Receiver<u64>) -> Result<(), Failure> {
        let mut was_open = false;
        loop {
            let Open { requests, mut answers, link, is_ordered } = match self.open().await {
                Ok(open) => open,
                // After the first success, errors are retried without limit until the user interrupts.
                Err(failure) if was_open && passes(&failure) => {
                    tokio::time::sleep(REOPEN_PAUSE).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            was_open = true;
            let status = loop {
                tokio::select! {
                    answer = answers.message() => match answer {
                        Ok(Some(answer)) => self.heard(answer, is_ordered).await?,
                        Ok(None) => break Status::unavailable("the server closed the watch stream"),
                        Err(status) => break status,
                    },
                    Ok(()) = asked.changed() => {
                        let union = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                        // Errors are ignored: if the stream has ended, it is reopened.
                        drop(requests.send(request(union)).await);
                    }
                }
            };
            let has_ended = status.code() == Code::Ok;
            let failure = Failure::Refused(status);
            if !has_ended && !passes(&failure) {
                return Err(failure);
            }
            self.client.leave(&link).await;
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
    }

    async fn open(&self) -> Result<Open, Failure> {
        let begun = async |link: Link| {
            let (requests, stream) = mpsc::channel(REQUESTS);
            let union = RequestUnion::CreateRequest(self.request.clone());
            // Sending does not wait, because the channel is empty.
            drop(requests.send(request(union)).await);
            let answers = link.watch().watch(ReceiverStream::new(stream)).await?.into_inner();
            let is_ordered = is_ordered(&link).await;
            Ok(tonic::Response::new(Open { requests, answers, link, is_ordered }))
        };
        self.client.ask(Effect::Repeatable, begun).await
    }

    async fn heard(&mut self, answer: pb::WatchResponse, is_ordered: bool) -> Result<(), Failure> {
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        if answer.canceled {
            let reason = match answer.compact_revision {
                0 => answer.cancel_reason.clone(),
                _ => "etcdserver: mvcc: required revision has been compacted".to_owned(),
            };
            let ended = Failure::Failed(format!("the watch was canceled: {reason}"));
            if self.output.format != super::options::Format::Simple {
                self.output.show(&answer)?;
            }
            return Err(ended);
        }
        if answer.created {
            if self.request.start_revision == 0 {
                self.request.start_revision = revision + 1;
            }
            return Ok(());
        }
        if answer.events.is_empty() {
            if is_ordered {
                // All changes up to this revision were delivered, so a reopened watch can start after it. An older
                // start revision might be compacted by then.
                self.request.start_revision = self.request.start_revision.max(revision + 1);
            }
            self.output.say(format!("progress notify: {revision}"))?;
        }
        self.output.show(&answer)?;
        for event in &answer.events {
            let row = event.kv.clone().unwrap_or_default();
            self.request.start_revision = self.request.start_revision.max(row.mod_revision + 1);
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

fn request(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(union) }
}
