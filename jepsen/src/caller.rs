//! A client of a run. The client sends calls to one member and records the calls and their replies.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bowline_check::{At, Outcome};

use crate::calls::{Call, Reply, Row};
use crate::dice::Dice;
use crate::fleet::{Fleet, ProcessState};
use crate::ledger::{Book, End, Entry, Ledger};
use crate::over::Over;
use crate::wire::{Answer, Order};

/// Time to wait for a reply after the deadline of the call has passed.
const GRACE: Duration = Duration::from_secs(1);

/// Pause between two attempts of a call that is retried until it succeeds.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// In a run over servers, a client keeps on average one of 64 holds for as long as it considers the hold valid.
const CLINGS_IN: u64 = 64;

/// Maximum time that such a client keeps a hold, longer than a session exists without renewals.
pub const HOLD_TIME_MAX: Duration = Duration::from_secs(4);

/// The reason why a call has no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Miss {
    /// The call certainly had no effect and will have none.
    Failed(String),
    /// The outcome is unknown: the call may have had an effect.
    Unknown(String),
}

impl Miss {
    /// Converts an unknown outcome to a failure, for calls that cannot have an effect, such as the read before a write.
    #[must_use]
    pub fn harmless(self) -> Self {
        match self {
            Miss::Failed(why) | Miss::Unknown(why) => Miss::Failed(why),
        }
    }

    /// Returns the error for a reply that belongs to another kind of call.
    pub fn nonsense(reply: &Reply) -> Self {
        Miss::Unknown(format!("unexpected reply: {reply:?}"))
    }
}

/// The result of an operation, with its times.
pub struct Timed<R> {
    /// The result.
    pub result: Result<R, Miss>,
    /// Time at which the operation was sent.
    pub invoked: u64,
    /// Time at which the outcome of the operation was known.
    pub ended: u64,
}

/// Converts the result of an operation to the outcome that a history records.
pub fn outcome<R: Clone>(result: &Result<R, Miss>, ended: u64) -> Outcome<R> {
    let at = At(ended);
    match result {
        Ok(reply) => Outcome::Ok { at, reply: reply.clone() },
        Err(Miss::Failed(_)) => Outcome::Failed { at: Some(at) },
        Err(Miss::Unknown(_)) => Outcome::Unknown { at: Some(at) },
    }
}

/// A client of a run.
pub struct Caller<'a> {
    /// The members.
    pub fleet: &'a Fleet,
    /// The ledger of the run.
    pub ledger: &'a Ledger,
    /// Number of this client.
    pub client: u64,
    /// The member that receives the client's calls.
    pub member: usize,
    /// The client's random numbers.
    pub dice: Dice,
}

impl<'a> Caller<'a> {
    /// Returns the client with the number `client`, which calls the member `member`.
    pub fn new(
        fleet: &'a Fleet,
        ledger: &'a Ledger,
        client: u64,
        member: usize,
        seed: u64,
    ) -> Self {
        let dice = Dice::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(client));
        Self { fleet, ledger, client, member, dice }
    }

    /// Returns the current time in microseconds since the start of the run.
    pub fn now(&self) -> u64 {
        self.ledger.now()
    }

    /// Sends a call to the client's member without recording the call.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no reply in time.
    pub fn call(&self, call: &Call) -> Result<Reply, Miss> {
        let Some(process) = self.fleet.process(self.member) else {
            return Err(Miss::Failed("the member is down".to_owned()));
        };
        if process.is_over() {
            return Err(Miss::Failed("the process of the member has ended".to_owned()));
        }
        let limit = self.fleet.setup().deadline + call.waits() + GRACE;
        let order = Order::Call(Box::new(call.clone()));
        match process.ask(&order).recv_timeout(limit) {
            Ok(Answer::Came(reply)) => Ok(*reply),
            Ok(Answer::Refused(why)) => Err(Miss::Failed(why)),
            Ok(Answer::Unknown(why)) => Err(Miss::Unknown(why)),
            Ok(answer) => Err(Miss::Unknown(format!("unexpected answer: {answer:?}"))),
            Err(_) if process.is_over() => Err(Miss::Unknown("the process died".to_owned())),
            Err(_) => Err(Miss::Unknown("no reply before the deadline".to_owned())),
        }
    }

    /// Sends a call whose reply is rows, without recording the call.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no reply in time.
    pub fn rows(&self, call: &Call) -> Result<Vec<Row>, Miss> {
        match self.call(call)? {
            Reply::Rows { rows, .. } => Ok(rows),
            reply => Err(Miss::nonsense(&reply)),
        }
    }

    /// Gives up the current or future hold of a slot, without waiting for the reply.
    pub fn forget(&self, slot: String) {
        if let Some(process) = self.fleet.process(self.member) {
            drop(process.ask(&Order::Call(Box::new(Call::Forget { slot }))));
        }
    }

    /// Runs `work` as one operation, and records the call and the outcome.
    pub fn operation<C, R: Clone>(
        &mut self,
        book: &Book<C, R>,
        kind: &'static str,
        object: &str,
        call: C,
        work: impl FnOnce(&mut Self) -> Result<R, Miss>,
    ) -> Result<R, Miss> {
        self.operation_as(book, |_| kind, object, call, work)
    }

    /// Like `operation`, but `kind` derives the kind of operation in the report from the result.
    pub fn operation_as<C, R: Clone>(
        &mut self,
        book: &Book<C, R>,
        kind: impl FnOnce(&Result<R, Miss>) -> &'static str,
        object: &str,
        call: C,
        work: impl FnOnce(&mut Self) -> Result<R, Miss>,
    ) -> Result<R, Miss> {
        let index = book.begin(self.client, object, self.now(), call);
        let Timed { result, ended, .. } = self.timed_as(kind, work);
        book.end(index, outcome(&result, ended));
        result
    }

    /// Runs `work` as one operation of the report, and returns the times of the operation. The workload itself records
    /// the call and the outcome. Use this function for operations whose history has another form than their calls.
    pub fn timed<R>(
        &mut self,
        kind: &'static str,
        work: impl FnOnce(&mut Self) -> Result<R, Miss>,
    ) -> Timed<R> {
        self.timed_as(|_| kind, work)
    }

    /// Like `timed`, but `kind` derives the kind of operation in the report from the result.
    pub fn timed_as<R>(
        &mut self,
        kind: impl FnOnce(&Result<R, Miss>) -> &'static str,
        work: impl FnOnce(&mut Self) -> Result<R, Miss>,
    ) -> Timed<R> {
        let (invoked, member, client) = (self.now(), self.member, self.client);
        let result = work(self);
        let ended = self.now();
        let (end, why) = match &result {
            Ok(_) => (End::Ok, None),
            Err(Miss::Failed(why)) => (End::Failed, Some(why)),
            Err(Miss::Unknown(why)) => (End::Unknown, Some(why)),
        };
        let (why, kind) = (why.map(|why| Arc::from(why.as_str())), kind(&result));
        self.ledger.enter(Entry { client, member, kind, invoked, ended, end, why });
        Timed { result, invoked, ended }
    }

    /// Repeats a call until the call succeeds, for at most `limit`. Used before and after the load of a run. The call
    /// must be idempotent.
    ///
    /// # Errors
    ///
    /// Returns the error of the last attempt.
    pub fn call_until_answered(&mut self, call: &Call, limit: Duration) -> Result<Reply, Miss> {
        let until = self.now() + u64::try_from(limit.as_micros()).unwrap_or(u64::MAX / 2);
        loop {
            match self.call(call) {
                Err(miss) if self.now() >= until => return Err(miss),
                Err(_) => {
                    self.move_on();
                    thread::sleep(AGAIN_AFTER);
                }
                reply => return reply,
            }
        }
    }

    /// Switches to the next member.
    pub fn move_on(&mut self) {
        self.member = (self.member + 1) % self.fleet.members();
    }

    /// Returns whether a client should keep a hold until it no longer considers the hold valid. Returns true for a few
    /// holds, and always if the client's server is paused or cut off from another member. (Clients inside a paused
    /// process keep their holds in any case.)
    pub fn clings(&mut self) -> bool {
        let (fleet, own) = (self.fleet, self.member);
        let is_cut = |other| {
            let cut = |from, to| fleet.links().rule(from, to).cut.is_some();
            cut(own, other) || cut(other, own)
        };
        let is_alone =
            || fleet.being(own) == ProcessState::Paused || (0..fleet.places()).any(is_cut);
        fleet.setup().over == Over::Server && (is_alone() || self.dice.below(CLINGS_IN) == 0)
    }

    /// Returns whether the client's member has a process.
    pub fn has_somebody(&self) -> bool {
        self.fleet.being(self.member) != ProcessState::Down
            && self.fleet.process(self.member).is_some_and(|process| !process.is_over())
    }
}
