//! `bowline del`: deletes keys.

use clap::Args;

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::range::Keys;
use bowline_proto::etcdserverpb::DeleteRangeRequest;

const EXAMPLES: &str = "\
Examples:
  bowline del greeting
  bowline del config/ --prefix --prev-kv";

/// Delete keys
///
/// Prints the number of deleted keys.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct DelOptions {
    #[command(flatten)]
    keys: Keys,

    /// Also print the deleted keys and values
    #[arg(long)]
    prev_kv: bool,

    /// Treat KEY and RANGE_END as a range (the default; accepted for etcdctl scripts)
    #[arg(long, hide = true)]
    range: bool,
}

impl DelOptions {
    /// Builds the request.
    pub(crate) fn request(self) -> Result<DeleteRangeRequest, Failure> {
        let (key, range_end) = self.keys.range()?;
        Ok(DeleteRangeRequest { key, range_end, prev_kv: self.prev_kv })
    }

    /// Returns whether the command reads standard input.
    pub(crate) fn reads_input(&self) -> bool {
        self.keys.reads_input()
    }
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: DelOptions,
) -> Result<(), Failure> {
    let request = options.request()?;
    let call = async |link: Link| link.kv().delete_range(request.clone()).await;
    output.show(&client.ask(CallKind::Change, call).await?)
}
