//! A workload of locks, checked against four models: a mutex, a re-entrant mutex, a mutex with rising tokens, and a
//! semaphore.
//!
//! The history is checked twice. The first check searches for an order of the acquisitions and releases that explains
//! their replies ([`linear`]). A hold can be lost because its session ended or its process was killed. The workload
//! records a lost hold as a release of unknown outcome. This release starts when the holder last confirmed the hold.
//! From that time on, other clients may hold the lock.
//!
//! The second check compares the times during which holders considered the lock held ([`intervals::holds`]). Each
//! holder reports the last such time. Until that time, no other client may hold the lock. The process of the holder
//! reads the time just before it reads the state of the hold. If the process was paused between the request and its
//! reply, the reply "held" therefore refers to the time after the pause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline_check::intervals::{self, HoldCall, HoldKind, HoldReply, Holds};
use bowline_check::{
    At, History, MutexCall, MutexModel, MutexReply, Outcome, SemaphoreCall, SemaphoreModel,
    SemaphoreReply, Value, linear,
};

use super::{Client, Exhibit, Kind, Workload, budget};
use crate::caller::{Caller, HOLD_TIME_MAX, Miss, Timed, outcome};
use crate::calls::{self, Call, Reply};
use crate::ledger::{Book, Ledger};
use crate::progress::{HAD_ALREADY, PASSED_ON};

pub(super) const MUTEX: Kind = Kind {
    name: "lock",
    about: "no two holders of a mutex believe in it at one time",
    least: LEAST,
    clients: 2,
    control: None,
    make: || Box::new(Locks::new(Sort::Mutex)),
};

pub(super) const AGAIN: Kind = Kind {
    name: "lock-again",
    about: "the same for a mutex that its owner may hold up to three times",
    least: LEAST,
    clients: 2,
    control: None,
    make: || Box::new(Locks::new(Sort::Again)),
};

pub(super) const FENCED: Kind = Kind {
    name: "lock-fenced",
    about: "the same for a mutex, and its tokens rise from holder to holder",
    least: LEAST,
    clients: 2,
    control: None,
    make: || Box::new(Locks::new(Sort::Fenced)),
};

pub(super) const PERMITS: Kind = Kind {
    name: "semaphore",
    about: "no more than the three permits of a semaphore are held at any time",
    least: LEAST,
    clients: 2,
    control: None,
    make: || Box::new(Locks::new(Sort::Permits)),
};

const LEAST: &[(&str, u64)] = &[("acquire", 60), ("release", 60)];

/// Number of locks in use at a time. If a crash blocks two of them, one is left for the other clients.
const LOCKS: u64 = 3;
/// Number of acquisitions after which new locks are used, because short histories are checked faster.
const ACQUISITIONS: u64 = 400;
/// Maximum number of further acquisitions by the owner of a re-entrant mutex.
const AGAIN_MAX: u64 = 2;
const HOLDS_MAX: u32 = 3;
const LIMIT: u32 = 3;
const WAIT_MS: u64 = 2000;
/// Maximum time between two checks of a hold.
const HOLD_MS: u64 = 12;

/// The model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Mutex,
    Again,
    Fenced,
    Permits,
}

/// The workload.
struct Locks {
    sort: Sort,
    mutexes: Book<MutexCall, MutexReply>,
    semaphores: Book<SemaphoreCall, SemaphoreReply>,
    holds: Book<HoldCall, HoldReply>,
    acquisitions: AtomicU64,
}

const HOPS: u64 = 1 << 20;

/// Combines revision and hand-off number in one number with the same order.
pub(super) fn token_number((revision, handoff): (u64, u64)) -> u64 {
    revision * HOPS + handoff.min(HOPS - 1)
}

/// Returns whether the hold with this token was passed on inside its member, which requires no contact to other
/// members.
pub(super) fn was_passed_on(token: u64) -> bool {
    !token.is_multiple_of(HOPS)
}

/// One hold, or an attempt to acquire one.
struct Hold<'a> {
    locks: &'a Locks,
    lock: String,
    slot: String,
    owner: String,
    /// Whether its owner already holds the lock.
    again: bool,
    want: u32,
    /// Time of the grant, as the holder knows it, and the fencing token.
    granted: Option<(u64, u64)>,
    /// Last time at which the hold was seen to be valid. The hold was not lost before this time.
    seen: u64,
}

impl Hold<'_> {
    /// Acquires the lock. Returns whether it is held.
    fn acquire(&mut self, caller: &mut Caller<'_>) -> bool {
        let kind = match self.locks.sort {
            Sort::Mutex | Sort::Fenced => calls::Kind::Mutex,
            Sort::Again => calls::Kind::Again { owner: self.owner.clone() },
            Sort::Permits => calls::Kind::Permits { want: self.want, limit: LIMIT },
        };
        let call = Call::Acquire {
            slot: self.slot.clone(),
            lock: self.lock.clone(),
            kind,
            wait_ms: WAIT_MS,
        };
        let kind_of = |token: &Result<u64, Miss>| match token {
            Ok(_) if self.again => HAD_ALREADY,
            Ok(token) if was_passed_on(*token) => PASSED_ON,
            _ => "acquire",
        };
        let timed = caller.timed_as(kind_of, |caller| match caller.call(&call)? {
            Reply::Granted { token } => Ok(token_number(token)),
            reply => Err(Miss::nonsense(&reply)),
        });
        let Timed { result, invoked, ended } = timed;
        self.seen = invoked;
        self.granted = result.as_ref().ok().map(|token| (ended, *token));
        let (is_held, is_unknown) = (result.is_ok(), matches!(result, Err(Miss::Unknown(_))));
        self.enter(caller.client, true, invoked, ended, result);
        if is_unknown {
            // The lock may have been granted already, or may be granted later. In both cases, give it up.
            caller.forget(self.slot.clone());
            self.lost(caller.client, ended);
        }
        is_held
    }

    /// Keeps the lock for a while, and then checks whether the hold is still valid.
    fn look(&mut self, caller: &mut Caller<'_>) -> bool {
        thread::sleep(Duration::from_millis(caller.dice.below(HOLD_MS)));
        let call = Call::Look { slot: self.slot.clone() };
        let said = caller.timed("look", |caller| caller.call(&call)).result;
        said.is_ok_and(|said| self.note(caller.ledger, &said))
    }

    /// Records the time at which the hold was valid according to its holder. Returns whether the holder confirmed the
    /// hold.
    fn note(&mut self, ledger: &Ledger, said: &Reply) -> bool {
        let seen = ledger.seen(said);
        self.seen = seen.map_or(self.seen, |seen| self.seen.max(seen));
        seen.is_some()
    }

    fn release(mut self, caller: &mut Caller<'_>) {
        let call = Call::Release { slot: self.slot.clone() };
        let timed = caller.timed("release", |caller| {
            let said = caller.call(&call)?;
            self.note(caller.ledger, &said);
            match said {
                Reply::Held { held: true, .. } => Ok(0),
                Reply::Held { held: false, .. } => {
                    Err(Miss::Unknown("the hold was lost".to_owned()))
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        });
        let Timed { result, invoked, ended } = timed;
        // If the release succeeded, the lock was held at least until the release was requested.
        let until = if result.is_ok() { self.seen.max(invoked) } else { self.seen };
        self.believed(caller.client, until, result.is_err());
        if result.is_ok() {
            self.enter(caller.client, false, until, ended, result);
        } else {
            caller.forget(self.slot.clone());
            self.lost(caller.client, ended);
        }
    }

    /// Records the time during which the holder considered its hold valid.
    fn believed(&self, client: u64, until: u64, lost: bool) {
        // If the holder never saw its hold as valid, it may have lost the hold before the reply arrived.
        let Some((since, token)) = self.granted.filter(|(since, _)| *since <= until) else {
            return;
        };
        let kind = match self.locks.sort {
            Sort::Permits => HoldKind::Permits(self.want.into()),
            Sort::Mutex | Sort::Again | Sort::Fenced => HoldKind::Write,
        };
        let owner = Value::from(self.owner.as_str());
        let call = HoldCall::Hold { owner, kind, token: Some(token) };
        let index = self.locks.holds.begin(client, &self.lock, since, call);
        self.locks.holds.end(index, Outcome::Ok { at: At(until), reply: HoldReply { lost } });
    }

    /// Records that the hold was lost at some time after it was last seen to be valid, or that it was never granted.
    fn lost(&self, client: u64, ended: u64) {
        self.enter(client, false, self.seen, ended, Err(Miss::Unknown(String::new())));
    }

    fn enter(&self, client: u64, acquires: bool, from: u64, to: u64, result: Result<u64, Miss>) {
        let owner = || Value::from(self.owner.as_str());
        let outcome = outcome(&result, to);
        if self.locks.sort == Sort::Permits {
            let permits = u64::from(self.want);
            let call = match acquires {
                true => SemaphoreCall::Acquire { owner: owner(), permits },
                false => SemaphoreCall::Release { owner: owner(), permits },
            };
            let index = self.locks.semaphores.begin(client, &self.lock, from, call);
            self.locks.semaphores.end(index, with(outcome, |_| SemaphoreReply::Done));
            return;
        }
        let is_fenced = self.locks.model().is_fenced;
        let call = match acquires {
            true => MutexCall::Acquire { owner: owner() },
            false => MutexCall::Release { owner: owner() },
        };
        let reply = |token| match acquires {
            true => MutexReply::Acquired { token: is_fenced.then_some(token) },
            false => MutexReply::Released,
        };
        let index = self.locks.mutexes.begin(client, &self.lock, from, call);
        self.locks.mutexes.end(index, with(outcome, reply));
    }
}

/// Returns the outcome with another reply.
fn with<R, S>(outcome: Outcome<R>, reply: impl FnOnce(R) -> S) -> Outcome<S> {
    match outcome {
        Outcome::Ok { at, reply: said } => Outcome::Ok { at, reply: reply(said) },
        Outcome::Failed { at } => Outcome::Failed { at },
        Outcome::Unknown { at } => Outcome::Unknown { at },
    }
}

impl Locks {
    fn new(sort: Sort) -> Self {
        Self {
            sort,
            mutexes: Book::default(),
            semaphores: Book::default(),
            holds: Book::default(),
            acquisitions: AtomicU64::new(0),
        }
    }

    fn model(&self) -> MutexModel {
        let holds_max = if self.sort == Sort::Again { HOLDS_MAX } else { 1 };
        MutexModel { holds_max, is_fenced: matches!(self.sort, Sort::Fenced | Sort::Again) }
    }
}

impl Client for &Locks {
    fn step(&mut self, caller: &mut Caller<'_>) {
        let number = self.acquisitions.fetch_add(1, Ordering::Relaxed);
        let lock = format!("l/{:04}/{}", number / ACQUISITIONS, caller.dice.below(LOCKS));
        let owner = format!("{}.{number}", caller.client);
        let again = if self.sort == Sort::Again { caller.dice.below(AGAIN_MAX + 1) } else { 0 };
        let want =
            if self.sort == Sort::Permits { 1 + u32::from(caller.dice.below(3) == 0) } else { 1 };
        let mut holds = Vec::new();
        for time in 0..=again {
            let (slot, seen, granted) = (format!("{owner}.{time}"), 0, None);
            let (lock, owner) = (lock.clone(), owner.clone());
            let again = time > 0;
            let mut hold = Hold { locks: self, lock, slot, owner, again, want, granted, seen };
            if !hold.acquire(caller) {
                break;
            }
            holds.push(hold);
        }
        for _ in 0..caller.dice.below(3) {
            let are_held = holds.iter_mut().map(|hold| hold.look(caller)).min();
            if are_held != Some(true) {
                break;
            }
        }
        let clings = !holds.is_empty() && caller.clings();
        let begun = Instant::now();
        while clings
            && begun.elapsed() < HOLD_TIME_MAX
            && holds.iter_mut().map(|hold| hold.look(caller)).min() == Some(true)
        {}
        while let Some(hold) = holds.pop() {
            hold.release(caller);
        }
    }
}

impl Workload for Locks {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let (model, is_again) = (self.model(), self.sort == Sort::Again);
        let holds = move |history: &History<_, _>| {
            let rules = Holds { permits: LIMIT.into(), is_reentrant: is_again, ..Holds::default() };
            intervals::holds(&rules, history)
        };
        let mutexes = move |history: &History<_, _>| linear::check(&model, history, budget());
        let semaphores = |history: &History<_, _>| {
            linear::check(&SemaphoreModel { permits: LIMIT.into() }, history, budget())
        };
        let mutex = |check| Exhibit::new("mutexes", check, self.mutexes.history(), mutexes);
        let calls = match self.sort {
            Sort::Mutex => mutex("--model mutex"),
            Sort::Again => mutex("--model reentrant --holds 3 --fenced"),
            Sort::Fenced => mutex("--model fenced"),
            Sort::Permits => {
                let history = self.semaphores.history();
                Exhibit::new("semaphores", "--model semaphore --permits 3", history, semaphores)
            }
        };
        vec![calls, Exhibit::new("holds", "--model holds --permits 3", self.holds.history(), holds)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;
    use crate::fleet::tests::{answers, shell};
    use crate::workload::Judgement;
    use crate::{moment, progress};

    fn hold<'a>(locks: &'a Locks, who: &str, granted: (u64, u64)) -> Hold<'a> {
        let (lock, slot, owner) = ("l".to_owned(), who.to_owned(), who.to_owned());
        let again = false;
        Hold { locks, lock, slot, owner, again, want: 1, granted: Some(granted), seen: 0 }
    }

    /// Returns the kind under which an acquisition with this hand-off number is recorded.
    fn entered(handoff: u64, again: bool) -> &'static str {
        let fleet =
            shell(&answers(&Answer::Came(Box::new(Reply::Granted { token: (9, handoff) }))));
        let (ledger, locks) = (Ledger::default(), Locks::new(Sort::Again));
        let mut hold = Hold { again, ..hold(&locks, "a", (0, 5)) };
        assert!(hold.acquire(&mut Caller::new(&fleet, &ledger, 1, 0, 1)));
        ledger.entries()[0].kind
    }

    #[test]
    fn reentrant_or_handed_off_lock_is_not_progress() {
        assert!(progress::needs_a_quorum(entered(0, false)));
        assert!(!progress::needs_a_quorum(entered(1, false)));
        assert!(!progress::needs_a_quorum(entered(0, true)));
    }

    /// Checks a history in which a holder is queried and then paused. When the holder replies, another client has the
    /// lock. `says` returns the reply.
    fn after_a_pause(says: impl Fn(u64) -> Option<u64>) -> Judgement {
        let (ledger, locks) = (Ledger::default(), Locks::new(Sort::Mutex));
        let mut first = hold(&locks, "a", (0, 5));
        let asked = ledger.now();
        thread::sleep(Duration::from_millis(2));
        hold(&locks, "b", (ledger.now(), 6)).believed(2, ledger.now() + 1_000_000, false);
        thread::sleep(Duration::from_millis(2));
        let at = says(moment::now());
        let is_held = first.note(&ledger, &Reply::Held { held: at.is_some(), at });
        assert_eq!(is_held, at.is_some());
        assert!(first.seen == 0 || first.seen > asked);
        first.believed(1, first.seen, true);
        let holds = locks.exhibits().pop().unwrap();
        holds.judge().judgement
    }

    #[test]
    fn stale_hold_reported_after_a_pause_is_a_violation() {
        let wrong = after_a_pause(Some);
        assert!(matches!(wrong, Judgement::Violation(_)), "{wrong:?}");
        let right = after_a_pause(|_| None);
        assert!(matches!(right, Judgement::Ok(_)), "{right:?}");
    }
}
