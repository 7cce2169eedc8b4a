//! `bowline endpoint`: how each server is, one by one.

use std::time::Instant;

use clap::{Args, Subcommand};

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure};
use super::options::Format;
use super::print::Output;
use super::print::cluster::{EndpointHealth, Hashes, Health, Statuses};
use super::range::revision;
use crate::generated::etcdserverpb as pb;

/// See how each server is
#[derive(Args, Debug)]
pub(crate) struct EndpointOptions {
    /// Those that the members name, too, and not only those of --endpoints
    #[arg(long, global = true)]
    cluster: bool,

    #[command(subcommand)]
    command: EndpointCommand,
}

#[derive(Subcommand, Debug)]
enum EndpointCommand {
    /// Say whether each server answers reads that a majority confirms, and has no alarm
    #[command(after_long_help = EXIT_CODES)]
    Health,
    /// Say of each server: endpoint, id, version, version of the storage, size, how much of it is in use, which share is
    /// not, quota, whether it leads, is a learner, term, index, applied index, errors, downgrade
    #[command(after_long_help = EXIT_CODES)]
    Status,
    /// Say a hash of each server's keys: equal where their states are equal
    #[command(after_long_help = EXIT_CODES)]
    Hashkv {
        /// As of this revision; 0 is the newest
        #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
        rev: i64,
    },
}

/// Which servers are meant. With `cluster`, those that the members name.
pub(crate) async fn endpoints(client: &Client, cluster: bool) -> Result<Vec<String>, Failure> {
    if !cluster {
        return Ok(client.settings.endpoints.clone());
    }
    let members = super::member::members(client, false).await?.members;
    let silent = members.iter().filter(|member| member.client_ur_ls.is_empty());
    let silent: Vec<_> = silent.map(|member| member.name.as_str()).collect();
    if !silent.is_empty() {
        let why = "it is not known where clients reach them; name them with --endpoints";
        crate::complain(&format!("left out: {}: {why}", silent.join(", ")));
    }
    Ok(members.into_iter().flat_map(|member| member.client_ur_ls).collect())
}

/// The command.
pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: EndpointOptions,
) -> Result<(), Failure> {
    let endpoints = endpoints(client, options.cluster).await?;
    match options.command {
        EndpointCommand::Health => {
            // All at once: who hangs holds nobody up.
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
                    crate::complain(&format!(
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

/// Asks each server the same. Who does not answer is named on standard error.
async fn each<T>(
    client: &Client,
    endpoints: &[String],
    what: &str,
    call: impl AsyncFn(Link) -> Result<tonic::Response<T>, tonic::Status>,
) -> (Vec<(String, T)>, Option<Failure>) {
    let (mut found, mut failed) = (Vec::new(), None);
    for endpoint in endpoints {
        match client.of_one(endpoint).ask(Effect::Repeatable, &call).await {
            Ok(answer) => found.push((endpoint.clone(), answer)),
            Err(failure) => {
                crate::complain(&format!("the {what} of {endpoint} is not known: {failure}"));
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
        client.ask(Effect::Repeatable, async |link: Link| link.kv().range(get.clone()).await);
    let error = match read.await {
        Ok(_) => None,
        // It went through the majority before it was refused.
        Err(Failure::Refused(status)) if status.message().contains("permission denied") => None,
        Err(failure) => Some(failure.to_string()),
    };
    let took = begun.elapsed();
    let error = match error {
        Some(error) => Some(error),
        None => {
            let call =
                async |link: Link| link.maintenance().alarm(pb::AlarmRequest::default()).await;
            match client.ask(Effect::Repeatable, call).await {
                Ok(answer) if answer.alarms.is_empty() => None,
                Ok(answer) => {
                    let name = |alarm: &pb::AlarmMember| match alarm.alarm() {
                        // One that etcd 3.6 does not know is told as none.
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
