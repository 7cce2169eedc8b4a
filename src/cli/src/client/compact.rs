//! `bowline compact`: forgets old revisions.

use clap::Args;

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::range::revision;
use crate::generated::etcdserverpb::CompactionRequest;

/// Forget what was before a revision
///
/// What is there at that revision stays, and all that was changed since. Reads and watches of older revisions
/// are refused from then on.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct CompactOptions {
    /// The oldest revision that is kept
    #[arg(value_parser = revision)]
    revision: i64,

    /// Wait until its room is free, where the server can
    #[arg(long)]
    physical: bool,
}

/// The command.
pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: CompactOptions,
) -> Result<(), Failure> {
    let request = CompactionRequest { revision: options.revision, physical: options.physical };
    let call = async |link: Link| link.kv().compact(request).await;
    client.ask(Effect::Change, call).await?;
    output.say(format!("compacted revision {}", options.revision))
}
