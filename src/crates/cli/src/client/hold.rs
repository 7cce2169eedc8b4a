//! Holds a lock for `bowline lock`, `bowline semaphore` and `bowline elect`, from joining the queue to the release.
//!
//! ```text
//!   grant a lease ── create the queue entry ── lock acquired ── run the command, or wait for a signal ── revoke the lease
//!         │                                                       ▲
//!         └─ the lease is renewed throughout.                     │
//!            If renewals fail: ───────────────────────────────────┘  SIGTERM a fifth of the TTL before the hold can
//!                                                                    end, SIGKILL a twentieth before
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_fleet::Signals;
use bytes::Bytes;
use rustix::process::Signal;

use super::child::Child;
use super::connect::Client;
use super::failure::Failure;
use super::print::Output;
use super::supervisor::ended_by;
use bowline_client::LockMode;
use bowline_client::{BootTime, Held, NotHeld, QueueEntry, Session};
use bowline_proto::etcdserverpb as pb;

/// Exit code if the hold was lost or was about to be lost, and the command was therefore ended.
pub(crate) const EXIT_LOST: u8 = 123;

/// Exit code if the lock was not acquired within the timeout.
pub(crate) const EXIT_TIMEOUT: u8 = 124;

/// Exit code if the command was not started.
pub(crate) const EXIT_NOT_HELD: u8 = 125;

/// Time limit for revoking the lease when the servers are not responding.
const LOST_LEFT: Duration = Duration::from_secs(1);

/// Explanation of the exit codes, shown in the help.
pub(crate) const EXIT_CODES: &str = "\
Exit codes, with a command: the exit code of the command, or 128 plus the number of the signal that ended the command; \
123 if the hold was lost or about to be lost, and the command was ended; 124 if the lock was not acquired within \
--timeout; 125 if the servers failed before the command was started; 126 if the command cannot be run; 127 if the \
command was not found; 2 for wrong arguments.
Without a command: 0 after a release because of SIGINT or SIGTERM; 123 and 124 as above; 1, 3 and 4 as for all \
commands.";

/// The environment of the command, shown below the help.
pub(crate) const ENVIRONMENT: &str = "\
The command's environment has BOWLINE_NAME, BOWLINE_LOCK_KEY (the key in the lock queue), BOWLINE_LEASE (in \
hexadecimal) and BOWLINE_TOKEN, the fencing token, which increases with each holder of the name. A resource that the \
command writes to should reject a token lower than the highest it has seen: no lock can stop a machine that is \
suspended and resumes.";

/// A request to hold a lock.
#[derive(Clone, Debug)]
pub(crate) struct HoldRequest {
    pub(crate) name: Bytes,
    pub(crate) mode: LockMode,
    /// Value of the queue entry.
    pub(crate) value: Bytes,
    pub(crate) ttl: Duration,
    /// Maximum time to wait for the lock. With zero, the lock is acquired only if it is free. `None` waits without
    /// limit.
    pub(crate) timeout: Option<Duration>,
    /// Command to run while the lock is held. If empty, the lock is held until a signal arrives.
    pub(crate) command: Vec<OsString>,
    /// Whether to set the environment variables of `etcdctl lock` as well.
    pub(crate) is_lock: bool,
    /// Whether to print the value along with the key.
    pub(crate) shows_value: bool,
}

/// Acquires the lock, holds it while the command runs, and releases it.
pub(crate) async fn hold(
    client: &Arc<Client>,
    output: Output,
    request: HoldRequest,
) -> Result<(), Failure> {
    let signals = Signals::new();
    let mut signals =
        signals.map_err(|error| Failure::Local("cannot handle signals".to_owned(), error))?;
    let session = Session::open(client.calls(), request.ttl)
        .await
        .map_err(|why| not_held(&request, why.into()))?;
    // From here on no other task uses the connection, so the revocation below is not delayed.
    let ended = acquire_and_hold(client, output, &request, &session, &mut signals).await;
    let is_lost =
        matches!(ended, Ok(EXIT_LOST)) && session.valid_until().borrow().left() < LOST_LEFT;
    // Servers that did not answer the renewals are unlikely to answer the revocation.
    let limit = if is_lost { LOST_LEFT } else { client.settings.command_timeout };
    revoke(&session, limit).await;
    match ended? {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}

/// Adds to a failure the exit code for a command that was not started.
fn not_held(request: &HoldRequest, failure: Failure) -> Failure {
    match failure {
        Failure::Exit(_) => failure,
        failure if !request.command.is_empty() => {
            failure.print_failure();
            Failure::Exit(EXIT_NOT_HELD)
        }
        failure => failure,
    }
}

/// Acquires the lock and holds it. Returns the exit code.
async fn acquire_and_hold(
    client: &Arc<Client>,
    output: Output,
    request: &HoldRequest,
    session: &Session,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut keep = pin!(session.keep());
    let acquired = {
        let acquire = acquire(client, session, request);
        let timeout = async {
            match request.timeout {
                Some(span) if !span.is_zero() => tokio::time::sleep(span).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            acquired = acquire => acquired,
            why = &mut keep => Err(Failure::Failed(format!("the queue entry was lost: {why}"))),
            signal = signals.next() => Err(Failure::Exit(ended_by(signal))),
            () = timeout => Err(not_acquired(request)),
        }
    };
    let (place, held) = acquired.map_err(|why| not_held(request, why))?;
    let mut loss = pin!(place.loss(client.calls(), held.token() + 1));
    let lost = async {
        tokio::select! {
            why = &mut keep => why,
            why = &mut loss => why,
        }
    };
    let lost = pin!(lost);
    if session.valid_until().borrow().before(session.ttl() / 5).left().is_zero() {
        // This process was suspended in between, so another client may hold the lock by now.
        crate::print_failure(&"lost: no server confirmed the hold in time");
        return Ok(EXIT_LOST);
    }
    if request.command.is_empty() {
        output.show(&shown(request, &held))?;
        return wait(session, signals, lost).await;
    }
    let until = killed_at(session, *session.valid_until().borrow());
    let child = Child::start(&request.command, &variables(request, &place, &held, session), until);
    run(&mut child.map_err(|why| not_held(request, why))?, session, signals, lost).await
}

async fn acquire(
    client: &Arc<Client>,
    session: &Session,
    request: &HoldRequest,
) -> Result<(QueueEntry, Held), Failure> {
    let HoldRequest { name, mode, value, .. } = request;
    let place =
        QueueEntry::enter(client.calls(), name, session.lease(), *mode, value.clone()).await?;
    let only_looks = request.timeout.is_some_and(|timeout| timeout.is_zero());
    match place.turn(client.calls(), only_looks).await {
        Ok(held) => Ok((place, held)),
        Err(NotHeld::Taken) => Err(not_acquired(request)),
        Err(NotHeld::Gone) => Err(Failure::Failed(
            "the queue entry was lost: its lease has ended, or its key was deleted".to_owned(),
        )),
        Err(NotHeld::OtherKind(other)) => Err(Failure::Failed(format!(
            "{} is in use as another kind ({}): choose another name, or use the same kind",
            name.escape_ascii(),
            other.name(),
        ))),
        Err(NotHeld::Failed(error)) => Err(error.into()),
    }
}

fn not_acquired(request: &HoldRequest) -> Failure {
    let name = request.name.escape_ascii();
    let waited = request.timeout.unwrap_or_default();
    crate::print_failure(&format!("{name} is still held by others after {waited:?}"));
    Failure::Exit(EXIT_TIMEOUT)
}

/// Returns the time at which the command will be killed if no further renewal succeeds.
fn killed_at(session: &Session, valid_until: BootTime) -> BootTime {
    valid_until.before(session.ttl() / 20)
}

/// Waits until the command ends, or ends the command before the hold can end. Returns the exit code.
async fn run(
    child: &mut Child,
    session: &Session,
    signals: &mut Signals,
    mut lost: std::pin::Pin<&mut impl Future<Output = String>>,
) -> Result<u8, Failure> {
    let mut valid_until = session.valid_until();
    let mut end_requested = false;
    loop {
        let end = *valid_until.borrow_and_update();
        let last = killed_at(session, end);
        child.extend(last);
        tokio::select! {
            biased;
            code = child.wait() => {
                let was_killed = matches!(code, Ok(code) if code == ended_by(Signal::KILL));
                if was_killed && last.left().is_zero() {
                    crate::print_failure(&"this process was suspended: the command was killed meanwhile");
                    return Ok(EXIT_LOST);
                }
                // If the command ended by itself, its descendants may continue. If the command was asked to end, its
                // descendants are killed.
                if end_requested {
                    child.kill().await;
                }
                return code;
            }
            why = &mut lost => {
                // The command is killed before anything is printed, because writing to standard error may block.
                child.kill().await;
                crate::print_failure(&format!("lost: the command was killed: {why}"));
                return Ok(EXIT_LOST);
            }
            () = end.before(session.ttl() / 5).come() => {
                child.terminate();
                tokio::select! {
                    // The command has ended, but its descendants may still run.
                    _ = child.wait() => {}
                    () = last.come() => {}
                }
                child.kill().await;
                crate::print_failure(&"no server confirmed the hold in time: the command was ended");
                return Ok(EXIT_LOST);
            }
            signal = signals.next() => {
                // Other signals need not end the command: many programs reload their configuration on SIGHUP.
                end_requested |= [Signal::INT, Signal::TERM, Signal::QUIT].contains(&signal);
                child.pass_on(signal);
            }
            Ok(()) = valid_until.changed() => {}
        }
    }
}

/// Holds the lock until a signal arrives or the hold is lost. Returns the exit code.
async fn wait(
    session: &Session,
    signals: &mut Signals,
    mut lost: std::pin::Pin<&mut impl Future<Output = String>>,
) -> Result<u8, Failure> {
    let mut valid_until = session.valid_until();
    loop {
        let end = *valid_until.borrow_and_update();
        tokio::select! {
            why = &mut lost => {
                crate::print_failure(&format!("lost: {why}"));
                return Ok(EXIT_LOST);
            }
            () = end.before(session.ttl() / 20).come() => {
                crate::print_failure(&"lost: no server confirmed the hold in time");
                return Ok(EXIT_LOST);
            }
            signal = signals.next() => {
                let is_asked = [Signal::INT, Signal::TERM].contains(&signal);
                return Ok(if is_asked { 0 } else { ended_by(signal) });
            }
            Ok(()) = valid_until.changed() => {}
        }
    }
}

async fn revoke(session: &Session, limit: Duration) {
    if let Err(failure) = session.close_within(limit).await {
        let left = session.valid_until().borrow().left();
        crate::print_failure(&format!("not released: {failure}; it expires in {left:?} or later"));
    }
}

fn variables(
    request: &HoldRequest,
    place: &QueueEntry,
    held: &Held,
    session: &Session,
) -> Vec<(&'static str, OsString)> {
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    let token = OsString::from(held.token().to_string());
    let mut variables = vec![
        ("BOWLINE_NAME", text(&request.name)),
        // The variable is not named BOWLINE_KEY, because that variable sets the option --key of this program.
        ("BOWLINE_LOCK_KEY", text(place.key())),
        ("BOWLINE_LEASE", format!("{:x}", session.lease()).into()),
        ("BOWLINE_TOKEN", token.clone()),
    ];
    if request.is_lock {
        variables.push(("ETCD_LOCK_KEY", text(place.key())));
        variables.push(("ETCD_LOCK_REV", token));
    }
    variables
}

/// Formats the hold as etcdctl does: the key, followed by the value if the caller chose the value.
fn shown(request: &HoldRequest, held: &Held) -> pb::RangeResponse {
    let mut row = held.row.clone();
    if !request.shows_value {
        row.value.clear();
    }
    pb::RangeResponse { header: held.header, kvs: vec![row], more: false, count: 1 }
}
