//! From standing in a line to letting go: what `lock`, `semaphore` and `elect` have in common.
//!
//! ```text
//!   a lease ── a place in the line ── its turn ── a command, or until a signal ── the lease is ended
//!     │                                              ▲
//!     └─ kept alive all the time. If it cannot be:   │ SIGTERM a fifth of the TTL before the hold can
//!                                                    │ end, SIGKILL a twentieth before
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;

use super::child::Child;
use super::connect::Client;
use super::failure::Failure;
use super::line::{self, Held, Misfortune, Place};
use super::print::Output;
use super::session::{Moment, Session};
use super::signals::Signals;
use super::stance::Rule;
use super::supervisor::ended_by;
use crate::generated::etcdserverpb as pb;

/// The hold was lost, or would have been: the command was ended before.
pub(crate) const EXIT_LOST: u8 = 123;

/// It was not this one's turn in time.
pub(crate) const EXIT_TIMEOUT: u8 = 124;

/// The command was not started.
pub(crate) const EXIT_NOT_HELD: u8 = 125;

/// How long to try to end a lease at servers that do not answer.
const LOST_LEFT: Duration = Duration::from_secs(1);

/// What stands below the help.
pub(crate) const EXIT_CODES: &str = "\
Exit codes, with a command: its own, or 128 and the number of the signal that ended it; 123 the hold was lost, or \
would have been, and the command was ended before; 124 it was not this one's turn within --timeout; 125 the servers \
did not do their part, and the command was not started; 126 the command cannot be run; 127 it was not found; 2 wrong \
arguments.
Without a command: 0 let go after SIGINT or SIGTERM; 123 and 124 as above; 1, 3 and 4 as of all commands.";

/// What a command finds in its environment.
pub(crate) const ENVIRONMENT: &str = "\
The command's environment has BOWLINE_NAME, BOWLINE_LOCK_KEY (the key in the line), BOWLINE_LEASE (in hexadecimal) and \
BOWLINE_TOKEN, the fencing token: it rises with each holder of that name. Whatever the command writes to should \
refuse a lower token than it has seen: no lock can stop a machine that sleeps and wakes.";

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct HoldRequest {
    pub(crate) name: Bytes,
    pub(crate) rule: Rule,
    /// What its place says.
    pub(crate) value: Bytes,
    pub(crate) ttl: Duration,
    /// How long to wait for the turn; zero for a single look.
    pub(crate) timeout: Option<Duration>,
    /// What runs meanwhile; nothing for until a signal.
    pub(crate) command: Vec<OsString>,
    /// Whether etcdctl's variables are set, too.
    pub(crate) is_lock: bool,
    /// Whether the value is printed with the key.
    pub(crate) shows_value: bool,
}

/// Waits for the turn, holds, and lets go.
pub(crate) async fn hold(
    client: &Arc<Client>,
    output: Output,
    request: HoldRequest,
) -> Result<(), Failure> {
    let signals = Signals::new();
    let mut signals = signals.map_err(|error| Failure::Local("no signals".to_owned(), error))?;
    let session =
        Session::open(client, request.ttl).await.map_err(|why| not_held(&request, why))?;
    // Nothing of it asks the servers any more once it has ended, or keeps anybody from asking them.
    let ended = until_over(client, output, &request, &session, &mut signals).await;
    let is_lost =
        matches!(ended, Ok(EXIT_LOST)) && session.valid_until().borrow().left() < LOST_LEFT;
    // Who does not hear the renewals does not hear this, most likely.
    let limit = if is_lost { LOST_LEFT } else { client.settings.command_timeout };
    let_go(&session, limit).await;
    match ended? {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}

/// Why the command was not started.
fn not_held(request: &HoldRequest, failure: Failure) -> Failure {
    match failure {
        Failure::Exit(_) => failure,
        failure if !request.command.is_empty() => {
            failure.complain();
            Failure::Exit(EXIT_NOT_HELD)
        }
        failure => failure,
    }
}

/// Waits for the turn, and holds. Says the exit code.
async fn until_over(
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
            why = &mut keep => Err(Failure::Failed(format!("the place in the line was lost: {why}"))),
            signal = signals.next() => Err(Failure::Exit(ended_by(signal))),
            () = timeout => Err(in_vain(request)),
        }
    };
    let (place, held) = acquired.map_err(|why| not_held(request, why))?;
    let mut loss = pin!(place.loss(client, held.token() + 1));
    let lost = async {
        tokio::select! {
            why = &mut keep => why,
            why = &mut loss => why,
        }
    };
    let lost = pin!(lost);
    if session.valid_until().borrow().before(session.ttl / 5).left().is_zero() {
        // This process stood still in between: somebody else may hold by now.
        crate::complain(&"lost: no server has confirmed the hold in time");
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
) -> Result<(Place, Held), Failure> {
    let HoldRequest { name, rule, value, .. } = request;
    let place = line::enter(client, name, session.lease, *rule, value.clone()).await?;
    let only_looks = request.timeout.is_some_and(|timeout| timeout.is_zero());
    match place.turn(client, only_looks).await {
        Ok(held) => Ok((place, held)),
        Err(Misfortune::Taken) => Err(in_vain(request)),
        Err(Misfortune::Gone) => Err(Failure::Failed(
            "the place in the line was lost: its lease has ended, or somebody has deleted its key"
                .to_owned(),
        )),
        Err(Misfortune::Misfit(other)) => Err(Failure::Failed(format!(
            "{} is used for something else: {} stands in its line; choose another name, or the same kind",
            name.escape_ascii(),
            other.name(),
        ))),
        Err(Misfortune::Failed(failure)) => Err(failure),
    }
}

fn in_vain(request: &HoldRequest) -> Failure {
    let name = request.name.escape_ascii();
    let waited = request.timeout.unwrap_or_default();
    crate::complain(&format!("{name} is held by others, also after {waited:?}"));
    Failure::Exit(EXIT_TIMEOUT)
}

/// When the command is killed, whoever does it, if no renewal comes any more.
fn killed_at(session: &Session, valid_until: Moment) -> Moment {
    valid_until.before(session.ttl / 20)
}

/// Runs the command to its end, or ends it in time. Says the exit code.
async fn run(
    child: &mut Child,
    session: &Session,
    signals: &mut Signals,
    mut lost: std::pin::Pin<&mut impl Future<Output = String>>,
) -> Result<u8, Failure> {
    let mut valid_until = session.valid_until();
    let mut is_told = false;
    loop {
        let end = *valid_until.borrow_and_update();
        let last = killed_at(session, end);
        child.extend(last);
        tokio::select! {
            biased;
            code = child.wait() => {
                let was_killed = matches!(code, Ok(code) if code == ended_by(Signal::KILL));
                if was_killed && last.left().is_zero() {
                    crate::complain(&"this process stood still: the command was killed meanwhile");
                    return Ok(EXIT_LOST);
                }
                // What it has left behind when it ended by itself goes on; what was told to end ends.
                if is_told {
                    child.kill().await;
                }
                return code;
            }
            why = &mut lost => {
                // Before anything is said: nobody may be there to read it.
                child.kill().await;
                crate::complain(&format!("lost, the command was killed: {why}"));
                return Ok(EXIT_LOST);
            }
            () = end.before(session.ttl / 5).come() => {
                child.ask_to_end();
                tokio::select! {
                    // Its descendants may go on.
                    _ = child.wait() => {}
                    () = last.come() => {}
                }
                child.kill().await;
                crate::complain(&"no server confirms the hold: the command was ended");
                return Ok(EXIT_LOST);
            }
            signal = signals.next() => {
                // For others it may go on, as programs do that read their configuration again.
                is_told |= [Signal::INT, Signal::TERM, Signal::QUIT].contains(&signal);
                child.pass_on(signal);
            }
            Ok(()) = valid_until.changed() => {}
        }
    }
}

/// Holds until a signal comes. Says the exit code.
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
                crate::complain(&format!("lost: {why}"));
                return Ok(EXIT_LOST);
            }
            () = end.before(session.ttl / 20).come() => {
                crate::complain(&"lost: no server has confirmed the hold in time");
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

async fn let_go(session: &Session, limit: Duration) {
    if let Err(failure) = session.close(limit).await {
        let left = session.valid_until().borrow().left();
        crate::complain(&format!("not let go, it ends by itself in {left:?} or more: {failure}"));
    }
}

fn variables(
    request: &HoldRequest,
    place: &Place,
    held: &Held,
    session: &Session,
) -> Vec<(&'static str, OsString)> {
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    let token = OsString::from(held.token().to_string());
    let mut variables = vec![
        ("BOWLINE_NAME", text(&request.name)),
        // Not BOWLINE_KEY, which is an option of ours: --key.
        ("BOWLINE_LOCK_KEY", text(&place.key)),
        ("BOWLINE_LEASE", format!("{:x}", session.lease).into()),
        ("BOWLINE_TOKEN", token.clone()),
    ];
    if request.is_lock {
        variables.push(("ETCD_LOCK_KEY", text(&place.key)));
        variables.push(("ETCD_LOCK_REV", token));
    }
    variables
}

/// As etcdctl shows it: the key; and the value, if it is the user's.
fn shown(request: &HoldRequest, held: &Held) -> pb::RangeResponse {
    let mut row = held.row.clone();
    if !request.shows_value {
        row.value.clear();
    }
    pb::RangeResponse { header: held.header, kvs: vec![row], more: false, count: 1 }
}
