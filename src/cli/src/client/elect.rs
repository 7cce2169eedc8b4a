//! `bowline elect`: leads while a command runs, or tells who leads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Response, Status};

use super::connect::{Client, Effect, Link};
use super::failure::{Failure, passes};
use super::hold::{ENVIRONMENT, EXIT_CODES, HoldRequest, hold};
use super::line::places;
use super::options::{duration, ttl};
use super::print::Output;
use super::range::prefix_end;
use super::stance::{MARK, Rule};
use crate::generated::etcdserverpb as pb;
use crate::generated::mvccpb::KeyValue;
use crate::generated::mvccpb::event::EventType;
use pb::watch_request::RequestUnion;

/// How long to wait before servers are asked again that could not be reached.
const AGAIN: Duration = Duration::from_millis(300);

const EXAMPLES: &str = "\
Examples:
  bowline elect db 10.0.0.7:5432 -- ./primary.sh     runs it while this one leads
  bowline elect db 10.0.0.7:5432                     until Ctrl-C
  bowline elect -l db                                who leads, now and whenever that changes";

/// Lead while a command runs, or until a signal comes; or tell who leads
///
/// One leads at a time; the others wait. The value is what observers are told. Stands in one line with `etcdctl
/// elect`, with etcd's concurrency package and with programs that embed Bowline. The command is ended before
/// somebody else can lead.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}"))]
pub(crate) struct ElectOptions {
    /// The election's name
    name: OsString,

    /// What this candidate is called, or where it is found
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    value: Option<OsString>,

    /// Tell who leads, whenever that changes
    #[arg(short, long)]
    listen: bool,

    /// How long the lead outlives this process if its machine is lost: 10, 10s, 1m. The server may grant more
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = ttl)]
    ttl: Duration,

    /// How long to wait for the turn: 500ms, 10s, 5m; 0 for not at all. For ever, if it is left out
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// What runs meanwhile
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The command.
pub(crate) async fn run(
    client: &Arc<Client>,
    output: Output,
    options: ElectOptions,
) -> Result<(), Failure> {
    let name = Bytes::from(options.name.into_vec());
    let Some(value) = options.value else { return listen(client, output, &name).await };
    let value = Bytes::from(value.into_vec());
    if value.starts_with(MARK.as_bytes()) {
        let why = format!("no candidate's value may begin with {MARK:?}: locks' values do");
        return Err(Failure::Usage(why));
    }
    let request = HoldRequest {
        name,
        rule: Rule::Alone,
        value,
        ttl: options.ttl,
        timeout: options.timeout,
        command: options.command,
        is_lock: false,
        shows_value: true,
    };
    hold(client, output, request).await
}

/// Tells who leads, and each that leads after, and what they say anew.
async fn listen(client: &Client, output: Output, name: &Bytes) -> Result<(), Failure> {
    let prefix = Bytes::from([name, &b"/"[..]].concat());
    let end = prefix_end(&prefix);
    // The last row that was printed.
    let mut told: Option<KeyValue> = None;
    let mut has_heard = false;
    loop {
        let request =
            pb::RangeRequest { key: prefix.clone(), range_end: end.clone(), ..Default::default() };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        let answer = match client.ask(Effect::Repeatable, call).await {
            Ok(answer) => answer,
            // However long it takes: it goes on until it is interrupted.
            Err(failure) if has_heard && passes(&failure) => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        has_heard = true;
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        let leader = places(name, answer.kvs).into_iter().next();
        if let Some(row) = &leader
            && leader != told
        {
            let kvs = vec![row.clone()];
            let answer = pb::RangeResponse { header: answer.header, kvs, more: false, count: 0 };
            output.show(&answer)?;
            told.clone_from(&leader);
        }
        // What the leader says, or its end; or that somebody enters.
        let watched = match leader {
            Some(row) => (row.key, Bytes::new()),
            None => (prefix.clone(), end.clone()),
        };
        follow(client, output, watched, revision + 1, &mut told).await?;
    }
}

/// Prints what a leader says anew; until it does not lead any more, or somebody might.
async fn follow(
    client: &Client,
    output: Output,
    (key, range_end): (Bytes, Bytes),
    from: i64,
    told: &mut Option<KeyValue>,
) -> Result<(), Failure> {
    let create = pb::WatchCreateRequest {
        key,
        range_end: range_end.clone(),
        start_revision: from,
        ..Default::default()
    };
    let open = async |link: Link| {
        let (requests, stream) = mpsc::channel(1);
        let union = Some(RequestUnion::CreateRequest(create.clone()));
        // It has room.
        drop(requests.send(pb::WatchRequest { request_union: union }).await);
        let answers = link.watch().watch(ReceiverStream::new(stream)).await?;
        Ok(Response::new((requests, answers.into_inner(), link)))
    };
    let (_requests, mut answers, link) = match client.ask(Effect::Repeatable, open).await {
        Ok(open) => open,
        Err(failure) if passes(&failure) => {
            tokio::time::sleep(AGAIN).await;
            return Ok(());
        }
        Err(failure) => return Err(failure),
    };
    loop {
        let answer = match answers.message().await {
            Ok(Some(answer)) if !answer.canceled => answer,
            Err(status) if is_final(&status) => return Err(Failure::Refused(status)),
            // Compacted, or the server has gone: who leads is looked up again.
            Ok(_) | Err(_) => {
                client.leave(&link).await;
                tokio::time::sleep(AGAIN).await;
                return Ok(());
            }
        };
        for event in &answer.events {
            let row = event.kv.clone().unwrap_or_default();
            if event.r#type == i32::from(EventType::Delete) || !range_end.is_empty() {
                return Ok(());
            }
            *told = Some(row.clone());
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

/// Whether it is of no use to ask again: not where a token has ended, for the next login gives another.
fn is_final(status: &Status) -> bool {
    status.code() != Code::Unauthenticated && !passes(&Failure::Refused(status.clone()))
}
