//! `bowline lease`: grants, revokes, renews and inspects leases.

use std::time::Duration;

use bowline_client::renewal;
use clap::{Args, Subcommand};
use tokio::time::Instant;
use tonic::Status;

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure, passes};
use super::options::{Format, ttl};
use super::print::Output;
use super::print::leases::Life;
use super::print::users::Done;
use bowline_proto::etcdserverpb as pb;

/// The lease is renewed at intervals of its TTL divided by this number.
const RENEWALS_PER_TTL: u32 = 3;

/// Pause before a failed renewal is retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Manage leases, which delete their attached keys when they end
#[derive(Args, Debug)]
pub(crate) struct LeaseOptions {
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Subcommand, Debug)]
enum LeaseCommand {
    /// Grant a lease that expires after TTL unless it is kept alive
    #[command(after_long_help = EXIT_CODES)]
    Grant {
        /// Time to live in whole seconds: 60, 60s, 1m (the server may grant more)
        #[arg(value_parser = ttl)]
        ttl: Duration,
    },
    /// Revoke a lease and delete its keys
    #[command(after_long_help = EXIT_CODES)]
    Revoke {
        /// Lease id in hexadecimal
        #[arg(value_name = "LEASE", value_parser = lease_id)]
        id: i64,
    },
    /// Show the remaining time to live of a lease
    #[command(alias = "time-to-live", after_long_help = EXIT_CODES)]
    Timetolive {
        /// Lease id in hexadecimal
        #[arg(value_name = "LEASE", value_parser = lease_id)]
        id: i64,
        /// Also print the attached keys
        #[arg(long)]
        keys: bool,
    },
    /// List all leases
    #[command(after_long_help = EXIT_CODES)]
    List,
    /// Keep a lease alive until it is revoked or this command is interrupted
    #[command(after_long_help = EXIT_CODES)]
    KeepAlive {
        /// Lease id in hexadecimal
        #[arg(value_name = "LEASE", value_parser = lease_id)]
        id: i64,
        /// Renew the lease once and exit
        #[arg(long)]
        once: bool,
    },
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: LeaseOptions,
) -> Result<(), Failure> {
    match options.command {
        LeaseCommand::Grant { ttl } => {
            let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
            let request = pb::LeaseGrantRequest { ttl, id: 0 };
            let call = async |link: Link| link.lease().lease_grant(request).await;
            output.show(&client.ask(CallKind::Change, call).await?)
        }
        LeaseCommand::Revoke { id } => {
            let call =
                async |link: Link| link.lease().lease_revoke(pb::LeaseRevokeRequest { id }).await;
            let answer = client.ask(CallKind::Change, call).await?;
            output.show(&Done { words: format!("lease {id:016x} revoked"), header: answer.header })
        }
        LeaseCommand::Timetolive { id, keys } => {
            let request = pb::LeaseTimeToLiveRequest { id, keys };
            let call = async |link: Link| link.lease().lease_time_to_live(request).await;
            let answer = client.ask(CallKind::Repeatable, call).await?;
            output.show(&Life { answer, with_keys: keys })
        }
        LeaseCommand::List => {
            let call =
                async |link: Link| link.lease().lease_leases(pb::LeaseLeasesRequest {}).await;
            output.show(&client.ask(CallKind::Repeatable, call).await?)
        }
        LeaseCommand::KeepAlive { id, once: true } => {
            let answer = client.ask(CallKind::Repeatable, renewal(id)).await?;
            if answer.ttl <= 0 {
                return Err(gone());
            }
            output.show(&answer)
        }
        LeaseCommand::KeepAlive { id, once: false } => keep_alive(client, output, id).await,
    }
}

fn gone() -> Failure {
    Failure::Refused(Status::not_found("etcdserver: requested lease not found"))
}

async fn keep_alive(client: &Client, output: Output, id: i64) -> Result<(), Failure> {
    // Time until which the lease lives, by the last confirmed renewal.
    let mut until: Option<Instant> = None;
    loop {
        let sent = Instant::now();
        let limit = until.map_or(client.settings.command_timeout, |until| until - sent);
        let answer = match client.ask_for(limit, CallKind::Repeatable, renewal(id)).await {
            Ok(answer) => answer,
            Err(failure)
                if passes(&failure) && until.is_some_and(|until| sent + RETRY_DELAY < until) =>
            {
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let Some(ttl) = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0) else {
            return match output.format {
                Format::Simple => output.say(format!("lease {id:016x} expired or revoked.")),
                _ => Ok(()),
            };
        };
        output.show(&answer)?;
        let ttl = Duration::from_secs(ttl);
        until = Some(sent + ttl);
        tokio::time::sleep(ttl / RENEWALS_PER_TTL).await;
    }
}

/// Parses a lease id in hexadecimal.
pub(crate) fn lease_id(text: &str) -> Result<i64, String> {
    i64::from_str_radix(text, 16).map_err(|_| {
        "expected a lease ID in hexadecimal, as printed by `bowline lease list`".to_owned()
    })
}
