//! `bowline del`: deletes keys.

use clap::Args;

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::range::Keys;
use crate::generated::etcdserverpb::DeleteRangeRequest;

const EXAMPLES: &str = "\
Examples:
  bowline del greeting
  bowline del config/ --prefix --prev-kv";

/// Delete keys
///
/// Prints how many there were.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct DelOptions {
    #[command(flatten)]
    keys: Keys,

    /// Print what was deleted, too
    #[arg(long)]
    prev_kv: bool,

    /// The key and its end are a range: as without it; for scripts that say so
    #[arg(long, hide = true)]
    range: bool,
}

impl DelOptions {
    /// What is asked of the server.
    pub(crate) fn request(self) -> Result<DeleteRangeRequest, Failure> {
        let (key, range_end) = self.keys.range()?;
        Ok(DeleteRangeRequest { key, range_end, prev_kv: self.prev_kv })
    }

    /// Whether it reads standard input.
    pub(crate) fn reads_input(&self) -> bool {
        self.keys.reads_input()
    }
}

/// The command.
pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: DelOptions,
) -> Result<(), Failure> {
    let request = options.request()?;
    let call = async |link: Link| link.kv().delete_range(request.clone()).await;
    output.show(&client.ask(Effect::Change, call).await?)
}
