//! `bowline get`: reads keys.

use clap::{Args, ValueEnum};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::options::Format;
use super::print::Output;
use super::print::kv::Counted;
use super::range::{Keys, revision};
use bowline_proto::etcdserverpb::RangeRequest;
use bowline_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

const EXAMPLES: &str = "\
Examples:
  bowline get greeting
  bowline get config/ --prefix --keys-only
  bowline get '' --prefix --count-only       print the number of keys
  bowline get a m                            from a (inclusive) to m (exclusive)
  bowline get greeting --rev 7               the value at revision 7
  bowline get greeting --print-value-only    the value, followed by a newline";

/// Read keys
///
/// Prints each key on a line, followed by its value on the next line. Prints the exact bytes of both.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct GetOptions {
    #[command(flatten)]
    keys: Keys,

    /// Maximum number of results (0: no limit)
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    limit: i64,

    /// Sort order
    #[arg(long, value_enum, ignore_case = true)]
    order: Option<Order>,

    /// Field to sort by
    #[arg(long, value_enum, ignore_case = true)]
    sort_by: Option<Target>,

    /// Revision to read (0: the newest)
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    rev: i64,

    /// Consistency: l (linearizable) or s (serializable, the contacted server's own state)
    #[arg(long, value_name = "l|s", value_enum, default_value = "l")]
    consistency: Consistency,

    /// Print only the keys
    #[arg(long)]
    keys_only: bool,

    /// Print only the number of keys
    #[arg(long)]
    count_only: bool,

    /// Print only the values (with -w simple)
    #[arg(long)]
    print_value_only: bool,

    /// Receive the range in chunks, which suits large ranges (etcd 3.7); cannot be sorted or filtered
    #[arg(long)]
    stream: bool,

    /// Print only keys last modified at this revision or later
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    min_mod_rev: i64,

    /// Print only keys last modified at this revision or before
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    max_mod_rev: i64,

    /// Print only keys created at this revision or later
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    min_create_rev: i64,

    /// Print only keys created at this revision or before
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    max_create_rev: i64,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Order {
    Ascend,
    Descend,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Target {
    Create,
    Key,
    Modify,
    Value,
    Version,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Consistency {
    L,
    S,
}

impl GetOptions {
    /// Builds the request.
    pub(crate) fn request(self) -> Result<RangeRequest, Failure> {
        let order = match self.order {
            None => SortOrder::None,
            Some(Order::Ascend) => SortOrder::Ascend,
            Some(Order::Descend) => SortOrder::Descend,
        };
        let target = match self.sort_by {
            None | Some(Target::Key) => SortTarget::Key,
            Some(Target::Create) => SortTarget::Create,
            Some(Target::Modify) => SortTarget::Mod,
            Some(Target::Value) => SortTarget::Value,
            Some(Target::Version) => SortTarget::Version,
        };
        let usage = |why: String| Err(Failure::Usage(why));
        if self.keys_only && self.count_only {
            let why = "`--keys-only` and `--count-only` cannot be set at the same time, choose one";
            return usage(why.to_owned());
        }
        for (what, least, most) in [
            ("Create", self.min_create_rev, self.max_create_rev),
            ("Mod", self.min_mod_rev, self.max_mod_rev),
        ] {
            if most > 0 && least > most {
                return usage(format!("getMin{what}Rev(={least}) > getMax{what}Rev(={most})"));
            }
        }
        let (key, range_end) = self.keys.range()?;
        // The server returns rows in key order anyway.
        let order = match (target, order) {
            (SortTarget::Key, SortOrder::Ascend) => SortOrder::None,
            (target, SortOrder::None) if target != SortTarget::Key => SortOrder::Ascend,
            (_, order) => order,
        };
        Ok(RangeRequest {
            key,
            range_end,
            limit: self.limit,
            revision: self.rev,
            sort_order: order.into(),
            sort_target: target.into(),
            serializable: self.consistency == Consistency::S,
            keys_only: self.keys_only,
            count_only: self.count_only,
            min_mod_revision: self.min_mod_rev,
            max_mod_revision: self.max_mod_rev,
            min_create_revision: self.min_create_rev,
            max_create_revision: self.max_create_rev,
        })
    }

    /// Returns whether the command reads standard input.
    pub(crate) fn reads_input(&self) -> bool {
        self.keys.reads_input()
    }
}

pub(crate) async fn run(
    client: &Client,
    mut output: Output,
    options: GetOptions,
) -> Result<(), Failure> {
    if options.print_value_only && output.format != Format::Simple {
        return Err(Failure::Usage("--print-value-only requires --write-out=simple".to_owned()));
    }
    output.values_only = options.print_value_only;
    let streams = options.stream;
    let request = options.request()?;
    let answer = if streams {
        client.calls().range_stream(request.clone()).await?.collect().await?
    } else {
        let call = async |link: Link| link.kv().range(request.clone()).await;
        client.ask(CallKind::Repeatable, call).await?
    };
    if request.count_only { output.show(&Counted(answer)) } else { output.show(&answer) }
}
