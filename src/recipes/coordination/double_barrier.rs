//! The double barrier: a number of participants start together and finish together.
//!
//! Each participant has an entry `name/<lease hex>-<number>`, attached to its session. The value of
//! the entry is the number of participants. When there are enough entries, one of the participants
//! writes `name/ready` with the create revision of the last entry of the round. This row decides
//! who has passed: all participants whose entries belong to the round, even if other participants
//! crash afterwards. A round has ended when none of its entries is left, because the participants
//! have left or their sessions have ended. Later entries belong to the next round.
//!
//! ```text
//!   entries  r4 r5 r6                 ready: r6   all three have passed
//!   entries     r5 r6                             the first has left and waits for the others
//!   entries           r9 r10                      the round has ended; these wait for one more
//!   entries           r9 r10 r12      ready: r12  the next round
//! ```
//!
//! The participant that deletes the last entry deletes the ready row as well. If all participants
//! crash inside, the ready row stays, and the next round overwrites it.

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error, Session};
use crate::lock_format::is_entry;
use crate::model::{Command, Compare, IntoBytes, KeyRange, KeyValue, Op, Revision, Txn};
use crate::node::{ReplyTo, SessionEndReason};

use super::cas_branches::{CasBranch, try_branches};
use super::group::key_in;
use super::undo_on_drop::{SessionKey, delete_of};
use super::wait_until::wait_until_local;
use crate::recipes::call::{Call, Until};

/// This name sorts after all entries, whose names are hexadecimal.
const READY: &[u8] = b"ready";

/// A barrier whose participants start together and finish together. Created by
/// [`Session::double_barrier`].
///
/// Once all participants have arrived, all of them pass, even if some crash directly afterwards. If
/// a participant crashes while other participants still wait, another one must arrive in its place.
/// A participant that crashes inside counts as having left. A crash is noticed when the session
/// ends, at the latest one TTL later. A participant that is paused or partitioned for one TTL also
/// counts as having left, and gets an error when it leaves. If work must not continue after that,
/// protect it with a lock.
///
/// The barrier can be used repeatedly. A participant that arrives during a round waits for the next
/// one.
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    session: Session,
    prefix: Bytes,
    participants: usize,
}

/// Error of a double barrier.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum DoubleBarrierError {
    /// The barrier already has its full number of participants, some of which may still be inside.
    /// A crashed participant counts until its session has ended. This participant has left again.
    #[error("barrier not entered: there are already {participants} participants")]
    Full {
        /// Number of participants.
        participants: usize,
    },
    /// Other participants use this barrier with another number of participants. This participant
    /// has left again.
    #[error("barrier not entered: other participants use it for {stored} participants")]
    SizeMismatch {
        /// The number of participants that is stored in the barrier's keys.
        stored: String,
    },
    /// The key of this participant was deleted by another client. For the other participants, it
    /// has left.
    #[error("not inside the barrier any more: the participant's key was deleted by another client")]
    KeyDeleted,
    /// Error of the store, or the session has ended.
    #[error(transparent)]
    Store(#[from] Error),
}

impl DoubleBarrierError {
    /// Returns whether this participant was counted, so that the other participants may have
    /// started. For an error of [`BarrierParticipant::leave`]: whether that call has left the
    /// barrier.
    pub fn effect(&self) -> Effect {
        match self {
            DoubleBarrierError::Full { .. } | DoubleBarrierError::SizeMismatch { .. } => {
                Effect::NotApplied
            }
            DoubleBarrierError::KeyDeleted => Effect::Unknown,
            DoubleBarrierError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention, for example because
    /// there were enough participants already or the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            DoubleBarrierError::Full { .. } => true,
            DoubleBarrierError::Store(error) => error.is_transient(),
            DoubleBarrierError::SizeMismatch { .. } | DoubleBarrierError::KeyDeleted => false,
        }
    }
}

impl Session {
    /// Returns the double barrier with this name for `participants` participants, including this
    /// one. All participants must use the same number. The barrier uses the keys below `name/`. Do
    /// not put other keys there.
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
    pub fn double_barrier(&self, name: impl IntoBytes, participants: usize) -> DoubleBarrier {
        let prefix = [&name.into_bytes()[..], b"/"].concat().into();
        DoubleBarrier { session: self.clone(), prefix, participants }
    }
}

impl DoubleBarrier {
    /// Arrives at the barrier and waits until all participants have arrived. Waits without limit
    /// unless a deadline is set. Dropping the future leaves the barrier.
    ///
    /// A round costs two commits for each participant, one to arrive and one to leave, and one more
    /// commit to start the round.
    ///
    /// # Errors
    /// See [`DoubleBarrierError`]. After any error this participant leaves again. If the effect of
    /// the error is [unknown](crate::Effect::Unknown), the other participants may have started and
    /// may have counted this participant.
    pub fn enter(&self) -> Call<'static, BarrierParticipant, DoubleBarrierError> {
        let barrier = self.clone();
        let client = barrier.session.client();
        Call::without_deadline(&client.clone(), move |until| async move {
            let entry = barrier.come(&until).await?;
            let session = entry.session().clone();
            let passing = barrier.pass(&client, &entry, &until);
            let passed = tokio::select! {
                biased;
                passed = passing => passed.map_err(after_entry),
                end = session.ended() => {
                    Err(after_entry(Error::ended(end, session.shared()).into()))
                }
            };
            match passed {
                Ok(round) => {
                    Ok(BarrierParticipant { client, entry, prefix: barrier.prefix, round })
                }
                Err(error) => {
                    if matches!(error, DoubleBarrierError::Full { .. }) {
                        // Leave first, so that a retry does not meet its own entry.
                        entry.leave(&until).await?;
                    }
                    Err(error)
                }
            }
        })
    }

    /// Waits until all participants have arrived, then leaves without waiting for the other
    /// participants to leave. Use this method as a cyclic barrier. Waits without limit unless a
    /// deadline is set. Dropping the future leaves the barrier.
    ///
    /// # Errors
    /// See [`DoubleBarrierError`]. If the effect of the error is [unknown](crate::Effect::Unknown),
    /// all participants may have arrived.
    pub fn arrive_and_wait(&self) -> Call<'static, (), DoubleBarrierError> {
        let barrier = self.clone();
        let client = barrier.session.client();
        Call::without_deadline(&client.clone(), move |until| async move {
            let entry = barrier.come(&until).await?;
            let session = entry.session().clone();
            tokio::select! {
                biased;
                passed = barrier.pass(&client, &entry, &until) => passed.map_err(after_entry)?,
                end = session.ended() => {
                    return Err(after_entry(Error::ended(end, session.shared()).into()));
                }
            };
            // Wait until the entry is deleted. Otherwise a participant that arrives again could be
            // counted twice.
            entry.leave(&until).await?;
            Ok(())
        })
    }

    async fn come(&self, until: &Until) -> Result<SessionKey, Error> {
        let value = Bytes::from(self.participants.to_string());
        loop {
            let (session, key) = (&self.session, key_in(&self.prefix, &self.session));
            if let Some(entry) =
                SessionKey::make(session, key, value.clone(), until, deletion).await?
            {
                return Ok(entry);
            }
        }
    }

    /// Waits until the round of this entry has started. Returns the create revision of its last
    /// entry.
    async fn pass(
        &self,
        client: &Client,
        entry: &SessionKey,
        until: &Until,
    ) -> Result<Revision, DoubleBarrierError> {
        let (prefix, ready) = (&self.prefix, ready_of(&self.prefix));
        loop {
            let whole = KeyRange::prefix(prefix.clone());
            let opening = wait_until_local(client, whole, until, |rows| {
                let round = Round::read(rows, prefix)?;
                round.evaluate(entry.since(), self.participants)
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
            // If another participant has written the row first, the round has started as well.
            match try_branches(client, vec![CasBranch { when, then }], until).await {
                Err(error) if error.is_transient() && !until.is_over() => until.pause().await,
                result => drop(result?),
            }
        }
    }
}

/// Participation in a [`DoubleBarrier`]. Dropping the value leaves in the background.
/// [`BarrierParticipant::leave`] also waits until the other participants have left.
#[derive(Debug)]
#[must_use = "the barrier is left when this is dropped"]
pub struct BarrierParticipant {
    client: Client,
    entry: SessionKey,
    prefix: Bytes,
    /// Create revision of the last entry of this round.
    round: Revision,
}

impl BarrierParticipant {
    /// Returns the session of the participant. When the session ends, the participant has left.
    pub fn session(&self) -> &Session {
        self.entry.session()
    }

    /// Returns the create revision of the last entry of this round. All participants inside have
    /// the same value. The value increases from round to round.
    pub fn round(&self) -> Revision {
        self.round
    }

    /// Leaves, and waits until all other participants have left or crashed. Waits without limit
    /// unless a deadline is set. This participant leaves in any case, even if the future is
    /// dropped.
    ///
    /// # Errors
    /// - [`DoubleBarrierError::KeyDeleted`], or [`Error::SessionEnded`] inside
    ///   [`DoubleBarrierError::Store`]: this participant had already left, and the call did not
    ///   wait for the other participants.
    /// - [`Error::Deadline`] inside [`DoubleBarrierError::Store`]: other participants may still be
    ///   inside. With [`Effect::Applied`](crate::Effect::Applied) this participant has left.
    pub fn leave(self) -> Call<'static, (), DoubleBarrierError> {
        let Self { client, entry, prefix, round } = self;
        Call::without_deadline(&client.clone(), move |until| async move {
            let session = entry.session().clone();
            if !entry.leave(&until).await? {
                return Err(has_left(&session));
            }
            let whole = KeyRange::prefix(prefix.clone());
            let is_empty = wait_until_local(&client, whole, &until, |rows| {
                let now = Round::read(rows, &prefix)?;
                let over = now.participants.iter().all(|(since, _)| *since > round);
                Ok::<_, DoubleBarrierError>(
                    over.then(|| now.participants.is_empty() && now.ready.get() > 0),
                )
            });
            if is_empty.await.map_err(after_leaving)? {
                // The last participant inside has crashed.
                client
                    .shared
                    .propose_until_applied(Command::Txn(tidying(&prefix)), ReplyTo::Discard);
            }
            Ok(())
        })
    }
}

/// Converts an error for a participant whose entry exists: until the entry is deleted, the other
/// participants may count it.
fn after_entry(error: DoubleBarrierError) -> DoubleBarrierError {
    match error {
        DoubleBarrierError::Store(error) => error.after_partial_change().into(),
        error => error,
    }
}

/// Converts an error for a participant that has left but does not know whether the other
/// participants have left.
fn after_leaving(error: DoubleBarrierError) -> DoubleBarrierError {
    let effect = Effect::Applied;
    match error {
        DoubleBarrierError::Store(Error::Deadline { .. }) => Error::Deadline { effect }.into(),
        DoubleBarrierError::Store(Error::Stopped { reason, .. }) => {
            Error::Stopped { reason, effect }.into()
        }
        error => after_entry(error),
    }
}

/// Returns why the key of a participant is gone.
fn has_left(session: &Session) -> DoubleBarrierError {
    // This node may have applied the end of the lease before it was notified of the end of the
    // session.
    let lease = session.shared().reader.lease_head(session.lease());
    match session.end().or_else(|| lease.is_none().then_some(SessionEndReason::LeaseEnded)) {
        Some(end) => Error::ended(end, session.shared()).into(),
        None => DoubleBarrierError::KeyDeleted,
    }
}

/// The rows of the barrier.
#[derive(PartialEq, Eq, Debug)]
struct Round {
    /// Revision of the ready row, or 0 if there is none.
    ready: Revision,
    /// Last entry of the most recent round.
    last: Revision,
    /// All entries in order, with their values.
    participants: Vec<(Revision, Bytes)>,
}

/// The next step for an entry.
#[derive(PartialEq, Eq, Debug)]
enum ArrivalVerdict {
    /// The round of the entry has started. Contains the last entry of that round.
    Passed(Revision),
    /// A round can start.
    Opens(Opening),
}

/// The start of a round.
#[derive(PartialEq, Eq, Debug)]
struct Opening {
    /// Revision of the ready row of the previous round.
    ready: Revision,
    /// Last entry of the previous round.
    last_before: Revision,
    /// Last entry of this round.
    last: Revision,
}

impl Round {
    fn read(rows: &[KeyValue], prefix: &Bytes) -> Result<Round, Error> {
        let mut round = Round { ready: Revision(0), last: Revision(0), participants: Vec::new() };
        let ready = ready_of(prefix);
        for row in rows {
            if row.key == ready {
                round.ready = row.mod_revision;
                // Ignore a ready row that was not written by Bowline. The next round overwrites it.
                let text = std::str::from_utf8(&row.value).unwrap_or_default();
                round.last = Revision(text.parse().unwrap_or(0));
            } else if is_entry(row, prefix) {
                round.participants.push((row.create_revision, row.value.clone()));
            }
        }
        round.participants.sort();
        Ok(round)
    }

    /// Returns the next step for the entry created at `mine`, or `None` if it must wait.
    fn evaluate(
        &self,
        mine: Revision,
        participants: usize,
    ) -> Result<Option<ArrivalVerdict>, DoubleBarrierError> {
        if !self.participants.iter().any(|(since, _)| *since == mine) {
            return Err(DoubleBarrierError::KeyDeleted);
        }
        if mine <= self.last {
            return Ok(Some(ArrivalVerdict::Passed(self.last)));
        }
        let (_, first_count) = &self.participants[0];
        if *first_count != participants.to_string().as_bytes() {
            let stored = String::from_utf8_lossy(first_count).into_owned();
            return Err(DoubleBarrierError::SizeMismatch { stored });
        }
        // An entry with a different number of participants is not counted. Its participant is about
        // to leave.
        let counted = || self.participants.iter().filter(|(_, other)| other == first_count);
        if counted().filter(|(since, _)| *since < mine).count() >= participants {
            return Err(DoubleBarrierError::Full { participants });
        }
        // Every entry of the previous round has a lower revision than the first entry of this one.
        let is_over = self.participants[0].0 > self.last;
        let enough = participants - usize::from(mutant!(B15) && participants > 1);
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

/// Returns the command that deletes an entry, and the ready row after the last one.
fn deletion(key: &Bytes, since: Revision) -> Command {
    let slash = key.iter().rposition(|byte| *byte == b'/').expect("an entry is below a prefix");
    let prefix = key.slice(..=slash);
    let behind: Bytes = [&key[..], b"\0"].concat().into();
    let Command::Txn(mut txn) = delete_of(key, since) else {
        unreachable!("delete_of returns a transaction")
    };
    let is_last = [
        Compare::missing(KeyRange::between(prefix.clone(), key.clone())),
        Compare::missing(KeyRange::between(behind, ready_of(&prefix))),
    ];
    txn.success.push(Op::Txn(Txn::if_all(is_last, [Op::delete(ready_of(&prefix))])));
    Command::Txn(txn)
}

/// Returns the transaction that deletes the ready row if there are no entries.
fn tidying(prefix: &Bytes) -> Txn {
    Txn::if_all([Compare::missing(places_of(prefix))], [Op::delete(ready_of(prefix))])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a round from its last entry and its entries.
    fn round(last: u64, participants: &[u64]) -> Round {
        let place = |since: &u64| (Revision(*since), Bytes::from_static(b"3"));
        let ready = Revision(if last == 0 { 0 } else { last + 1 });
        Round {
            ready,
            last: Revision(last),
            participants: participants.iter().map(place).collect(),
        }
    }

    fn opens(ready: u64, last_before: u64, last: u64) -> Option<ArrivalVerdict> {
        let [ready, last_before, last] = [ready, last_before, last].map(Revision);
        Some(ArrivalVerdict::Opens(Opening { ready, last_before, last }))
    }

    #[test]
    fn participant_passes_waits_or_is_excess_by_its_position() {
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
            (
                "participant that lost its key gets an error",
                7,
                &[5],
                4,
                Err(DoubleBarrierError::KeyDeleted),
            ),
        ];
        for (name, last, participants, mine, verdict) in cases {
            assert_eq!(round(last, participants).evaluate(Revision(mine), 3), verdict, "{name}");
        }
    }

    #[test]
    fn first_participant_sets_the_barrier_size() {
        let stored = Err(DoubleBarrierError::SizeMismatch { stored: "3".to_owned() });
        assert_eq!(round(0, &[4, 5]).evaluate(Revision(5), 2), stored);
        assert_eq!(round(7, &[5, 9]).evaluate(Revision(9), 4), stored);
    }

    #[test]
    fn leaving_participant_with_another_size_is_ignored() {
        let mut three = round(0, &[4, 5, 7, 9]);
        three.participants[1].1 = Bytes::from_static(b"2");
        assert_eq!(three.evaluate(Revision(9), 3), Ok(opens(0, 0, 9)), "it is not one too many");
        assert_eq!(three.evaluate(Revision(7), 3), Ok(opens(0, 0, 9)));
        three.participants.pop();
        assert_eq!(three.evaluate(Revision(7), 3), Ok(None), "one is missing");
    }

    #[test]
    fn barrier_of_size_zero_is_full() {
        let alone =
            Round { participants: vec![(Revision(4), Bytes::from_static(b"0"))], ..round(0, &[]) };
        let full = Err(DoubleBarrierError::Full { participants: 0 });
        assert_eq!(alone.evaluate(Revision(4), 0), full);
    }
}
