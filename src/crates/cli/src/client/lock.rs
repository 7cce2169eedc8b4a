//! `bowline lock` and `bowline semaphore`: hold a lock or permits while a command runs.

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
use bowline_client::{EntryValue, LockMode};

const EXAMPLES: &str = "\
Examples:
  bowline lock nightly -- ./rebuild.sh                run the command while holding the lock
  bowline lock nightly --timeout 0 -- ./rebuild.sh    do not wait if the lock is held
  bowline lock config --shared -- cat /etc/app        many readers at a time, but no writer
  bowline lock config --exclusive -- vi /etc/app
  bowline lock nightly                                hold the lock until Ctrl-C";

/// Hold a lock while a command runs or until a signal
///
/// Clients of `etcdctl lock`, programs that use etcd's concurrency package, and programs that embed Bowline wait in
/// the same queue. Signals are forwarded to the command. The command is ended before another client can acquire the
/// lock: when no server confirms the hold, when the key of the hold is deleted, and when this process ends for any
/// reason. The descendants of the command are ended too, except those that still run after the command has exited by
/// itself.
#[derive(Args, Debug)]
#[command(after_long_help = format!(
    "{EXAMPLES}\n\n{ENVIRONMENT} ETCD_LOCK_KEY and ETCD_LOCK_REV are etcdctl's names for the key and the \
     token.\n\n{EXIT_CODES}"))]
pub(crate) struct LockOptions {
    /// Name of the lock
    name: OsString,

    /// Acquire the lock for reading (shared with other readers)
    #[arg(long, conflicts_with = "exclusive")]
    shared: bool,

    /// Acquire the lock for writing (other clients may use --shared)
    #[arg(long)]
    exclusive: bool,

    #[command(flatten)]
    how: How,
}

/// Hold permits of a semaphore while a command runs or until a signal
///
/// Like `bowline lock`, but several clients can hold permits at once, up to the limit. All clients of a semaphore must
/// use the same limit. While the queue is not empty, a request with another limit is rejected.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ENVIRONMENT}\n\n{EXIT_CODES}"))]
pub(crate) struct SemaphoreOptions {
    /// Name of the semaphore
    name: OsString,

    /// Total number of permits
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// Number of permits to acquire
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,

    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
struct How {
    /// Session TTL: 10, 10s, 1m (how long the lock is kept if this machine fails; the server may grant more)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = ttl)]
    ttl: Duration,

    /// Maximum time to wait for the lock: 500ms, 10s, 5m (0: do not wait) [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// Reason shown by `bowline locks` [default: the command]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Command to run while holding the lock
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl How {
    fn into_request(self, name: OsString, mode: LockMode, is_lock: bool) -> HoldRequest {
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let why = self.reason.unwrap_or_else(|| words.collect::<Vec<_>>().join(" "));
        HoldRequest {
            name: Bytes::from(name.into_vec()),
            mode,
            value: EntryValue::ours(mode, &why).to_value(),
            ttl: self.ttl,
            timeout: self.timeout,
            command: self.command,
            is_lock,
            shows_value: false,
        }
    }
}

pub(crate) async fn run(
    client: &Arc<Client>,
    output: Output,
    options: LockOptions,
) -> Result<(), Failure> {
    let mode = match (options.shared, options.exclusive) {
        (true, _) => LockMode::Read,
        (_, true) => LockMode::Write,
        _ => LockMode::Alone,
    };
    hold(client, output, options.how.into_request(options.name, mode, true)).await
}

pub(crate) async fn run_semaphore(
    client: &Arc<Client>,
    output: Output,
    options: SemaphoreOptions,
) -> Result<(), Failure> {
    let SemaphoreOptions { name, limit, permits: wants, how } = options;
    if wants > limit {
        let why = format!("{wants} permits exceed the limit of {limit}");
        return Err(Failure::Usage(why));
    }
    hold(client, output, how.into_request(name, LockMode::Permits { limit, wants }, false)).await
}
