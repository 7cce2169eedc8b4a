//! `bowline compact`: discards old revisions.

use clap::Args;

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::range::revision;
use bowline_proto::etcdserverpb::CompactionRequest;

/// Discard history before a revision
///
/// Keeps the state at that revision and all later changes. Reads and watches of older revisions fail afterwards.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct CompactOptions {
    /// Oldest revision to keep
    #[arg(value_parser = revision)]
    revision: i64,

    /// Wait until the space is freed, if the server supports it
    #[arg(long)]
    physical: bool,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: CompactOptions,
) -> Result<(), Failure> {
    let request = CompactionRequest { revision: options.revision, physical: options.physical };
    let call = async |link: Link| link.kv().compact(request).await;
    client.ask(CallKind::Change, call).await?;
    output.say(format!("compacted revision {}", options.revision))
}
