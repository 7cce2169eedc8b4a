//! `bowline watch`: prints changes of keys, or runs a command for each change.
//!
//! If a watch loses its server, the command opens a new watch at the next server, starting after the last printed
//! change or progress notification. No change is lost or repeated.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::mpsc;
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

/// Pause before a reconnect, after no server could be reached or a connection has failed.
const REOPEN_PAUSE: Duration = Duration::from_millis(300);

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
    Watching::new(client, output, options).go_on().await
}

/// An open watch stream.
struct Open {
    answers: Streaming<pb::WatchResponse>,
    link: Link,
    /// Whether the server's progress notifications are reliable.
    is_ordered: bool,
    /// Keeps the stream open.
    _requests: mpsc::Sender<pb::WatchRequest>,
}

/// A watch and its progress.
struct Watching {
    client: Arc<Client>,
    output: Output,
    request: pb::WatchCreateRequest,
    command: Vec<OsString>,
}

impl Watching {
    fn new(client: Arc<Client>, output: Output, what: WatchOptions) -> Self {
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
        Self { client, output, request, command: what.command }
    }

    /// Prints changes until a failure that a retry cannot fix.
    async fn go_on(&mut self) -> Result<(), Failure> {
        let mut was_open = false;
        loop {
            let Open { mut answers, link, is_ordered, _requests } = match self.open().await {
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
                match answers.message().await {
                    Ok(Some(answer)) => self.heard(answer, is_ordered).await?,
                    Ok(None) => break Status::unavailable("the server closed the watch stream"),
                    Err(status) => break status,
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
            let (requests, stream) = mpsc::channel(1);
            let union = RequestUnion::CreateRequest(self.request.clone());
            // Sending does not wait, because the channel is empty.
            drop(requests.send(pb::WatchRequest { request_union: Some(union) }).await);
            let answers = link.watch().watch(ReceiverStream::new(stream)).await?.into_inner();
            let is_ordered = is_ordered(&link).await;
            Ok(tonic::Response::new(Open { answers, link, is_ordered, _requests: requests }))
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
