//! A client of a run: asks one member for things, and takes down what it asked and what came back.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bowline::check::{At, Outcome};

use crate::calls::{Call, Reply};
use crate::dice::Dice;
use crate::fleet::{Fleet, ProcessState};
use crate::ledger::{Book, End, Entry, Ledger};
use crate::over::Over;
use crate::wire::{Answer, Order};

/// How much longer than it may take an answer is waited for.
const GRACE: Duration = Duration::from_secs(1);

/// Between two attempts of what is asked again until it is done.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A client of a server clings to one of so many things that it holds.
const CLINGS_IN: u64 = 64;

/// For how long at most: longer than a session lives without renewals.
pub const CLINGS_FOR: Duration = Duration::from_secs(4);

/// Why there is no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Miss {
    /// It certainly has no effect, now or later.
    Failed(String),
    /// It may have one.
    Unknown(String),
}

impl Miss {
    /// Of something that has no effect, whatever comes of it: a read before the write that was meant.
    #[must_use]
    pub fn harmless(self) -> Self {
        match self {
            Miss::Failed(why) | Miss::Unknown(why) => Miss::Failed(why),
        }
    }

    /// A reply that belongs to another call.
    pub fn nonsense(reply: &Reply) -> Self {
        Miss::Unknown(format!("a node answered {reply:?}"))
    }
}

/// What came of an operation, and when.
pub struct Timed<R> {
    /// What.
    pub result: Result<R, Miss>,
    /// When it was sent.
    pub invoked: u64,
    /// When its end was known.
    pub ended: u64,
}

/// What a history says of a result.
pub fn outcome<R: Clone>(result: &Result<R, Miss>, ended: u64) -> Outcome<R> {
    let at = At(ended);
    match result {
        Ok(reply) => Outcome::Ok { at, reply: reply.clone() },
        Err(Miss::Failed(_)) => Outcome::Failed { at: Some(at) },
        Err(Miss::Unknown(_)) => Outcome::Unknown { at: Some(at) },
    }
}

/// See the module.
pub struct Caller<'a> {
    /// The members.
    pub fleet: &'a Fleet,
    /// The run's book.
    pub ledger: &'a Ledger,
    /// Which client this is.
    pub client: u64,
    /// Targets it asks.
    pub member: usize,
    /// What it draws from.
    pub dice: Dice,
}

impl<'a> Caller<'a> {
    /// Client number `client` of member `member`.
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

    /// The moment, in microseconds of the run's clock.
    pub fn now(&self) -> u64 {
        self.ledger.now()
    }

    /// Asks its member. Nothing is taken down.
    ///
    /// # Errors
    /// No reply, or none in time.
    pub fn call(&self, call: &Call) -> Result<Reply, Miss> {
        let Some(process) = self.fleet.process(self.member) else {
            return Err(Miss::Failed("the member is down".to_owned()));
        };
        if process.is_over() {
            return Err(Miss::Failed("the member has ended".to_owned()));
        }
        let limit = self.fleet.setup().deadline + call.waits() + GRACE;
        let order = Order::Call(Box::new(call.clone()));
        match process.ask(&order).recv_timeout(limit) {
            Ok(Answer::Came(reply)) => Ok(*reply),
            Ok(Answer::Refused(why)) => Err(Miss::Failed(why)),
            Ok(Answer::Unknown(why)) => Err(Miss::Unknown(why)),
            Ok(answer) => Err(Miss::Unknown(format!("a node answered {answer:?}"))),
            Err(_) if process.is_over() => Err(Miss::Unknown("the process died".to_owned())),
            Err(_) => Err(Miss::Unknown("no answer in time".to_owned())),
        }
    }

    /// Gives up what is held, or will be, under a slot: nobody waits for the answer.
    pub fn forget(&self, slot: String) {
        if let Some(process) = self.fleet.process(self.member) {
            drop(process.ask(&Order::Call(Box::new(Call::Forget { slot }))));
        }
    }

    /// One operation: takes down the call, carries out `work`, takes down what came of it.
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

    /// The same, of a kind that shows by what came of it.
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

    /// Carries out `work` as one operation in the report, and says when. Its call and outcome are the workload's to take
    /// down: for what is judged otherwise than it is called.
    pub fn timed<R>(
        &mut self,
        kind: &'static str,
        work: impl FnOnce(&mut Self) -> Result<R, Miss>,
    ) -> Timed<R> {
        self.timed_as(|_| kind, work)
    }

    /// The same, of a kind that shows by what came of it.
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

    /// Asks again and again until there is a reply, for as long as `limit`: for what a run needs before and after
    /// its load. Only for what may be done twice.
    ///
    /// # Errors
    /// The last miss.
    pub fn insist(&mut self, call: &Call, limit: Duration) -> Result<Reply, Miss> {
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

    /// Asks the next member from now on.
    pub fn move_on(&mut self) {
        self.member = (self.member + 1) % self.fleet.members();
    }

    /// Whether a client shall cling to what it holds, until it may believe in it no more: sometimes, and always where its server
    /// stands still, or is cut off from another. A client inside a process that stands still does so itself.
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

    /// Whether there is a process to ask.
    pub fn has_somebody(&self) -> bool {
        self.fleet.being(self.member) != ProcessState::Down
            && self.fleet.process(self.member).is_some_and(|process| !process.is_over())
    }
}
