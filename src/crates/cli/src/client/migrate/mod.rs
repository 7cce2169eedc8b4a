//! `bowline import`: copies the keys of one cluster to another, and mirrors changes until the clients are switched
//! over. Both clusters may be etcd or Bowline, because the import uses only etcd's protocol.
//!
//! ```text
//!   parts        which keys to copy, and their names at the target
//!   side         one of the two clusters; retries requests
//!     ├ source   reads pages at one revision; watches for changes
//!     └ target   sends transactions; uses a fence against late writes
//!   difference   the changes to make, computed from the rows of both clusters
//!   change       sends changes as transactions that take effect at most once
//!   copy         copies and verifies all keys at one revision
//!   follow       mirrors later changes, revision by revision
//!   report       output
//! ```

use std::cell::Cell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::connect::{Client, Link};
use super::failure::Failure;
use super::options::{Settings, duration, endpoints, login, variable};
use super::print::Output;
use super::range::revision;
use super::terminal::known;
use bowline_client::Tls;
use bowline_proto::etcdserverpb as pb;

mod change;
mod copy;
mod difference;
mod fence;
mod follow;
mod parts;
mod pieces;
mod report;
mod side;
mod source;
mod target;

use copy::Import;
use difference::Rules;
use follow::{End, Follower, Stop, stopped};
use parts::{Part, Span};
use side::{Side, note};
use source::Source;
use target::Target;

/// All keys.
const EVERYTHING: Span = Span { first: Bytes::from_static(b"\0"), end: Bytes::from_static(b"\0") };

/// Default time for which a cluster may be unreachable during the copy.
const OUTAGE_LIMIT_DEFAULT: Duration = Duration::from_secs(60);

/// Exit codes of shells for SIGINT and SIGTERM.
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_TERMINATED: u8 = 143;

/// Time limit for removing the fence at the end.
const FENCE_REMOVAL_MAX: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  bowline import --from http://old:2379 --dry-run    print what would be done
  bowline import --from http://old:2379              copy all keys once
  bowline import --from http://old:2379 --mirror     and then follow changes until Ctrl-C
  bowline import --from old:2379 --endpoints new:2379 --prefix a/ --dest-prefix b/

To switch from one cluster, OLD, to another, NEW:
  1. bowline import --from OLD --endpoints NEW --mirror
  2. stop all programs that write to OLD
  3. wait for `in sync at revision N`; `bowline --endpoints OLD endpoint status -w json`
     shows N, too
  4. stop the mirror with Ctrl-C; to verify that both clusters are equal:
     bowline import --from OLD --endpoints NEW --rev N --dry-run
  5. start the programs with the endpoints of NEW

Keys with leases are skipped, and listed. Such a key shows that its program is alive. When the program connects to \
the new cluster, it registers again, with a lease of that cluster. Locks and leaderships are such keys.

Users, roles, revisions and history are not copied.

An interrupted import can be run again: keys that are already equal at the target are not written again. If the \
source has changed meanwhile, continue with the same revision (--rev), or make the target equal to the source as it \
is now (--overwrite --delete).

Exit codes: 0 everything was copied and verified, or the mirror was stopped; 1 rejected or failed, written keys stay; \
2 wrong arguments; 4 one of the clusters could not be reached, nothing was written; 130 or 143 interrupted before the \
copy, or its last verification, was finished.";

/// Copy the keys of another cluster, and mirror changes until clients switch over
///
/// Copies all keys at one revision of the source in transactions, then reads both clusters again and reports whether
/// their keys are equal. The source (--from) and the target (--endpoints) may each be etcd or Bowline. Nothing is
/// written to the source.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ImportOptions {
    /// Comma-separated endpoints of the source
    #[arg(long, value_name = "ENDPOINTS")]
    from: String,

    /// Copy only keys with this prefix; repeatable [default: all keys]
    #[arg(long, value_name = "KEY")]
    prefix: Vec<OsString>,

    /// Replace the prefix with this one at the target (empty: remove the prefix)
    #[arg(long, value_name = "KEY")]
    dest_prefix: Option<OsString>,

    /// Show what an import would change without changing anything
    #[arg(long, conflicts_with = "mirror")]
    dry_run: bool,

    /// After the copy, mirror the source's changes until interrupted
    #[arg(long)]
    mirror: bool,

    /// End the mirror once it has caught up, and verify again
    #[arg(long, requires = "mirror")]
    until_caught_up: bool,

    /// Overwrite keys that have another value at the target
    #[arg(long)]
    overwrite: bool,

    /// Delete keys that exist only at the target
    #[arg(long)]
    delete: bool,

    /// Copy the source as of this revision, to continue an interrupted import [default: the newest]
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    rev: Option<i64>,

    /// Maximum time that a cluster may be unreachable [default: 60s; no limit while mirroring]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retry_for: Option<Duration>,

    #[command(flatten)]
    who: SourceOptions,
}

/// Credentials for the source.
#[derive(Args, Debug)]
struct SourceOptions {
    /// User name at the source; prompts for the password if omitted
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    from_user: Option<String>,

    /// Password of --from-user (prefer the variable BOWLINE_FROM_PASSWORD)
    #[arg(long, value_name = "PASSWORD")]
    from_password: Option<String>,

    /// CA certificate of the source's servers, a PEM file
    #[arg(long, value_name = "FILE")]
    from_cacert: Option<PathBuf>,

    /// Client certificate for the source, a PEM file
    #[arg(long, value_name = "FILE", requires = "from_key")]
    from_cert: Option<PathBuf>,

    /// Private key of --from-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "from_cert")]
    from_key: Option<PathBuf>,

    /// Skip verification of the source's certificate (testing only)
    #[arg(long)]
    from_insecure_skip_tls_verify: bool,
}

/// Reason for which a copy stops.
enum Halt {
    Failed(Failure),
    /// The source has compacted the revision.
    Forgotten,
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Halt::Failed(failure)
    }
}

impl Halt {
    fn failure(self) -> Failure {
        match self {
            Halt::Failed(failure) => failure,
            Halt::Forgotten => Failure::Failed(
                "the source has compacted the revision that is being copied".to_owned(),
            ),
        }
    }
}

pub(crate) async fn run(
    client: Arc<Client>,
    output: Output,
    options: ImportOptions,
) -> Result<(), Failure> {
    let who = options.who;
    let password = who.from_password.or_else(|| variable("FROM_PASSWORD"));
    let login = known(who.from_user.map(|user| login(user, password)), "BOWLINE_FROM_PASSWORD")?;
    let tls = Tls {
        cacert: who.from_cacert,
        cert: who.from_cert,
        key: who.from_key,
        skip_verify: who.from_insecure_skip_tls_verify,
        ..Tls::default()
    };
    let endpoints = endpoints(&options.from);
    if endpoints.is_empty() {
        return Err(Failure::Usage("--from names no server".to_owned()));
    }
    // The timeouts apply to both clusters.
    let source = Client::new(Settings { endpoints, login, tls, ..client.settings.clone() });
    let parts = Part::all(options.prefix, options.dest_prefix)?;
    let mut stop = stop_signal()?;
    let target = Target::new(Side::new("the target", client), parts[0].renamed());
    let import = Import {
        source: Source::new(Side::new("the source", source), parts),
        target,
        rules: Rules { overwrite: options.overwrite, delete: options.delete },
        is_quiet: output.is_for_programs(),
        revision: Cell::new(0),
        written: Cell::new(0),
        is_copied: Cell::new(false),
    };
    let way = Way {
        rev: options.rev.filter(|rev| *rev > 0),
        retry_for: options.retry_for,
        mirror: options.mirror,
        until_caught_up: options.until_caught_up,
    };
    let ended = match options.dry_run {
        true => unless_stopped(&mut stop, plan(&import, &way, output)).await,
        false => bring(&import, &way, output, &mut stop).await,
    };
    import.remove_fences().await;
    ended.map_err(|failure| import.with_what_was_done(failure))
}

/// The options that control the run.
struct Way {
    rev: Option<i64>,
    retry_for: Option<Duration>,
    mirror: bool,
    until_caught_up: bool,
}

/// Shows what an import would do.
async fn plan(import: &Import, way: &Way, output: Output) -> Result<(), Failure> {
    meet(import, way, true).await?;
    let revision = match way.rev {
        Some(revision) => revision,
        None => import.source.header().await?.revision,
    };
    let plan = import.plan(revision).await.map_err(Halt::failure)?;
    output.show(&plan)?;
    plan.rejection().map_or(Ok(()), |_| Err(Failure::Exit(1)))
}

/// Contacts both clusters for the first time. After this succeeds, each may be unreachable for a while.
async fn meet(import: &Import, way: &Way, dry_run: bool) -> Result<(), Failure> {
    check_distinct(import, dry_run).await?;
    if way.mirror {
        import.source.may_be_watched().await?;
    }
    import.set_outage_limit(Some(way.retry_for.unwrap_or(OUTAGE_LIMIT_DEFAULT)));
    Ok(())
}

/// Copies all keys, and mirrors changes if requested.
async fn bring(import: &Import, way: &Way, output: Output, stop: &mut Stop) -> Result<(), Failure> {
    unless_stopped(stop, meet(import, way, false)).await?;
    let mut rev = way.rev;
    loop {
        let copy = async { import.copy(rev).await.map_err(Halt::failure) };
        let copied = unless_stopped(stop, copy).await?;
        import.is_copied.set(true);
        output.show(&copied)?;
        if !way.mirror {
            return Ok(());
        }
        import.set_outage_limit(way.retry_for);
        let mut follower = Follower::new(import, output, &copied, way.until_caught_up);
        let ended = follower.run(stop).await;
        let mirrored = follower.progress();
        output.show(&mirrored)?;
        match ended {
            Ok(End::Stopped) => return Ok(()),
            Ok(End::CaughtUp) => {
                let verify =
                    async { import.verify(mirrored.revision).await.map_err(Halt::failure) };
                return output.show(&unless_stopped(stop, verify).await?);
            }
            Ok(End::Forgotten) if import.rules.overwrite && import.rules.delete => {
                note(
                    "the source has compacted changes that are not mirrored yet: copying everything again, and \
                     deleting keys that no longer exist",
                );
                rev = None;
                import.is_copied.set(false);
                import.set_outage_limit(Some(way.retry_for.unwrap_or(OUTAGE_LIMIT_DEFAULT)));
            }
            Ok(End::Forgotten) => {
                return Err(Failure::Failed(
                    "the source has compacted changes that are not mirrored yet. `bowline import --mirror --overwrite \
                     --delete` copies everything again and deletes keys that no longer exist; with these options it \
                     also recovers from this by itself"
                        .to_owned(),
                ));
            }
            Err(failure) => return Err(failure),
        }
    }
}

impl Import {
    /// Sets how long each cluster may be unreachable from now on.
    fn set_outage_limit(&self, patience: Option<Duration>) {
        self.source.side.set_outage_limit(patience);
        self.target.side.set_outage_limit(patience);
    }

    /// Returns the failure, after printing how many changes were written.
    fn with_what_was_done(&self, failure: Failure) -> Failure {
        let (written, revision) = (self.written.get(), self.revision.get());
        if written > 0 && !self.is_copied.get() {
            note(&format!(
                "{written} changes were written, for revision {revision} of the source. Run the same command to \
                 continue; add --rev {revision} if the source has changed meanwhile"
            ));
        }
        match failure {
            // The exit code of `Unreachable` promises that nothing was written.
            Failure::Unreachable(_) if self.is_copied.get() || self.target.is_touched() => {
                Failure::Failed(failure.to_string())
            }
            other => other,
        }
    }

    async fn remove_fences(&self) {
        let target = &self.target;
        if !target.fence.stands() {
            return;
        }
        target.side.set_outage_limit(Some(Duration::ZERO));
        let taken =
            tokio::time::timeout(FENCE_REMOVAL_MAX, target.fence.take_down(&target.side, true));
        let why = match taken.await {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => format!("no response within {FENCE_REMOVAL_MAX:?}"),
        };
        let key = super::quote::go(&target.fence.key);
        note(&format!(
            "cannot delete the key {key} at the target: {why}; if it is still there, delete it"
        ));
    }
}

/// Rejects copying a cluster onto itself. For this check, both clusters are contacted for the first time.
async fn check_distinct(import: &Import, dry_run: bool) -> Result<(), Failure> {
    let before = import.source.header().await?;
    let target = import.target.side.header(&import.target.fence.key).await?;
    let after = import.source.header().await?;
    let looks_like_one = before.cluster_id == target.cluster_id
        && before.raft_term <= target.raft_term
        && target.raft_term <= after.raft_term
        && before.revision <= target.revision
        && target.revision <= after.revision;
    let parts = &import.source.parts;
    let meet = parts.iter().any(|one| parts.iter().any(|other| one.overlaps(other)));
    if !looks_like_one || !meet || dry_run {
        return Ok(());
    }
    // Cluster ids cannot tell the clusters apart: clusters founded with the same names have the same id, and may have
    // similar revisions. Therefore a key is written to the target, and must not appear at the source.
    let target = &import.target;
    target.fence.put(&target.side).await?;
    let key = target.fence.key.clone();
    let request = pb::RangeRequest { key, ..Default::default() };
    let call = async |link: Link| link.kv().range(request.clone()).await;
    let found = import.source.side.ask(call).await;
    target.fence.take_down(&target.side, true).await?;
    if found.is_ok_and(|found| !found.kvs.is_empty()) {
        let at = |side: &Side| side.client.settings.endpoints.join(",");
        return Err(Failure::Usage(format!(
            "the source, {}, and the target, {}, are the same cluster, and the key names are the same",
            at(&import.source.side),
            at(&target.side)
        )));
    }
    Ok(())
}

/// Returns a receiver that gets the exit code when SIGINT or SIGTERM arrives.
fn stop_signal() -> Result<Stop, Failure> {
    let failed = |error| Failure::Local("cannot handle signals".to_owned(), error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (sender, stop) = watch::channel(None);
    tokio::task::spawn_local(async move {
        let code = tokio::select! {
            _ = interrupt.recv() => EXIT_INTERRUPTED,
            _ = terminate.recv() => EXIT_TERMINATED,
        };
        sender.send_replace(Some(code));
        // The sender is kept alive, so that receivers do not see a closed channel.
        sender.closed().await;
    });
    Ok(stop)
}

/// Runs `work` until it completes or a stop is requested.
async fn unless_stopped<T>(
    stop: &mut Stop,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        code = stopped(stop) => {
            crate::print_failure(&"interrupted");
            Err(Failure::Exit(code))
        }
        done = work => done,
    }
}
