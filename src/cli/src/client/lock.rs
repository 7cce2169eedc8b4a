//! `bowline lock` and `bowline semaphore`: hold something while a command runs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;

use super::connect::Client;
use super::failure::Failure;
use super::hold::{ENVIRONMENT, EXIT_CODES, HoldRequest, hold};
use super::options::{duration, ttl};
use super::print::Output;
use super::stance::{Rule, Stance};

const EXAMPLES: &str = "\
Examples:
  bowline lock nightly -- ./rebuild.sh                runs it while nobody else does
  bowline lock nightly --timeout 0 -- ./rebuild.sh    not at all, if somebody does
  bowline lock config --shared -- cat /etc/app        readers at once, no writer meanwhile
  bowline lock config --exclusive -- vi /etc/app
  bowline lock nightly                                until Ctrl-C";

/// Hold a lock while a command runs, or until a signal comes
///
/// Stands in one line with `etcdctl lock`, with programs that use etcd's concurrency package, and with those that
/// embed Bowline. Signals are passed on to the command. It is ended before somebody else can get the lock: when no
/// server confirms the lock any more, when its key is deleted, and when this process ends, whatever ends it; so is
/// what the command has started, but for what it leaves behind when it ends by itself.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{ENVIRONMENT} ETCD_LOCK_KEY and ETCD_LOCK_REV are \
    etcdctl's names for the key and the token.\n\n{EXIT_CODES}"))]
pub(crate) struct LockOptions {
    /// The lock's name
    name: OsString,

    /// With others that hold it shared: a read lock
    #[arg(long, conflicts_with = "exclusive")]
    shared: bool,

    /// Alone, among others that hold it shared: a write lock
    #[arg(long)]
    exclusive: bool,

    #[command(flatten)]
    how: How,
}

/// Hold permits of a semaphore while a command runs, or until a signal comes
///
/// As `bowline lock`, but several may hold at once: those whose permits fit into the limit. All that use one
/// semaphore must name the same limit; others are refused while somebody stands in its line.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ENVIRONMENT}\n\n{EXIT_CODES}"))]
pub(crate) struct SemaphoreOptions {
    /// The semaphore's name
    name: OsString,

    /// How many permits there are
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// How many are wanted
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,

    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
struct How {
    /// How long the hold outlives this process if its machine is lost: 10, 10s, 1m. The server may grant more
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = ttl)]
    ttl: Duration,

    /// How long to wait for the turn: 500ms, 10s, 5m; 0 for not at all. For ever, if it is left out
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// Why, for those who look with `bowline locks`; the command, if it is left out
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// What runs meanwhile
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl How {
    fn into_request(self, name: OsString, rule: Rule, is_lock: bool) -> HoldRequest {
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let why = self.reason.unwrap_or_else(|| words.collect::<Vec<_>>().join(" "));
        HoldRequest {
            name: Bytes::from(name.into_vec()),
            rule,
            value: Stance::ours(rule, &why).to_value(),
            ttl: self.ttl,
            timeout: self.timeout,
            command: self.command,
            is_lock,
            shows_value: false,
        }
    }
}

/// `bowline lock`.
pub(crate) async fn run(
    client: &Arc<Client>,
    output: Output,
    options: LockOptions,
) -> Result<(), Failure> {
    let rule = match (options.shared, options.exclusive) {
        (true, _) => Rule::Read,
        (_, true) => Rule::Write,
        _ => Rule::Alone,
    };
    hold(client, output, options.how.into_request(options.name, rule, true)).await
}

/// `bowline semaphore`.
pub(crate) async fn run_semaphore(
    client: &Arc<Client>,
    output: Output,
    options: SemaphoreOptions,
) -> Result<(), Failure> {
    let SemaphoreOptions { name, limit, permits: wants, how } = options;
    if wants > limit {
        let why = format!("{wants} permits are wanted, and there are {limit}");
        return Err(Failure::Usage(why));
    }
    hold(client, output, how.into_request(name, Rule::Permits { limit, wants }, false)).await
}
