//! `bowline endpoint`: prints the health, the status or a hash of the data of each server.

use std::time::Instant;

use clap::{Args, Subcommand};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::options::Format;
use super::print::Output;
use super::print::cluster::{EndpointHealth, Hashes, Health, Statuses};
use super::range::revision;
use bowline_proto::etcdserverpb as pb;

/// Check server endpoints
#[derive(Args, Debug)]
pub(crate) struct EndpointOptions {
    /// Use all endpoints from the member list
    #[arg(long, global = true)]
    cluster: bool,

    #[command(subcommand)]
    command: EndpointCommand,
}

#[derive(Subcommand, Debug)]
enum EndpointCommand {
    /// Check that each server can serve linearizable reads and has no alarm
    #[command(after_long_help = EXIT_CODES)]
    Health,
    /// Show the status of each server: endpoint, id, version, storage version, size, size in use, percentage not in
    /// use, quota, leader, learner, Raft term, Raft index, applied index, errors, downgrade
    #[command(after_long_help = EXIT_CODES)]
    Status,
    /// Show a hash of each server's keys (servers with equal keys have equal hashes)
    #[command(after_long_help = EXIT_CODES)]
    Hashkv {
        /// Revision to hash (0: the newest)
        #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
        rev: i64,
    },
}

/// Returns the configured endpoints or, with `cluster`, those of the member list.
pub(crate) async fn endpoints(client: &Client, cluster: bool) -> Result<Vec<String>, Failure> {
    if !cluster {
        return Ok(client.settings.endpoints.clone());
    }
    let members = super::member::members(client, false).await?.members;
    let silent = members.iter().filter(|member| member.client_ur_ls.is_empty());
    let silent: Vec<_> = silent.map(|member| member.name.as_str()).collect();
    if !silent.is_empty() {
        let why = "its client URL is not known; name it with --endpoints";
        crate::print_failure(&format!("skipped member {}: {why}", silent.join(", ")));
    }
    Ok(members.into_iter().flat_map(|member| member.client_ur_ls).collect())
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: EndpointOptions,
) -> Result<(), Failure> {
    let endpoints = endpoints(client, options.cluster).await?;
    match options.command {
        EndpointCommand::Health => {
            // All servers are checked at once, so that a server that hangs does not delay the check of the others.
            let looks = endpoints.into_iter().map(|endpoint| {
                let client = client.of_one(&endpoint);
                tokio::task::spawn_local(async move { health(&client, endpoint).await })
            });
            let mut all = Vec::new();
            for look in looks.collect::<Vec<_>>() {
                all.extend(look.await);
            }
            let sick = all.iter().filter_map(|health: &EndpointHealth| {
                Some((health.endpoint.clone(), health.error.clone()?))
            });
            let sick: Vec<_> = sick.collect();
            output.show(&Health(all))?;
            if sick.is_empty() {
                return Ok(());
            }
            if output.format == Format::Simple {
                for (endpoint, error) in &sick {
                    crate::print_failure(&format!(
                        "{endpoint} is unhealthy: failed to commit proposal: {error}"
                    ));
                }
            }
            Err(Failure::Failed("unhealthy cluster".to_owned()))
        }
        EndpointCommand::Status => {
            let call = async |link: Link| link.maintenance().status(pb::StatusRequest {}).await;
            let (found, failed) = each(client, &endpoints, "status", call).await;
            output.show(&Statuses(found))?;
            failed.map_or(Ok(()), Err)
        }
        EndpointCommand::Hashkv { rev } => {
            let request = pb::HashKvRequest { revision: rev };
            let call = async |link: Link| link.maintenance().hash_kv(request).await;
            let (found, failed) = each(client, &endpoints, "hash", call).await;
            output.show(&Hashes(found))?;
            failed.map_or(Ok(()), Err)
        }
    }
}

/// Sends the same request to each endpoint. Failures are reported on standard error.
async fn each<T>(
    client: &Client,
    endpoints: &[String],
    what: &str,
    call: impl AsyncFn(Link) -> Result<tonic::Response<T>, tonic::Status>,
) -> (Vec<(String, T)>, Option<Failure>) {
    let (mut found, mut failed) = (Vec::new(), None);
    for endpoint in endpoints {
        match client.of_one(endpoint).ask(CallKind::Repeatable, &call).await {
            Ok(answer) => found.push((endpoint.clone(), answer)),
            Err(failure) => {
                crate::print_failure(&format!("cannot read the {what} of {endpoint}: {failure}"));
                failed = Some(Failure::Exit(failure.code()));
            }
        }
    }
    (found, failed)
}

async fn health(client: &Client, endpoint: String) -> EndpointHealth {
    let begun = Instant::now();
    let get = pb::RangeRequest { key: "health".into(), ..Default::default() };
    let read =
        client.ask(CallKind::Repeatable, async |link: Link| link.kv().range(get.clone()).await);
    let error = match read.await {
        Ok(_) => None,
        // The read was confirmed by a majority before the permission was checked.
        Err(Failure::Refused(status)) if status.message().contains("permission denied") => None,
        Err(failure) => Some(failure.to_string()),
    };
    let took = begun.elapsed();
    let error = match error {
        Some(error) => Some(error),
        None => {
            let call =
                async |link: Link| link.maintenance().alarm(pb::AlarmRequest::default()).await;
            match client.ask(CallKind::Repeatable, call).await {
                Ok(answer) if answer.alarms.is_empty() => None,
                Ok(answer) => {
                    let name = |alarm: &pb::AlarmMember| match alarm.alarm() {
                        // An alarm type that etcd 3.6 does not know decodes as `None`.
                        pb::AlarmType::None => "UNKNOWN ".to_owned(),
                        kind => format!("{} ", kind.as_str_name()),
                    };
                    let names: String = answer.alarms.iter().map(name).collect();
                    Some(format!("Active Alarm(s): {names}"))
                }
                Err(_) => Some("Unable to fetch the alarm list".to_owned()),
            }
        }
    };
    EndpointHealth { endpoint, took, error }
}
