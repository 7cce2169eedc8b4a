//! The semaphore: so many permits, given out in the order in which they were asked for.

use std::panic::Location;
use std::sync::Arc;

use bytes::Bytes;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{
    Command, Compare, CompareOp, CompareTarget, KeyRange, KeyValue, Op, Put, PutLease, PutValue,
    Txn,
};
use crate::mutant::{self, Mutant};

use super::call::{Call, Until};
use super::error::LockError;
use super::guard::guard;
use super::guard_txn::GuardError;
use super::line::{is_place, lock_of, prefix_of};
use super::lock_call::LockCall;
use super::rule::{LockKind, Rule};
use super::stance::Stance;
use super::token::Token;
use super::view::{self, LockEntry};

/// The most rows that one entry of a resize rewrites.
const ROWS_MAX: usize = 100;

/// The most slots that one entry claims.
const SLOTS_MAX: usize = 50;

/// A number of permits, of which each holder has some. Made by [`Session::semaphore`].
///
/// Strictly first come, first served: who asks for many is not overtaken by those who ask for few, even
/// while there are enough permits for them. The limit is said by each who asks, and stands in the rows of
/// the line: whoever comes with another than the first in line is refused with
/// [`LimitMismatch`](LockError::LimitMismatch). When nobody holds or waits, nothing is left, and the next
/// one may bring another limit.
///
/// A permit that its holder may forget has an end of its own: `.acquire().max_hold(d)`
/// ([`LockCall::max_hold`]).
///
/// Under a pause or a partition a permit's [`Hold::state`](crate::lock::Hold::state) says "lost" before anybody
/// else has it; after a crash it is free when the session has expired, or as soon as the program is
/// back. What it does not guarantee: that a holder looks. Waiting for permits is no
/// [deadlock](crate::Owner) that anybody is told of: it may be another's permit that comes free first.
#[derive(Clone, Debug)]
pub struct Semaphore {
    session: Session,
    name: Bytes,
    limit: u32,
}

impl Session {
    /// The semaphore of this name, of so many permits. Keys below `name/` are its line, and those below
    /// `name/slot/` its [slots](Permit::slots): nothing else should be put there.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, LockError, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let downloads = session.semaphore("limits/downloads", 3);
    /// let (one, two) = (downloads.acquire().block()?, downloads.acquire_many(2).block()?);
    /// assert_eq!(downloads.available_permits(), 0);
    /// let refused = downloads.try_acquire().block().unwrap_err();
    /// assert!(matches!(refused, LockError::WouldBlock { .. }));
    /// // Which of the three: 0, 1 or 2.
    /// let slot = &one.slots().block()?[0];
    /// assert!(slot.number < 3);
    /// two.release().block()?;
    /// # drop(one);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn semaphore(&self, name: impl Into<Bytes>, limit: u32) -> Semaphore {
        Semaphore { session: self.clone(), name: name.into(), limit }
    }
}

impl Semaphore {
    /// Its name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// How many permits there are, by this handle.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Waits for one permit. Dropping the future leaves the line.
    #[track_caller]
    pub fn acquire(&self) -> LockCall<Permit> {
        self.call(1, Location::caller())
    }

    /// Waits for so many permits at once: all or none. Dropping the future leaves the line.
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] if there will never be so many.
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> LockCall<Permit> {
        self.call(permits, Location::caller())
    }

    /// Takes one permit if there is one for which nobody waits. Waits for the cluster's answer, and no
    /// longer than any call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] names who is first in line.
    #[track_caller]
    pub fn try_acquire(&self) -> LockCall<Permit> {
        self.call(1, Location::caller()).only_try()
    }

    /// As [`Semaphore::try_acquire`], for so many at once: all or none.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`], [`LockError::TooManyPermits`].
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> LockCall<Permit> {
        self.call(permits, Location::caller()).only_try()
    }

    /// How many permits a wish that came now could have without waiting, as this node's replica has it:
    /// what is neither held nor waited for. 0 if the name is in use for something else.
    pub fn available_permits(&self) -> u32 {
        let rows = view::rows(self.session.shared(), &prefix_of(&self.name));
        rows.iter().fold(self.limit, |free, row| match Stance::rule_of(&row.key, &row.value) {
            Rule::Permits { wants, .. } => free.saturating_sub(wants),
            _ => 0,
        })
    }

    /// The line, those who hold first, as this node's replica has it: perhaps not the newest.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the name cannot be a lock's.
    pub fn queue(&self) -> Result<Vec<LockEntry>, Error> {
        view::line_of(self.session.shared(), &self.name)
    }

    /// Changes how many permits there are, for all who hold and wait, and answers with the semaphore of
    /// that size. From then on handles with the old limit are refused, for as long as anybody is in the
    /// line. Permits that are held stay so, also those beyond a smaller limit: then nobody is let in until
    /// enough of them are back. Who waits for more than there will be fails with
    /// [`TooManyPermits`](LockError::TooManyPermits).
    ///
    /// The limit is in each row of the line, and up to 100 rows are rewritten in one entry. In between,
    /// or if this does not come to its end, each wish goes by the least limit of those before it and its
    /// own, so that there are never too many; call it again then.
    ///
    /// # Errors
    /// [`LockError::KindMismatch`] if the name is in use for something else. [`LockError::Store`] if the store could
    /// not, or would not: where the effect is unknown, some rows may have been rewritten, or all of them.
    pub fn resize(&self, limit: u32) -> Call<'static, Semaphore, LockError> {
        let semaphore = Semaphore { limit, ..self.clone() };
        let client = Client::new(Arc::clone(self.session.shared()));
        Call::new(&client.clone(), move |until| async move {
            semaphore.rewrite(&client, &until).await?;
            Ok(semaphore)
        })
    }

    async fn rewrite(&self, client: &Client, until: &Until) -> Result<(), LockError> {
        let prefix = prefix_of(&self.name);
        let rows_max = client.shared.settings.limits.txn_ops_max.saturating_sub(1);
        let mut is_begun = false;
        loop {
            let refused =
                |error: Error| LockError::Store(if is_begun { error.halfway() } else { error });
            let range = client.range(KeyRange::prefix(prefix.clone())).deadline(until.left());
            let mut rows = range.await.map_err(refused)?.kvs;
            rows.retain(|row| is_place(row, &prefix));
            rows.sort_unstable_by_key(|row| row.create_revision);
            let kind = rows.first().map(|row| Stance::rule_in_line(&row.key, &row.value).kind());
            if let Some(stored) = kind.filter(|kind| !matches!(kind, LockKind::Semaphore(_))) {
                return Err(LockError::KindMismatch { stored });
            }
            let resized = rows.iter().filter_map(|row| resized(row, self.limit));
            let success: Vec<Op> = resized.take(rows_max.clamp(1, ROWS_MAX)).collect();
            if success.is_empty() {
                return Ok(());
            }
            if until.is_over() {
                return Err(refused(Error::Deadline { effect: Effect::NotApplied }));
            }
            let txn = Txn { success, ..Txn::default() };
            client.propose(Command::Txn(txn), Some(until.left())).await.map_err(refused)?;
            is_begun = true;
        }
    }

    fn call(&self, wants: u32, caller: &'static Location<'static>) -> LockCall<Permit> {
        let rule = Rule::Permits { limit: self.limit, wants };
        LockCall::new(&self.session, vec![self.name.clone()], rule, caller)
    }
}

/// What gives a row another limit, if it is still as it was; `None` if it has that limit.
fn resized(row: &KeyValue, new: u32) -> Option<Op> {
    let mut stance = Stance::parse(&row.key, &row.value)?;
    match &mut stance.rule {
        Rule::Permits { limit, .. } if *limit != new => *limit = new,
        _ => return None,
    }
    let put = Put {
        key: row.key.clone(),
        value: PutValue::Set(stance.to_value()),
        lease: PutLease::Keep,
        prev_kv: false,
    };
    let compares = vec![Compare::mod_revision(row.key.clone()).eq(row.mod_revision)];
    Some(Op::Txn(Txn { compares, success: vec![Op::Put(put)], failure: Vec::new() }))
}

guard! {
    /// Permits of a semaphore, held. Dropping it gives them back, in the background;
    /// [`Permit::release`] waits for that. Everything else is in [`Hold`](crate::lock::Hold).
    Permit
}

/// One of the numbered places of a semaphore; see [`Permit::slots`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Slot {
    /// From 0 to the limit, exclusively. No other permit has it.
    pub number: u32,
    /// Higher than that of whoever had this slot before.
    pub token: Token,
}

impl Permit {
    /// How many there are.
    pub fn permits(&self) -> u32 {
        match self.rule() {
            Rule::Permits { wants, .. } => wants,
            _ => 0,
        }
    }

    /// Numbers, one for each permit, that no other permit of this semaphore has at the same time, each
    /// with a fencing token of its own: for resources that there are exactly so many of. They are given
    /// back with the permits, in the same entry. Asked again, it gives the same. Costs an entry, which may
    /// have to be repeated while others choose too.
    ///
    /// After a resize to fewer, low numbers may still be taken by permits that were held before: then
    /// this waits for them. After one to more, permits that were taken before it may have any number
    /// below the new limit.
    ///
    /// # Errors
    /// [`GuardError::NotHeld`] if the permits are lost, also while the answer was under way.
    /// [`GuardError::Store`] with a deadline if no
    /// numbers came free in the time of a call, or the cluster has not answered.
    pub async fn slots(&self) -> Result<Vec<Slot>, GuardError> {
        let Rule::Permits { limit, wants } = self.rule() else { return Ok(Vec::new()) };
        let client = self.session().client();
        let until = Until::of_call(&client);
        let below: Bytes = [&lock_of(self.key())[..], b"/slot/"].concat().into();
        let whose = format!("{} {} ", self.key().escape_ascii(), self.since());
        loop {
            let range = client.range(KeyRange::prefix(below.clone())).deadline(until.left());
            let rows = range.await?.kvs;
            let mine: Vec<Slot> = rows
                .iter()
                .filter(|row| row.value.starts_with(whose.as_bytes()))
                .filter_map(|row| slot(row, &below))
                .collect();
            if mine.len() >= wants as usize {
                // While the answer was under way the permits may have been lost: then these numbers are
                // another's by now, or will be.
                if !self.is_held() {
                    return Err(GuardError::NotHeld);
                }
                return Ok(mine);
            }
            let key =
                |number: &u32| Bytes::from([&below[..], number.to_string().as_bytes()].concat());
            let is_taken = |key: &Bytes| rows.iter().any(|row| row.key == *key);
            let free = (0..limit).map(|number| key(&number)).filter(|key| !is_taken(key));
            let due = (wants as usize - mine.len()).min(SLOTS_MAX);
            let free: Vec<Bytes> = free.take(due).collect();
            if free.len() == due {
                // Another task that asks at the same time writes the same: one of them does.
                let stamp = Bytes::from(format!("{whose}{}", mine.len() / SLOTS_MAX));
                let is_first = Compare {
                    range: KeyRange::prefix(below.clone()),
                    target: match rows.is_empty() {
                        true => CompareTarget::Version(0),
                        false => CompareTarget::Value(stamp.clone()),
                    },
                    op: match rows.is_empty() {
                        true => CompareOp::Equal,
                        false => CompareOp::NotEqual,
                    },
                };
                let claim = self.txn().deadline(until.left()).when(is_first);
                let claim = free.into_iter().fold(claim, |txn, key| {
                    let is_free = Some(Compare::missing(key.clone()));
                    let is_free = is_free.filter(|_| !mutant::is(Mutant::B05));
                    txn.when_all(is_free).then_while_held(key, stamp.clone())
                });
                claim.commit().await?;
            } else if !self.is_held() {
                return Err(GuardError::NotHeld);
            } else {
                until.pause().await;
            }
            if until.is_over() {
                return Err(Error::Deadline { effect: Effect::Unknown }.into());
            }
        }
    }
}

fn slot(row: &KeyValue, below: &Bytes) -> Option<Slot> {
    let number = std::str::from_utf8(row.key.strip_prefix(&below[..])?).ok()?.parse().ok()?;
    Some(Slot { number, token: Token { revision: row.mod_revision, handoff: 0 } })
}
