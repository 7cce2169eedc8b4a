//! `bowline elect`: campaigns in an election and runs a command while leading, or prints the current leader.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use tonic::{Code, Response, Status};

use super::connect::{CallKind, Client, Link};
use super::failure::{Failure, passes};
use super::hold::{ENVIRONMENT, EXIT_CODES, HoldRequest, hold};
use super::options::{duration, ttl};
use super::print::Output;
use bowline_client::prefix_end;
use bowline_client::queue_entries;
use bowline_client::{LOCK_MARK, LockMode};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::KeyValue;
use bowline_proto::mvccpb::event::EventType;

/// Pause before a retry after the servers could not be reached.
const RETRY_DELAY: Duration = Duration::from_millis(300);

const EXAMPLES: &str = "\
Examples:
  bowline elect db 10.0.0.7:5432 -- ./primary.sh     run the command while this candidate leads
  bowline elect db 10.0.0.7:5432                     lead until Ctrl-C
  bowline elect -l db                                print the leader, now and after each change";

/// Lead an election while a command runs or until a signal; or print the leader
///
/// One candidate leads at a time, and the other candidates wait. VALUE is shown to observers of the election.
/// Candidates of `etcdctl elect`, of etcd's concurrency package and of programs that embed Bowline wait in the same
/// queue. The command is ended before another candidate can lead.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}"))]
pub(crate) struct ElectOptions {
    /// Name of the election
    name: OsString,

    /// Value of this candidate, for example its name or address
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    value: Option<OsString>,

    /// Print the current leader, and print the leader again after each change
    #[arg(short, long)]
    listen: bool,

    /// Session TTL: 10, 10s, 1m (how long the lead is kept if this machine fails; the server may grant more)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = ttl)]
    ttl: Duration,

    /// Maximum time to wait for leadership: 500ms, 10s, 5m (0: do not wait) [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// Command to run while leading
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

pub(crate) async fn run(
    client: &Arc<Client>,
    output: Output,
    options: ElectOptions,
) -> Result<(), Failure> {
    let name = Bytes::from(options.name.into_vec());
    let Some(value) = options.value else { return listen(client, output, &name).await };
    let value = Bytes::from(value.into_vec());
    if value.starts_with(LOCK_MARK.as_bytes()) {
        let why = format!("invalid value: {LOCK_MARK:?} at its beginning is reserved for locks");
        return Err(Failure::Usage(why));
    }
    let request = HoldRequest {
        name,
        mode: LockMode::Alone,
        value,
        ttl: options.ttl,
        timeout: options.timeout,
        command: options.command,
        is_lock: false,
        shows_value: true,
    };
    hold(client, output, request).await
}

/// Prints the leader, each new leader, and each new value of the leader.
async fn listen(client: &Client, output: Output, name: &Bytes) -> Result<(), Failure> {
    let prefix = Bytes::from([name, &b"/"[..]].concat());
    let end = prefix_end(&prefix);
    // The leader's row that was printed last.
    let mut shown: Option<KeyValue> = None;
    let mut has_heard = false;
    loop {
        let request =
            pb::RangeRequest { key: prefix.clone(), range_end: end.clone(), ..Default::default() };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        let answer = match client.ask(CallKind::Repeatable, call).await {
            Ok(answer) => answer,
            // After the first answer, errors are retried without limit until the user interrupts.
            Err(failure) if has_heard && passes(&failure) => {
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        has_heard = true;
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        let leader = queue_entries(name, answer.kvs).into_iter().next();
        if let Some(row) = &leader
            && leader != shown
        {
            let kvs = vec![row.clone()];
            let answer = pb::RangeResponse { header: answer.header, kvs, more: false, count: 0 };
            output.show(&answer)?;
            shown.clone_from(&leader);
        }
        // If there is a leader, watch its row for new values and deletion; otherwise watch for new candidates.
        let watched = match leader {
            Some(row) => (row.key, Bytes::new()),
            None => (prefix.clone(), end.clone()),
        };
        follow(client, output, watched, revision + 1, &mut shown).await?;
    }
}

/// Prints each new value of the leader. Returns when the leader's row is deleted. If there is no leader, returns when
/// the first candidate appears.
async fn follow(
    client: &Client,
    output: Output,
    (key, range_end): (Bytes, Bytes),
    from: i64,
    shown: &mut Option<KeyValue>,
) -> Result<(), Failure> {
    let create = pb::WatchCreateRequest {
        key,
        range_end: range_end.clone(),
        start_revision: from,
        ..Default::default()
    };
    let open = async |link: Link| {
        let (requests, answers) = link.open_watches([create.clone()]).await?;
        Ok(Response::new((requests, answers, link)))
    };
    let (_requests, mut answers, link) = match client.ask(CallKind::Repeatable, open).await {
        Ok(open) => open,
        Err(failure) if passes(&failure) => {
            tokio::time::sleep(RETRY_DELAY).await;
            return Ok(());
        }
        Err(failure) => return Err(failure),
    };
    loop {
        let answer = match answers.message().await {
            Ok(Some(answer)) if !answer.canceled => answer,
            Err(status) if is_final(&status) => return Err(Failure::Refused(status)),
            // The revision was compacted or the connection ended, so the caller must look up the leader again.
            Ok(_) | Err(_) => {
                client.leave(&link).await;
                tokio::time::sleep(RETRY_DELAY).await;
                return Ok(());
            }
        };
        for event in &answer.events {
            let row = event.kv.clone().unwrap_or_default();
            if event.r#type == i32::from(EventType::Delete) || !range_end.is_empty() {
                return Ok(());
            }
            *shown = Some(row.clone());
            let kvs = vec![row];
            output.show(&pb::RangeResponse {
                header: answer.header,
                kvs,
                more: false,
                count: 0,
            })?;
        }
    }
}

/// Returns whether a retry cannot succeed. An expired token is not final, because the next login obtains a new token.
fn is_final(status: &Status) -> bool {
    status.code() != Code::Unauthenticated && !passes(&Failure::Refused(status.clone()))
}
