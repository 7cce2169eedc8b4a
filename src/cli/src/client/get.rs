//! `bowline get`: reads keys.

use clap::{Args, ValueEnum};

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure};
use super::options::Format;
use super::print::Output;
use super::print::kv::Counted;
use super::range::{Keys, revision};
use crate::generated::etcdserverpb::RangeRequest;
use crate::generated::etcdserverpb::range_request::{SortOrder, SortTarget};

const EXAMPLES: &str = "\
Examples:
  bowline get greeting
  bowline get config/ --prefix --keys-only
  bowline get '' --prefix --count-only       how many keys there are
  bowline get a m                            from a on, up to m, without m
  bowline get greeting --rev 7               as it was then
  bowline get greeting --print-value-only    the value, and a line's end";

/// Read keys
///
/// Prints each key and its value, a line each, as they are: whatever bytes they have.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct GetOptions {
    #[command(flatten)]
    keys: Keys,

    /// How many rows at most; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    limit: i64,

    /// In which order
    #[arg(long, value_enum, ignore_case = true)]
    order: Option<Order>,

    /// What the order goes by
    #[arg(long, value_enum, ignore_case = true)]
    sort_by: Option<Target>,

    /// As of this revision; 0 is the newest
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    rev: i64,

    /// l: linearizable, the newest there is; s: serializable, what the server that is asked has
    #[arg(long, value_name = "l|s", value_enum, default_value = "l")]
    consistency: Consistency,

    /// Only keys
    #[arg(long)]
    keys_only: bool,

    /// Only how many there are
    #[arg(long)]
    count_only: bool,

    /// Only values: with -w simple
    #[arg(long)]
    print_value_only: bool,

    /// Only rows changed at this revision or later
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    min_mod_rev: i64,

    /// Only rows changed at this revision or before
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    max_mod_rev: i64,

    /// Only rows created at this revision or later
    #[arg(long, value_name = "REVISION", value_parser = revision, default_value_t = 0)]
    min_create_rev: i64,

    /// Only rows created at this revision or before
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
    /// What is asked of the server.
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
        // In the order of keys rows come anyway.
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

    /// Whether it reads standard input.
    pub(crate) fn reads_input(&self) -> bool {
        self.keys.reads_input()
    }
}

/// The command.
pub(crate) async fn run(
    client: &Client,
    mut output: Output,
    options: GetOptions,
) -> Result<(), Failure> {
    if options.print_value_only && output.format != Format::Simple {
        return Err(Failure::Usage("--print-value-only is for --write-out=simple only".to_owned()));
    }
    output.values_only = options.print_value_only;
    let request = options.request()?;
    let call = async |link: Link| link.kv().range(request.clone()).await;
    let answer = client.ask(Effect::Repeatable, call).await?;
    if request.count_only { output.show(&Counted(answer)) } else { output.show(&answer) }
}
