//! `bowline defrag`: has servers give back room on their disks.

use std::io::{self, Write};
use std::time::Instant;

use clap::Args;

use super::connect::{Client, Effect, Link};
use super::endpoint::endpoints;
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::cluster::took;
use crate::generated::etcdserverpb::DefragmentRequest;

/// Have servers give back room on their disks
///
/// For servers of etcd, which stand still meanwhile. Bowline's give room back by themselves and answer at once.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct DefragOptions {
    /// Those that the members name, too, and not only those of --endpoints
    #[arg(long)]
    cluster: bool,
}

/// The command.
pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: DefragOptions,
) -> Result<(), Failure> {
    let endpoints = endpoints(client, options.cluster).await?;
    each(client, output, endpoints).await
}

/// Has each of these do it, and says so.
pub(super) async fn each(
    client: &Client,
    output: Output,
    endpoints: Vec<String>,
) -> Result<(), Failure> {
    let mut failed = Ok(());
    for endpoint in endpoints {
        let call = async |link: Link| link.maintenance().defragment(DefragmentRequest {}).await;
        let begun = Instant::now();
        let asked = client.of_one(&endpoint).ask(Effect::Settled, call).await;
        let took = took(begun.elapsed());
        match asked {
            Ok(_) => output
                .say(format!("Finished defragmenting etcd member[{endpoint}]. took {took}"))?,
            Err(failure) => {
                // In etcdctl's words from the first one on.
                let words = format!(
                    "Failed to defragment etcd member[{endpoint}]. took {took}. ({failure})"
                );
                drop(writeln!(io::stderr().lock(), "{words}"));
                failed = Err(Failure::Exit(failure.code()));
            }
        }
    }
    failed
}
