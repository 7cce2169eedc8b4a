//! `bowline import`: the keys of one cluster, brought to another; and followed there until the switch. Both may be
//! etcd's or Bowline's: all that is used is etcd's protocol.
//!
//! ```text
//!   parts        which keys, and what they are called on the other side
//!   side         a cluster: asked until it answers
//!     ├ source   pages at one revision; a watch
//!     └ target   transactions; a fence against those whose answer was lost
//!   difference   what is to be done, from the rows of both sides
//!   change       as transactions that come into effect once
//!   copy         all keys at one revision, verified in the end
//!   follow       what happens then, revision by revision
//!   told         what is said of it
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
use super::options::{Login, Settings, Tls, duration, endpoints, login, variable};
use super::print::Output;
use super::range::revision;
use super::terminal::known;
use crate::generated::etcdserverpb as pb;

mod change;
mod copy;
mod difference;
mod fence;
mod follow;
mod parts;
mod pieces;
mod side;
mod source;
mod target;
mod told;

use copy::Import;
use difference::Rules;
use follow::{End, Follower, Stop, stopped};
use parts::{Part, Span};
use side::{Side, note};
use source::Source;
use target::Target;

/// All keys.
const EVERYTHING: Span = Span { first: Bytes::from_static(b"\0"), end: Bytes::from_static(b"\0") };

/// How long a cluster may be away while keys are copied, unless it is said.
const AWAY_DEFAULT: Duration = Duration::from_secs(60);

/// It was interrupted, or told to end, as shells say it.
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_TERMINATED: u8 = 143;

/// How long it may take to clear up at the end.
const TAKE_DOWN_MAX: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  bowline import --from http://old:2379 --dry-run    what would be done
  bowline import --from http://old:2379              all keys, once
  bowline import --from http://old:2379 --mirror     and what happens then, until Ctrl-C
  bowline import --from old:2379 --endpoints new:2379 --prefix a/ --dest-prefix b/

The switch from one cluster, OLD, to another, NEW:
  1. bowline import --from OLD --endpoints NEW --mirror
  2. stop what writes to OLD
  3. wait for `in sync at revision N`: bowline --endpoints OLD endpoint status -w json
     shows N, too
  4. end the mirror with Ctrl-C; for a proof that both are equal:
     bowline import --from OLD --endpoints NEW --rev N --dry-run
  5. start what reads and writes with the endpoints of NEW

Keys that hang on leases are left out, and listed: such a key says that its program lives, and the program registers \
anew, with a lease of the new cluster, when it comes over. Locks and leaderships are such keys.

Users, roles, revisions and history are not taken along.

If it is interrupted it can be run again: what is equal at the target already is left as it is. If the source has \
changed meanwhile, --rev goes on with the revision that was named, or --overwrite --delete makes the target what the \
source is now.

Exit codes: 0 all is copied and verified, or the mirror was ended; 1 refused or failed, what was written stays; 2 \
wrong arguments; 4 one of the two could not be reached, nothing was written; 130 or 143 it was interrupted before the \
copy, or the last verification, was done.";

/// Bring the keys of another cluster here, and follow it until the switch
///
/// Copies all keys at one revision of the source, in transactions, reads both sides again, and says whether they are
/// equal. The source is etcd or Bowline; the target, which --endpoints names, too. Nothing is written to the source.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ImportOptions {
    /// Where the source's servers are, separated by commas
    #[arg(long, value_name = "ENDPOINTS")]
    from: String,

    /// Only keys that begin so; can be given more than once [default: all keys]
    #[arg(long, value_name = "KEY")]
    prefix: Vec<OsString>,

    /// What they begin with at the target instead; empty for nothing
    #[arg(long, value_name = "KEY")]
    dest_prefix: Option<OsString>,

    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "mirror")]
    dry_run: bool,

    /// After the copy do what happens at the source, until this is interrupted
    #[arg(long)]
    mirror: bool,

    /// End the mirror as soon as it has caught up, and verify it again
    #[arg(long, requires = "mirror")]
    until_caught_up: bool,

    /// Write over keys that are something else at the target
    #[arg(long)]
    overwrite: bool,

    /// Delete what the target has of these keys and the source does not
    #[arg(long)]
    delete: bool,

    /// As the source was at this revision: to go on with what was interrupted [default: as it is now]
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    rev: Option<i64>,

    /// How long a cluster may be away before this is given up [default: 60s; without end once it mirrors]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retry_for: Option<Duration>,

    #[command(flatten)]
    who: SourceOptions,
}

/// Who asks the source, and how.
#[derive(Args, Debug)]
struct SourceOptions {
    /// Who asks the source; the password is asked for if it is left out
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    from_user: Option<String>,

    /// The password of --from-user. Better in the variable BOWLINE_FROM_PASSWORD
    #[arg(long, value_name = "PASSWORD")]
    from_password: Option<String>,

    /// The authority that signs the source's certificates, as a file of PEM
    #[arg(long, value_name = "FILE")]
    from_cacert: Option<PathBuf>,

    /// The certificate that says to the source who asks, as a file of PEM
    #[arg(long, value_name = "FILE", requires = "from_key")]
    from_cert: Option<PathBuf>,

    /// The key of --from-cert, as a file of PEM
    #[arg(long, value_name = "FILE", requires = "from_cert")]
    from_key: Option<PathBuf>,

    /// Take any certificate for the source's: for trying things out only
    #[arg(long)]
    from_insecure_skip_tls_verify: bool,
}

const MIRROR_EXAMPLES: &str = "\
Example:
  bowline make-mirror --endpoints old:2379 --prefix app/ new:2379

This is `bowline import --mirror --overwrite`, in the words of etcdctl: --endpoints is the source here. What it
prints, how it ends and what it does with leases: bowline import --help.";

/// As `import --mirror --overwrite`, in etcdctl's words: from --endpoints to a destination
#[derive(Args, Debug)]
#[command(after_long_help = MIRROR_EXAMPLES)]
pub(crate) struct MakeMirrorOptions {
    /// Where the target's servers are, separated by commas
    destination: String,

    /// Only keys that begin so
    #[arg(long, value_name = "KEY", default_value = "")]
    prefix: OsString,

    /// What they begin with at the target instead
    #[arg(long, value_name = "KEY", default_value = "", conflicts_with = "no_dest_prefix")]
    dest_prefix: OsString,

    /// They begin with nothing instead
    #[arg(long)]
    no_dest_prefix: bool,

    /// As the source was at this revision [default: as it is now]
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    rev: Option<i64>,

    /// Who asks the target; the password is asked for if it is left out
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    dest_user: Option<String>,

    /// The password of --dest-user. Better in the variable BOWLINE_DEST_PASSWORD
    #[arg(long, value_name = "PASSWORD")]
    dest_password: Option<String>,

    /// The authority that signs the target's certificates, as a file of PEM
    #[arg(long, value_name = "FILE")]
    dest_cacert: Option<PathBuf>,

    /// The certificate that says to the target who asks, as a file of PEM
    #[arg(long, value_name = "FILE", requires = "dest_key")]
    dest_cert: Option<PathBuf>,

    /// The key of --dest-cert, as a file of PEM
    #[arg(long, value_name = "FILE", requires = "dest_cert")]
    dest_key: Option<PathBuf>,

    /// Whether connections to the target without TLS are allowed [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dest_insecure_transport: Option<bool>,
}

/// Why a copy does not go on.
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
            Halt::Forgotten => {
                Failure::Failed("the source has compacted the revision that is copied".to_owned())
            }
        }
    }
}

/// What is to be done, whoever said it.
struct Task {
    source: Arc<Client>,
    target: Arc<Client>,
    parts: Vec<Part>,
    rules: Rules,
    rev: Option<i64>,
    retry_for: Option<Duration>,
    dry_run: bool,
    mirror: bool,
    until_caught_up: bool,
}

/// `bowline import`.
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
        required: false,
    };
    let source = other(&client.settings, &options.from, login, tls, "--from")?;
    let rules = Rules { overwrite: options.overwrite, delete: options.delete };
    let task = Task {
        source,
        target: client,
        parts: Part::all(options.prefix, options.dest_prefix)?,
        rules,
        rev: options.rev.filter(|rev| *rev > 0),
        retry_for: options.retry_for,
        dry_run: options.dry_run,
        mirror: options.mirror,
        until_caught_up: options.until_caught_up,
    };
    task.run(output).await
}

/// `bowline make-mirror`.
pub(crate) async fn run_make_mirror(
    client: Arc<Client>,
    output: Output,
    options: MakeMirrorOptions,
) -> Result<(), Failure> {
    let password = options.dest_password.or_else(|| variable("DEST_PASSWORD"));
    let login =
        known(options.dest_user.map(|user| login(user, password)), "BOWLINE_DEST_PASSWORD")?;
    let tls = Tls {
        cacert: options.dest_cacert,
        cert: options.dest_cert,
        key: options.dest_key,
        skip_verify: false,
        required: options.dest_insecure_transport == Some(false),
    };
    let target = other(&client.settings, &options.destination, login, tls, "the destination")?;
    let renamed = match (options.no_dest_prefix, options.dest_prefix.is_empty()) {
        (true, _) => Some(OsString::new()),
        (false, false) => Some(options.dest_prefix),
        (false, true) => None,
    };
    let task = Task {
        source: client,
        target,
        parts: Part::all(vec![options.prefix], renamed)?,
        rules: Rules { overwrite: true, ..Rules::default() },
        rev: options.rev.filter(|rev| *rev > 0),
        retry_for: None,
        dry_run: false,
        mirror: true,
        until_caught_up: false,
    };
    task.run(output).await
}

/// A client of the other cluster: as patient as that of the first.
fn other(
    settings: &Settings,
    names: &str,
    login: Option<Login>,
    tls: Tls,
    what: &str,
) -> Result<Arc<Client>, Failure> {
    let endpoints = endpoints(names);
    if endpoints.is_empty() {
        return Err(Failure::Usage(format!("{what} names no server")));
    }
    Ok(Client::new(Settings { endpoints, login, tls, ..settings.clone() }))
}

impl Task {
    async fn run(self, output: Output) -> Result<(), Failure> {
        let mut stop = stop_signal()?;
        let prefix = self.parts[0].renamed().clone();
        let source = Source::new(Side::new("the source", self.source), self.parts);
        let target = Target::new(Side::new("the target", self.target), &prefix);
        let import = Import {
            source,
            target,
            rules: self.rules,
            is_quiet: output.is_for_programs(),
            revision: Cell::new(0),
            written: Cell::new(0),
            is_copied: Cell::new(false),
        };
        let way = Way {
            rev: self.rev,
            retry_for: self.retry_for,
            mirror: self.mirror,
            until_caught_up: self.until_caught_up,
        };
        let ended = match self.dry_run {
            true => unless_stopped(&mut stop, plan(&import, &way, output)).await,
            false => bring(&import, &way, output, &mut stop).await,
        };
        import.leave_nothing_behind().await;
        ended.map_err(|failure| import.with_what_was_done(failure))
    }
}

/// How it goes on.
struct Way {
    rev: Option<i64>,
    retry_for: Option<Duration>,
    mirror: bool,
    until_caught_up: bool,
}

/// Says what would be done.
async fn plan(import: &Import, way: &Way, output: Output) -> Result<(), Failure> {
    meet(import, way, true).await?;
    let revision = match way.rev {
        Some(revision) => revision,
        None => import.source.header().await?.revision,
    };
    let plan = import.plan(revision).await.map_err(Halt::failure)?;
    output.show(&plan)?;
    plan.refusal().map_or(Ok(()), |_| Err(Failure::Exit(1)))
}

/// Asks both for the first time; from then on each may be away for a while.
async fn meet(import: &Import, way: &Way, dry_run: bool) -> Result<(), Failure> {
    tell_apart(import, dry_run).await?;
    if way.mirror {
        import.source.may_be_watched().await?;
    }
    import.may_be_away(Some(way.retry_for.unwrap_or(AWAY_DEFAULT)));
    Ok(())
}

/// Copies, and mirrors.
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
        import.may_be_away(way.retry_for);
        let mut follower = Follower::new(import, output, &copied, way.until_caught_up);
        let ended = follower.run(stop).await;
        let mirrored = follower.so_far();
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
                    "the source has compacted what comes next: copies anew, and deletes what has vanished",
                );
                rev = None;
                import.is_copied.set(false);
                import.may_be_away(Some(way.retry_for.unwrap_or(AWAY_DEFAULT)));
            }
            Ok(End::Forgotten) => {
                return Err(Failure::Failed(
                    "the source has compacted what comes next. `bowline import --mirror --overwrite --delete` copies anew, \
                     and deletes what has vanished; begun so, it does that by itself"
                        .to_owned(),
                ));
            }
            Err(failure) => return Err(failure),
        }
    }
}

impl Import {
    /// Both may, from now on.
    fn may_be_away(&self, patience: Option<Duration>) {
        self.source.side.may_be_away(patience);
        self.target.side.may_be_away(patience);
    }

    /// A failure, after it was said what was written before.
    fn with_what_was_done(&self, failure: Failure) -> Failure {
        let (written, revision) = (self.written.get(), self.revision.get());
        if written > 0 && !self.is_copied.get() {
            note(&format!(
                "{written} changes were written, towards revision {revision} of the source. The same command goes on; \
                 with --rev {revision} also if the source has changed meanwhile"
            ));
        }
        match failure {
            // That code would say that nothing was written.
            Failure::Unreachable(_) if self.is_copied.get() || self.target.is_touched() => {
                Failure::Failed(failure.to_string())
            }
            other => other,
        }
    }

    async fn leave_nothing_behind(&self) {
        let target = &self.target;
        if !target.fence.stands() {
            return;
        }
        target.side.may_be_away(Some(Duration::ZERO));
        let taken = tokio::time::timeout(TAKE_DOWN_MAX, target.fence.take_down(&target.side, true));
        let why = match taken.await {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => format!("no answer came within {TAKE_DOWN_MAX:?}"),
        };
        let key = super::quote::go(&target.fence.key);
        note(&format!("the key {key} of the target may be left over, delete it: {why}"));
    }
}

/// Refuses to copy a cluster onto itself. It asks both for the first time, too.
async fn tell_apart(import: &Import, dry_run: bool) -> Result<(), Failure> {
    let before = import.source.header().await?;
    let target = import.target.side.header(&import.target.fence.key).await?;
    let after = import.source.header().await?;
    let looks_like_one = before.cluster_id == target.cluster_id
        && before.raft_term <= target.raft_term
        && target.raft_term <= after.raft_term
        && before.revision <= target.revision
        && target.revision <= after.revision;
    let parts = &import.source.parts;
    let meet = parts.iter().any(|one| parts.iter().any(|other| one.meets(other)));
    if !looks_like_one || !meet || dry_run {
        return Ok(());
    }
    // Clusters that were made with the same names have the same id, and may be as old. So a key tells: whether what
    // is put at the target is there at the source.
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
            "the source, {}, and the target, {}, are one cluster, and the same keys are meant",
            at(&import.source.side),
            at(&target.side)
        )));
    }
    Ok(())
}

/// Becomes the exit code of the signal by which somebody says that it is enough.
fn stop_signal() -> Result<Stop, Failure> {
    let failed = |error| Failure::Local("no signals".to_owned(), error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (tell, stop) = watch::channel(None);
    tokio::task::spawn_local(async move {
        let code = tokio::select! {
            _ = interrupt.recv() => EXIT_INTERRUPTED,
            _ = terminate.recv() => EXIT_TERMINATED,
        };
        tell.send_replace(Some(code));
        // Whoever waits for it shall not be told that nobody can say so any more.
        tell.closed().await;
    });
    Ok(stop)
}

/// Does something, unless somebody says that it is enough: at any time.
async fn unless_stopped<T>(
    stop: &mut Stop,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        code = stopped(stop) => {
            crate::complain(&"interrupted");
            Err(Failure::Exit(code))
        }
        done = work => done,
    }
}
