//! The double barrier: a number of participants begin together, and end together.
//!
//! Each participant has a place, `name/<lease hex>-<number>`, bound to its session; its value is the
//! number of participants. When there are enough places, one of those who see it writes `name/ready`,
//! which says up to which place the round goes, by the revision that made it. That row decides: who
//! stands in a place of the round has passed, whatever becomes of the others afterwards. A round is over
//! when none of its places are left, by leaving or by the end of sessions; places that came later are of
//! the next one.
//!
//! ```text
//!   places   r4 r5 r6                 ready: r6   all three have passed
//!   places      r5 r6                             the first has left, and waits for the others
//!   places            r9 r10                      the round is over; these wait for one more
//!   places            r9 r10 r12      ready: r12  the next round
//! ```
//!
//! Whoever deletes the last place deletes that row too. Only if all participants crash inside does it
//! stay, and serves those who come next.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::model::{Command, Compare, KeyRange, KeyValue, Op, Revision, Txn};
use crate::mutant::{self, Mutant};
use crate::node::{ReplyTo, SessionEndReason};

use super::call::{Call, Until};
use super::chain::{Way, try_ways};
use super::deed::{Entry, delete_of};
use super::group::place;
use super::line::is_place;
use super::look::follow_until;

/// Behind all places, whose names are hexadecimal.
const READY: &[u8] = b"ready";

/// Participants that begin together and end together; made by [`Session::double_barrier`].
///
/// Once all have come, all pass, also if some of them crash right after. One that crashes while others
/// still wait for it, before all have come, is missing until somebody comes in its place; one that
/// crashes inside counts as having left. A crash is known when the session has ended, at the latest its
/// time to live later. Who is paused or cut off for that long has left as well, as the others see it, and
/// is told so when it leaves: what must not happen after that belongs under a lock.
///
/// It can be used again and again: who comes while a round is not over waits for the next one.
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    session: Session,
    prefix: Bytes,
    participants: usize,
}

/// Why a double barrier was not passed.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum DoubleBarrierError {
    /// All participants are there already, or still inside, or one that has crashed still counts as such,
    /// until its session has ended. This one has left again.
    #[error("there are {participants} participants already")]
    Full {
        /// How many there may be.
        participants: usize,
    },
    /// Others have come to this barrier with another number of participants. This one leaves again.
    #[error("others wait for {stored} participants here")]
    SizeMismatch {
        /// Their number, as they say it.
        stored: String,
    },
    /// Somebody has deleted the key of this participant: as the others see it, it has left.
    #[error("the participant's key was deleted by somebody else")]
    KeyDeleted,
    /// The store could not, or would not; or the session has ended.
    #[error(transparent)]
    Store(#[from] Error),
}

impl DoubleBarrierError {
    /// Whether this participant was counted, so that the others may have begun; of [leaving](BarrierParticipant::leave), whether it has
    /// left by this call.
    pub fn effect(&self) -> Effect {
        match self {
            DoubleBarrierError::Full { .. } | DoubleBarrierError::SizeMismatch { .. } => {
                Effect::NotApplied
            }
            DoubleBarrierError::KeyDeleted => Effect::Unknown,
            DoubleBarrierError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program: there were enough already, or the
    /// cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            DoubleBarrierError::Full { .. } => true,
            DoubleBarrierError::Store(error) => error.is_transient(),
            DoubleBarrierError::SizeMismatch { .. } | DoubleBarrierError::KeyDeleted => false,
        }
    }
}

impl Session {
    /// The double barrier of this name, for so many participants, of which this is one; all must say the
    /// same number. Keys below `name/` are its own: nothing else should be put there.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let step = session.double_barrier("step", 1);
    /// let inside = step.enter().block()?;
    /// // All have begun.
    /// inside.leave().block()?;
    /// // All have ended.
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn double_barrier(&self, name: impl Into<Bytes>, participants: usize) -> DoubleBarrier {
        let prefix = [&name.into()[..], b"/"].concat().into();
        DoubleBarrier { session: self.clone(), prefix, participants }
    }
}

impl DoubleBarrier {
    /// Comes to the barrier, and waits until all have. Waits without end unless it is given a deadline.
    /// Dropping it leaves the barrier.
    ///
    /// Two commits for each participant, one to come and one to leave, and one for all.
    ///
    /// # Errors
    /// See [`DoubleBarrierError`]: whatever it is, this participant leaves again. After one whose effect is
    /// [unknown](crate::Effect::Unknown) the others may have begun, and have counted it.
    pub fn enter(&self) -> Call<'static, BarrierParticipant, DoubleBarrierError> {
        let barrier = self.clone();
        let client = barrier.client();
        Call::endless(&client.clone(), move |until| async move {
            let entry = barrier.come(&until).await?;
            let session = entry.session().clone();
            let passing = barrier.pass(&client, &entry, &until);
            let passed = tokio::select! {
                biased;
                passed = passing => passed.map_err(perhaps_counted),
                end = session.ended() => {
                    Err(perhaps_counted(Error::ended(end, session.shared()).into()))
                }
            };
            match passed {
                Ok(round) => {
                    Ok(BarrierParticipant { client, entry, prefix: barrier.prefix, round })
                }
                Err(error) => {
                    if matches!(error, DoubleBarrierError::Full { .. }) {
                        // Who tries again must not meet its own place.
                        entry.leave(&until).await?;
                    }
                    Err(error)
                }
            }
        })
    }

    /// Waits until all have come, and goes on at once, without waiting for their end: a cyclic barrier.
    /// Waits without end unless it is given a deadline. Dropping it leaves the barrier.
    ///
    /// # Errors
    /// See [`DoubleBarrierError`]. After one whose effect is [unknown](crate::Effect::Unknown) all may have come.
    pub fn arrive_and_wait(&self) -> Call<'static, (), DoubleBarrierError> {
        let barrier = self.clone();
        let client = barrier.client();
        Call::endless(&client.clone(), move |until| async move {
            let entry = barrier.come(&until).await?;
            let session = entry.session().clone();
            tokio::select! {
                biased;
                passed = barrier.pass(&client, &entry, &until) => passed.map_err(perhaps_counted)?,
                end = session.ended() => {
                    return Err(perhaps_counted(Error::ended(end, session.shared()).into()));
                }
            };
            // Otherwise it could be counted twice when it comes again.
            entry.leave(&until).await?;
            Ok(())
        })
    }

    fn client(&self) -> Client {
        Client::new(Arc::clone(self.session.shared()))
    }

    async fn come(&self, until: &Until) -> Result<Entry, Error> {
        let value = Bytes::from(self.participants.to_string());
        loop {
            let (session, key) = (&self.session, place(&self.prefix, &self.session));
            if let Some(entry) = Entry::make(session, key, value.clone(), until, farewell).await? {
                return Ok(entry);
            }
        }
    }

    /// Waits until the round of this entry has begun. Answers with its last place.
    async fn pass(
        &self,
        client: &Client,
        entry: &Entry,
        until: &Until,
    ) -> Result<Revision, DoubleBarrierError> {
        let (prefix, ready) = (&self.prefix, ready_of(&self.prefix));
        loop {
            let whole = KeyRange::prefix(prefix.clone());
            let opening = follow_until(client, whole, until, |rows| {
                let round = Round::read(rows, prefix)?;
                round.judge(entry.since(), self.participants)
            });
            let opening = match opening.await {
                Err(DoubleBarrierError::KeyDeleted) => return Err(has_left(entry.session())),
                verdict => verdict?,
            };
            let opening = match opening {
                ArrivalVerdict::Passed(round) => return Ok(round),
                ArrivalVerdict::Opens(opening) => opening,
            };
            let when = vec![
                Compare::mod_revision(ready.clone()).eq(opening.ready),
                Compare::create_revision(places_of(prefix)).gt(opening.last_before),
            ];
            let then = vec![Op::put(ready.clone(), opening.last.to_string())];
            // If another one has done it, it is done.
            match try_ways(client, vec![Way { when, then }], until).await {
                Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
                result => drop(result?),
            }
        }
    }
}

/// Being inside a [`DoubleBarrier`]. Dropping it leaves, in the background; [`BarrierParticipant::leave`] waits for
/// the others too.
#[derive(Debug)]
#[must_use = "the barrier is left when this is dropped"]
pub struct BarrierParticipant {
    client: Client,
    entry: Entry,
    prefix: Bytes,
    /// The last place of this round.
    round: Revision,
}

impl BarrierParticipant {
    /// The session that it lives with: when that ends, this has left, as the others see it.
    pub fn session(&self) -> &Session {
        self.entry.session()
    }

    /// The revision that made the last place of this round: the same for all who are inside, and higher
    /// in each round.
    pub fn round(&self) -> Revision {
        self.round
    }

    /// Leaves, and waits until all others have left or crashed. Waits without end unless it is given a
    /// deadline. This one has left in any case, also if the future is dropped.
    ///
    /// # Errors
    /// [`DoubleBarrierError::KeyDeleted`], or [`Error::SessionEnded`] inside it: this one had left
    /// before, as the others see it, and nobody was waited for. [`Error::Deadline`]: others are still
    /// inside, or it is not known whether they are; with [`Effect::Applied`](crate::Effect::Applied) this one has
    /// left.
    pub fn leave(self) -> Call<'static, (), DoubleBarrierError> {
        let Self { client, entry, prefix, round } = self;
        Call::endless(&client.clone(), move |until| async move {
            let session = entry.session().clone();
            if !entry.leave(&until).await? {
                return Err(has_left(&session));
            }
            let whole = KeyRange::prefix(prefix.clone());
            let is_empty = follow_until(&client, whole, &until, |rows| {
                let now = Round::read(rows, &prefix)?;
                let over = now.places.iter().all(|(since, _)| *since > round);
                Ok::<_, DoubleBarrierError>(
                    over.then(|| now.places.is_empty() && now.ready.get() > 0),
                )
            });
            if is_empty.await.map_err(when_left)? {
                // The last one inside has crashed.
                client.shared.insist(Command::Txn(tidying(&prefix)), ReplyTo::Nobody);
            }
            Ok(())
        })
    }
}

/// Why somebody did not pass whose place is there: until that is gone, the others may begin with it.
fn perhaps_counted(error: DoubleBarrierError) -> DoubleBarrierError {
    match error {
        DoubleBarrierError::Store(error) => error.halfway().into(),
        error => error,
    }
}

/// Why somebody who has left does not know that the others have.
fn when_left(error: DoubleBarrierError) -> DoubleBarrierError {
    let effect = Effect::Applied;
    match error {
        DoubleBarrierError::Store(Error::Deadline { .. }) => Error::Deadline { effect }.into(),
        DoubleBarrierError::Store(Error::Stopped { reason, .. }) => {
            Error::Stopped { reason, effect }.into()
        }
        error => perhaps_counted(error),
    }
}

/// Why the key of a participant is gone.
fn has_left(session: &Session) -> DoubleBarrierError {
    // This node may have applied the end of the lease before it has heard of the session's.
    let lease = session.shared().reader.lease_head(session.lease());
    match session.end().or_else(|| lease.is_none().then_some(SessionEndReason::LeaseEnded)) {
        Some(end) => Error::ended(end, session.shared()).into(),
        None => DoubleBarrierError::KeyDeleted,
    }
}

/// What the rows say.
#[derive(PartialEq, Eq, Debug)]
struct Round {
    /// The revision of the row that says which round has begun, 0 if none has.
    ready: Revision,
    /// The last place of the round that has begun last.
    last: Revision,
    /// All places in order, with what they say.
    places: Vec<(Revision, Bytes)>,
}

/// What is to be done about a place.
#[derive(PartialEq, Eq, Debug)]
enum ArrivalVerdict {
    /// Its round has begun; this is the last place of it.
    Passed(Revision),
    /// A round can begin.
    Opens(Opening),
}

/// How a round begins.
#[derive(PartialEq, Eq, Debug)]
struct Opening {
    /// The revision of the row of the round before.
    ready: Revision,
    /// The last place of the round before.
    last_before: Revision,
    /// The last place of this one.
    last: Revision,
}

impl Round {
    fn read(rows: &[KeyValue], prefix: &Bytes) -> Result<Round, Error> {
        let mut round = Round { ready: Revision(0), last: Revision(0), places: Vec::new() };
        let ready = ready_of(prefix);
        for row in rows {
            if row.key == ready {
                round.ready = row.mod_revision;
                // A row that nobody here has written counts as one of no round, and is written over.
                let text = std::str::from_utf8(&row.value).unwrap_or_default();
                round.last = Revision(text.parse().unwrap_or(0));
            } else if is_place(row, prefix) {
                round.places.push((row.create_revision, row.value.clone()));
            }
        }
        round.places.sort();
        Ok(round)
    }

    /// What is to be done about the place that was made at `mine`; nothing yet, if `None`.
    fn judge(
        &self,
        mine: Revision,
        participants: usize,
    ) -> Result<Option<ArrivalVerdict>, DoubleBarrierError> {
        if !self.places.iter().any(|(since, _)| *since == mine) {
            return Err(DoubleBarrierError::KeyDeleted);
        }
        if mine <= self.last {
            return Ok(Some(ArrivalVerdict::Passed(self.last)));
        }
        let (_, said) = &self.places[0];
        if *said != participants.to_string().as_bytes() {
            let stored = String::from_utf8_lossy(said).into_owned();
            return Err(DoubleBarrierError::SizeMismatch { stored });
        }
        // Whoever says another number is about to leave, and counts for nothing.
        let counted = || self.places.iter().filter(|(_, other)| other == said);
        if counted().filter(|(since, _)| *since < mine).count() >= participants {
            return Err(DoubleBarrierError::Full { participants });
        }
        // Every place of the round before has a lower revision than this one's first.
        let is_over = self.places[0].0 > self.last;
        let enough = participants - usize::from(mutant::is(Mutant::B15) && participants > 1);
        let last = counted().nth(enough - 1).map(|(since, _)| *since);
        Ok(last.filter(|_| is_over).map(|last| {
            let (ready, last_before) = (self.ready, self.last);
            ArrivalVerdict::Opens(Opening { ready, last_before, last })
        }))
    }
}

fn ready_of(prefix: &[u8]) -> Bytes {
    [prefix, READY].concat().into()
}

fn places_of(prefix: &Bytes) -> KeyRange {
    KeyRange::between(prefix.clone(), ready_of(prefix))
}

/// Deletes a place, and after the last one everything.
fn farewell(key: &Bytes, since: Revision) -> Command {
    let slash = key.iter().rposition(|byte| *byte == b'/').expect("a place is below a prefix");
    let prefix = key.slice(..=slash);
    let behind: Bytes = [&key[..], b"\0"].concat().into();
    let Command::Txn(mut txn) = delete_of(key, since) else { unreachable!("it is a transaction") };
    txn.success.push(Op::Txn(Txn {
        compares: vec![
            Compare::missing(KeyRange::between(prefix.clone(), key.clone())),
            Compare::missing(KeyRange::between(behind, ready_of(&prefix))),
        ],
        success: vec![Op::delete(ready_of(&prefix))],
        failure: Vec::new(),
    }));
    Command::Txn(txn)
}

/// Deletes what says which round has begun, if nobody is there.
fn tidying(prefix: &Bytes) -> Txn {
    Txn {
        compares: vec![Compare::missing(places_of(prefix))],
        success: vec![Op::delete(ready_of(prefix))],
        failure: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round as `last: places`.
    fn round(last: u64, places: &[u64]) -> Round {
        let place = |since: &u64| (Revision(*since), Bytes::from_static(b"3"));
        let ready = Revision(if last == 0 { 0 } else { last + 1 });
        Round { ready, last: Revision(last), places: places.iter().map(place).collect() }
    }

    fn opens(ready: u64, last_before: u64, last: u64) -> Option<ArrivalVerdict> {
        let [ready, last_before, last] = [ready, last_before, last].map(Revision);
        Some(ArrivalVerdict::Opens(Opening { ready, last_before, last }))
    }

    #[test]
    fn a_place_passes_waits_or_is_one_too_many_by_the_places_before_it() {
        let full = || Err(DoubleBarrierError::Full { participants: 3 });
        let passed = |round| Ok(Some(ArrivalVerdict::Passed(Revision(round))));
        let cases: [(&str, u64, &[u64], u64, Result<_, _>); 13] = [
            ("the first waits", 0, &[4], 4, Ok(None)),
            ("two wait", 0, &[4, 5], 4, Ok(None)),
            ("at the third a round opens", 0, &[4, 5, 7], 5, Ok(opens(0, 0, 7))),
            ("a fourth is one too many", 0, &[4, 5, 7, 8], 8, full()),
            ("and does not keep the others", 0, &[4, 5, 7, 8], 7, Ok(opens(0, 0, 7))),
            ("who is of the round has passed", 7, &[4, 5, 7], 5, passed(7)),
            ("also when others have left", 7, &[5], 5, passed(7)),
            ("a fourth is one too many inside", 7, &[4, 5, 7, 9], 9, full()),
            ("one comes while others leave", 7, &[5, 7, 9], 9, Ok(None)),
            ("and waits for the last of them", 7, &[5, 9, 10], 9, Ok(None)),
            ("and for all of its own round", 7, &[9, 10], 9, Ok(None)),
            ("which opens in its turn", 7, &[9, 10, 12], 12, Ok(opens(8, 7, 12))),
            ("who lost its key is told", 7, &[5], 4, Err(DoubleBarrierError::KeyDeleted)),
        ];
        for (name, last, places, mine, verdict) in cases {
            assert_eq!(round(last, places).judge(Revision(mine), 3), verdict, "{name}");
        }
    }

    #[test]
    fn the_first_place_says_how_many_all_are() {
        let stored = Err(DoubleBarrierError::SizeMismatch { stored: "3".to_owned() });
        assert_eq!(round(0, &[4, 5]).judge(Revision(5), 2), stored);
        assert_eq!(round(7, &[5, 9]).judge(Revision(9), 4), stored);
    }

    #[test]
    fn who_says_another_number_counts_for_nothing_while_it_leaves() {
        let mut three = round(0, &[4, 5, 7, 9]);
        three.places[1].1 = Bytes::from_static(b"2");
        assert_eq!(three.judge(Revision(9), 3), Ok(opens(0, 0, 9)), "it is not one too many");
        assert_eq!(three.judge(Revision(7), 3), Ok(opens(0, 0, 9)));
        three.places.pop();
        assert_eq!(three.judge(Revision(7), 3), Ok(None), "one is missing");
    }

    #[test]
    fn nobody_may_come_to_a_barrier_for_nobody() {
        let alone =
            Round { places: vec![(Revision(4), Bytes::from_static(b"0"))], ..round(0, &[]) };
        let full = Err(DoubleBarrierError::Full { participants: 0 });
        assert_eq!(alone.judge(Revision(4), 0), full);
    }
}
