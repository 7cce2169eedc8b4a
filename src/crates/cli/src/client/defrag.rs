//! `bowline defrag`: asks servers to return free disk space to the file system.

use std::io::{self, Write};
use std::time::Instant;

use clap::Args;

use super::connect::{CallKind, Client, Link};
use super::endpoint::endpoints;
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::cluster::took;
use bowline_proto::etcdserverpb::DefragmentRequest;

/// Return free disk space to the file system
///
/// For etcd servers, which block requests while they defragment. Bowline servers reclaim space by themselves and
/// answer at once.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct DefragOptions {
    /// Use all endpoints from the member list
    #[arg(long)]
    cluster: bool,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: DefragOptions,
) -> Result<(), Failure> {
    let endpoints = endpoints(client, options.cluster).await?;
    each(client, output, endpoints).await
}

/// Defragments each endpoint and prints the results.
pub(super) async fn each(
    client: &Client,
    output: Output,
    endpoints: Vec<String>,
) -> Result<(), Failure> {
    let mut failed = Ok(());
    for endpoint in endpoints {
        let call = async |link: Link| link.maintenance().defragment(DefragmentRequest {}).await;
        let begun = Instant::now();
        let asked = client.of_one(&endpoint).ask(CallKind::Settled, call).await;
        let took = took(begun.elapsed());
        match asked {
            Ok(_) => output
                .say(format!("Finished defragmenting etcd member[{endpoint}]. took {took}"))?,
            Err(failure) => {
                // The message is etcdctl's, including its capital letter.
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
