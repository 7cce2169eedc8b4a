//! The lines that tasks of this node stand in: whose turn it is, as this node's replica sees it.
//!
//! A place in a line is a key: a direct child of the lock's prefix that is bound to a lease. Other keys
//! below the prefix are no places. The line is read from the replica once, when the first of this
//! node's places in it is known, and follows the applied changes from there, so the head is known in
//! logarithmic time however long the line is.
//!
//! Everything that moves a place runs on the driver's thread (the outcome of its entering, applied
//! changes, ticks), except giving up, which any thread may do at any time; a place's phase is changed
//! under its own lock, and whoever ends it deletes the key.
//!
//! ```text
//!   Entering ──▶ Waiting ──▶ Held ──▶ Gone          the key is deleted by whoever makes it Gone,
//!       └───────────┴───────────────────▲           or, while Entering, when the outcome is known
//! ```

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use tokio::sync::watch;

use crate::api::Error;
use crate::machine::Change;
use crate::model::{
    Command, Compare, EventKind, KeyRange, KeyValue, Moment, Op, Put, PutLease, PutValue, Range,
    Refusal, Reply, Revision, Txn, TxnReply,
};
use crate::node::{
    CallError, CallResult, Follower, ReplyTo, SessionEnd, SessionState, Shared, StopReason,
};

/// Why something held, or waited for, is held or waited for no more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The session has ended.
    #[error("the session has ended: {0}")]
    SessionEnded(SessionEnd),
    /// Its key was deleted by somebody else.
    #[error("its key was deleted by somebody else")]
    KeyDeleted,
    /// It was given up here.
    #[error("it was released")]
    Released,
    /// The deadline of the wait has passed.
    #[error("the deadline of the wait has passed")]
    Deadline,
    /// The key could not be put there.
    #[error("its key could not be made: {0}")]
    NotEntered(Error),
    /// The node has stopped.
    #[error("the node has stopped: {0}")]
    NodeStopped(StopReason),
}

/// Where a wish for a lock stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its key is proposed, the outcome is not known.
    Entering,
    /// Its key is there; others are before it.
    Waiting {
        /// The create revision of its key.
        since: Revision,
    },
    /// Nobody is before it.
    Held {
        /// The create revision of its key.
        since: Revision,
        /// The revision that this replica had applied when that was found.
        granted: Revision,
    },
    /// It is over.
    Gone(Loss),
}

/// One wish of one task.
#[derive(Debug)]
pub(crate) struct Place {
    prefix: Bytes,
    /// Its key.
    pub(crate) key: Bytes,
    /// The session that it lives with.
    pub(crate) session: Arc<SessionState>,
    deadline: Option<Moment>,
    phase: watch::Sender<Phase>,
    /// Whether the outcome of its entering is known.
    has_entered: AtomicBool,
}

impl Place {
    /// Where it stands, now and later.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Why it is over, if it is: a session that has ended has taken it along.
    pub(crate) fn loss(&self, now: Moment) -> Option<Loss> {
        let ended = self.session.end(now).map(Loss::SessionEnded);
        match &*self.phase.borrow() {
            // The end of the session has deleted the key.
            Phase::Gone(Loss::KeyDeleted) if ended.is_some() => ended,
            Phase::Gone(loss) => Some(loss.clone()),
            Phase::Entering | Phase::Waiting { .. } | Phase::Held { .. } => ended,
        }
    }

    /// Moves on, unless it is over. Answers with the phase before.
    fn advance(&self, to: impl FnOnce(&Phase) -> Option<Phase>) -> Option<Phase> {
        let mut before = None;
        self.phase.send_if_modified(|phase| {
            if matches!(phase, Phase::Gone(_)) {
                return false;
            }
            match to(phase) {
                Some(next) => {
                    before = Some(std::mem::replace(phase, next));
                    true
                }
                None => false,
            }
        });
        before
    }
}

/// All lines that tasks of this node stand in.
pub(crate) struct Lines {
    shared: Weak<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By prefix.
    lines: BTreeMap<Bytes, Line>,
    deadlines: BTreeSet<(Moment, Bytes)>,
    /// Makes keys unique.
    counter: u64,
}

#[derive(Default)]
struct Line {
    /// Everybody's places, in order; `None` until the outcome of the first local entering is known.
    order: Option<BTreeSet<(Revision, Bytes)>>,
    /// This node's places, by key, until their keys are known to be gone.
    local: BTreeMap<Bytes, Arc<Place>>,
}

impl Lines {
    /// The lines of a node; from the first use on they follow its replica.
    pub(crate) fn of(shared: &Arc<Shared>) -> Arc<Lines> {
        let follower: Arc<dyn Follower> = Arc::clone(shared.follower.get_or_init(|| {
            Arc::new(Lines { shared: Arc::downgrade(shared), state: Mutex::default() })
        }));
        let any: Arc<dyn Any + Send + Sync> = follower;
        any.downcast().expect("the lines are all that follows a node's replica")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps into the line of `name` (without a slash at its end), with a key of `value`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        name: &Bytes,
        value: Bytes,
        session: &Arc<SessionState>,
        deadline: Option<Moment>,
    ) -> Arc<Place> {
        let prefix: Bytes = [&name[..], b"/"].concat().into();
        let place = {
            let mut state = self.lock();
            let State { lines, deadlines, counter } = &mut *state;
            let line = lines.entry(prefix.clone()).or_default();
            // etcd's own name for the first wish of a session, and one that cannot collide with it for
            // the next. A name is free again only when its key is known to be gone.
            let plain: Bytes = [&prefix[..], session.lease.to_string().as_bytes()].concat().into();
            let key = if line.local.contains_key(&plain) {
                *counter += 1;
                [&plain[..], format!(".{counter}").as_bytes()].concat().into()
            } else {
                plain
            };
            let place = Arc::new(Place {
                prefix,
                key: key.clone(),
                session: Arc::clone(session),
                deadline,
                phase: watch::Sender::new(Phase::Entering),
                has_entered: AtomicBool::new(false),
            });
            line.local.insert(key.clone(), Arc::clone(&place));
            deadlines.extend(deadline.map(|deadline| (deadline, key)));
            place
        };
        let Some(shared) = self.shared.upgrade() else {
            place.advance(|_| Some(Phase::Gone(Loss::NodeStopped(StopReason::Shutdown))));
            return place;
        };
        let put = Put {
            key: place.key.clone(),
            value: PutValue::Set(value),
            lease: PutLease::Attach(session.lease),
            prev_kv: false,
        };
        let command = Command::Txn(Txn {
            compares: vec![Compare::missing(place.key.clone())],
            success: vec![Op::Put(put)],
            failure: Vec::new(),
        });
        let (lines, entering) = (Arc::clone(self), Arc::clone(&place));
        let reply = ReplyTo::Call(Box::new(move |outcome| lines.entered(&entering, outcome)));
        if let Err(error) = shared.insist_admitted(command, reply) {
            self.not_entered(&place, Loss::NotEntered(error.into()));
        }
        place
    }

    /// Gives a place up, whatever its phase. `reply` hears of the deletion of its key.
    pub(crate) fn leave(&self, place: &Arc<Place>, why: Loss, reply: ReplyTo<Reply>) -> bool {
        match place.advance(|_| Some(Phase::Gone(why))) {
            Some(Phase::Waiting { since } | Phase::Held { since, .. }) => {
                self.delete(place, since, reply);
                true
            }
            // Its key is deleted when it is known whether there is one.
            Some(Phase::Entering) => true,
            Some(Phase::Gone(_)) | None => false,
        }
    }

    /// On the driver's thread: the outcome of an entering is applied here.
    fn entered(&self, place: &Arc<Place>, outcome: CallResult<Reply>) {
        let Some(shared) = self.shared.upgrade() else { return };
        place.has_entered.store(true, Ordering::Relaxed);
        match outcome {
            Ok(Reply::Txn(reply)) if reply.succeeded => {
                let since = reply.revision;
                let mut state = self.lock();
                let Some(line) = state.lines.get_mut(&place.prefix) else { return };
                let order = line.order.get_or_insert_with(|| read_order(&shared, &place.prefix));
                let mine = (since, place.key.clone());
                if !order.contains(&mine) {
                    // Deleted by somebody else already, in the same turn.
                    place.advance(|_| Some(Phase::Gone(Loss::KeyDeleted)));
                    state.forget(place);
                    return;
                }
                // One step from Entering to Held, where nobody is before: who only tries must not see
                // itself waiting.
                let is_head = order.first() == Some(&mine);
                let turn = is_head && place.session.end(shared.now()).is_none();
                let granted = shared.reader.revision();
                let phase = match turn {
                    true => Phase::Held { since, granted },
                    false => Phase::Waiting { since },
                };
                if place.advance(|_| Some(phase)).is_none() {
                    drop(state);
                    self.delete(place, since, ReplyTo::Nobody);
                }
            }
            // It was applied while this node was cut off, and a later state says what came of it.
            Ok(Reply::AppliedBefore { revision }) => {
                let (row, _) = shared.reader.get(&place.key);
                let mine = |row: &KeyValue| {
                    row.create_revision == revision && row.lease == Some(place.session.lease)
                };
                match row.is_some_and(|row| mine(&row)) {
                    true => {
                        let (succeeded, results) = (true, Vec::new());
                        let reply = TxnReply { revision, succeeded, results };
                        self.entered(place, Ok(Reply::Txn(reply)));
                    }
                    false => self.not_entered(place, Loss::KeyDeleted),
                }
            }
            // The key was there, and not by this wish.
            Ok(_) => self.not_entered(place, Loss::NotEntered(Error::Busy)),
            Err(CallError::Refused(Refusal::LeaseNotFound(_))) => {
                self.not_entered(place, Loss::SessionEnded(SessionEnd::LeaseEnded));
            }
            Err(error) => self.not_entered(place, Loss::NotEntered(error.into())),
        }
    }

    /// There is no key of this place.
    fn not_entered(&self, place: &Arc<Place>, why: Loss) {
        place.advance(|_| Some(Phase::Gone(why)));
        self.lock().forget(place);
    }

    /// Deletes the key of a place, for as long as it takes.
    fn delete(&self, place: &Place, since: Revision, reply: ReplyTo<Reply>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let command = Command::Txn(Txn {
            compares: vec![Compare::create_revision(place.key.clone()).eq(since)],
            success: vec![Op::delete(place.key.clone())],
            failure: Vec::new(),
        });
        shared.insist(command, reply);
    }
}

impl State {
    /// A place has no key, or none any more.
    fn forget(&mut self, place: &Place) {
        if let Some(deadline) = place.deadline {
            self.deadlines.remove(&(deadline, place.key.clone()));
        }
        if let Some(line) = self.lines.get_mut(&place.prefix) {
            line.local.remove(&place.key);
            if line.local.is_empty() {
                self.lines.remove(&place.prefix);
            }
        }
    }
}

impl Follower for Lines {
    fn applied(&self, changes: &[Change], _visible: Revision) {
        let mut state = self.lock();
        if state.lines.is_empty() {
            return;
        }
        let Some(shared) = self.shared.upgrade() else { return };
        let mut touched = BTreeSet::new();
        let mut gone = Vec::new();
        for event in changes.iter().flat_map(|change| change.events.iter()) {
            let Some(prefix) = parent(&event.kv.key) else { continue };
            let Some(line) = state.lines.get_mut(prefix) else { continue };
            let Some(order) = &mut line.order else { continue };
            let key = &event.kv.key;
            let before = event.prev.as_ref().map(|prev| (prev.create_revision, key.clone()));
            if let Some(before) = before {
                order.remove(&before);
            }
            match event.kind {
                EventKind::Put if event.kv.lease.is_some() => {
                    order.insert((event.kv.create_revision, key.clone()));
                }
                // Without a lease it is no place any more, no more than without a key.
                EventKind::Put | EventKind::Delete => gone.extend(line.local.get(key).cloned()),
            }
            touched.insert(Bytes::copy_from_slice(prefix));
        }
        for place in gone {
            // The outcome of its entering comes after this, and finds the key gone.
            if matches!(*place.phase.borrow(), Phase::Entering) {
                continue;
            }
            place.advance(|_| Some(Phase::Gone(Loss::KeyDeleted)));
            state.forget(&place);
        }
        for prefix in touched {
            if let Some(line) = state.lines.get(&prefix) {
                grant_head(&shared, line);
            }
        }
    }

    fn installed(&self, _visible: Revision) {
        let mut state = self.lock();
        let Some(shared) = self.shared.upgrade() else { return };
        let mut gone = Vec::new();
        for (prefix, line) in &mut state.lines {
            let Some(order) = &mut line.order else { continue };
            *order = read_order(&shared, prefix);
            gone.extend(
                line.local
                    .values()
                    .filter(|place| {
                        match *place.phase.borrow() {
                            Phase::Waiting { since } | Phase::Held { since, .. } => {
                                !order.contains(&(since, place.key.clone()))
                            }
                            // The outcome of its entering comes after this.
                            Phase::Entering => false,
                            // Its key's deletion may be in what was passed over.
                            Phase::Gone(_) => {
                                place.has_entered.load(Ordering::Relaxed)
                                    && !order.iter().any(|(_, key)| *key == place.key)
                            }
                        }
                    })
                    .cloned(),
            );
        }
        for place in gone {
            place.advance(|_| Some(Phase::Gone(Loss::KeyDeleted)));
            state.forget(&place);
        }
        for line in state.lines.values() {
            grant_head(&shared, line);
        }
    }

    fn tick(&self, now: Moment) {
        let mut late = Vec::new();
        {
            let mut state = self.lock();
            while let Some((deadline, _)) = state.deadlines.first() {
                if *deadline > now {
                    break;
                }
                let (_, key) = state.deadlines.pop_first().expect("it was just looked at");
                let prefix = parent(&key).map(Bytes::copy_from_slice);
                let line = prefix.and_then(|prefix| state.lines.get(&prefix));
                late.extend(line.and_then(|line| line.local.get(&key)).cloned());
            }
        }
        for place in late {
            // Who holds has got what it waited for.
            let waited = place.advance(|phase| {
                (!matches!(phase, Phase::Held { .. })).then_some(Phase::Gone(Loss::Deadline))
            });
            if let Some(Phase::Waiting { since }) = waited {
                self.delete(&place, since, ReplyTo::Nobody);
            }
        }
    }

    fn stopped(&self, reason: &StopReason) {
        let lines = std::mem::take(&mut self.lock().lines);
        for place in lines.into_values().flat_map(|line| line.local.into_values()) {
            place.advance(|_| Some(Phase::Gone(Loss::NodeStopped(reason.clone()))));
        }
    }
}

/// If the head of a line is a waiting place of this node: it is its turn.
fn grant_head(shared: &Shared, line: &Line) {
    let Some((_, key)) = line.order.as_ref().and_then(BTreeSet::first) else { return };
    let Some(place) = line.local.get(key) else { return };
    // A grant is delivered only while the session is believed in.
    if place.session.end(shared.now()).is_some() {
        return;
    }
    let granted = shared.reader.revision();
    place.advance(|phase| match phase {
        Phase::Waiting { since } => Some(Phase::Held { since: *since, granted }),
        _ => None,
    });
}

/// The prefix that a key is a direct child of, with its slash.
fn parent(key: &[u8]) -> Option<&[u8]> {
    key.iter().rposition(|byte| *byte == b'/').map(|slash| &key[..=slash])
}

/// Whether a row below a lock's prefix is a place in its line.
pub(crate) fn is_place(row: &KeyValue, prefix: &[u8]) -> bool {
    row.lease.is_some() && parent(&row.key) == Some(prefix)
}

/// The line as the replica has it.
fn read_order(shared: &Shared, prefix: &Bytes) -> BTreeSet<(Revision, Bytes)> {
    let mut range = Range::new(KeyRange::prefix(prefix.clone()));
    range.keys_only = true;
    let rows = shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
    rows.into_iter()
        .filter(|row| is_place(row, prefix))
        .map(|row| (row.create_revision, row.key))
        .collect()
}
