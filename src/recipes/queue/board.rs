//! [`Board`]: the waiting takers of one handle, and the decision which items to claim for them.
//!
//! Each event (a taker arrives or leaves, the watch has changes, a proposal has its outcome) is
//! recorded as a note. A thread that records a note, usually the driver's, then processes all
//! notes. Only one thread at a time does so: if another thread is already processing, it also
//! processes the new note. So no thread waits for another.
//!
//! ```text
//!   note ──▶ turn:  read the watch ─▶ deliver claimed items ─▶ one proposal, if none is in flight
//! ```

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::oneshot;

use crate::api::{Error, Session, Watch};
use crate::model::{Command, Compare, Op, Put, Range, Rejection, Reply, Revision, Txn, TxnResult};
use crate::node::{CallError, CallResult, Input, ReplyTo, SessionEndReason};
use crate::watch::waking;

use super::dead_letter::DeadLetter;
use super::delivery::{Delivery, DeliveryClaim};
use super::index::{Chooser, ItemIndex};
use super::{ItemId, KeyPart, QueueError, QueueKeys};

/// Maximum number of items that one transaction claims.
const CLAIMS_MAX: usize = 32;

/// How long an item that is meant for another board may stay available before this board claims it.
/// This time is much longer than a transaction and much shorter than the TTL of a session.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The waiting takers of one handle, and the items to claim for them.
pub(super) struct Board {
    session: Session,
    keys: QueueKeys,
    /// Id of this board among the waiting boards.
    idle: Bytes,
    attempts_max: Option<u64>,
    notes: Mutex<Vec<Note>>,
    /// Whether there are notes to process.
    due: AtomicBool,
    state: Mutex<BoardState>,
}

/// The result for a taker. `None` is the result of a `try_take` if no item was available.
pub(super) type Taken = Result<Option<Delivery>, QueueError>;

enum Note {
    Enter {
        ticket: u64,
        only_try: bool,
        reply: oneshot::Sender<Taken>,
    },
    Leave {
        ticket: u64,
    },
    Outcome(ProposedTake, CallResult<Reply>),
    /// The patience timer for this item has fired. The timer matters only if the item is still the
    /// first available one.
    Late(Bytes),
}

/// A proposal in flight.
struct ProposedTake {
    /// Items to be claimed, in the order of the operations.
    claims: Vec<Bytes>,
    /// Revision of the replica at the time of the proposal. Older claims do not belong to this
    /// proposal.
    known: Revision,
    /// Number of operations that precede the claims in the transaction.
    before: usize,
    /// Whether the board may still be in the queue of waiting boards if the proposal fails. This is
    /// false for a proposal that only leaves that queue, so that a rejected proposal is not retried
    /// forever.
    may_stand: bool,
}

#[derive(Default)]
struct BoardState {
    index: ItemIndex,
    watch: Option<Watch>,
    takers: BTreeMap<u64, Taker>,
    /// Whether a proposal is in flight.
    is_proposing: bool,
    /// Claims with unknown outcome, each with a revision older than the claim. The board releases
    /// them before it proposes anything else.
    doubtful: Vec<(Bytes, Revision)>,
    /// Whether the board is in the queue of waiting boards once its proposals are applied.
    stands: bool,
    /// Whether the patience timer is running.
    counting: bool,
    wants_next: bool,
}

struct Taker {
    only_try: bool,
    reply: oneshot::Sender<Taken>,
}

/// Actions that are collected while notes are processed, and run after the lock is released.
#[derive(Default)]
struct Work {
    /// Claimed items without a taker. Dropping this list releases them.
    unwanted: Vec<Delivery>,
    replies: Vec<(oneshot::Sender<Taken>, Taken)>,
    proposal: Option<(Txn, ProposedTake)>,
    /// Start the patience timer for this item.
    count: Option<Bytes>,
}

impl Board {
    pub(super) fn new(session: Session, keys: QueueKeys, attempts_max: Option<u64>) -> Arc<Self> {
        let unique = session.shared().env.entropy.next_u64();
        let idle = format!("{}-{unique:016x}", session.lease()).into();
        let state = BoardState { index: ItemIndex::new(keys.clone()), ..BoardState::default() };
        let (notes, due, state) = (Mutex::default(), AtomicBool::new(false), Mutex::new(state));
        Arc::new(Self { session, keys, idle, attempts_max, notes, due, state })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Adds a taker.
    pub(super) fn enter(self: &Arc<Self>, ticket: u64, only_try: bool) -> oneshot::Receiver<Taken> {
        let (reply, receiver) = oneshot::channel();
        self.note(Note::Enter { ticket, only_try, reply });
        receiver
    }

    /// Removes a taker, with or without an item.
    pub(super) fn leave(self: &Arc<Self>, ticket: u64) {
        self.note(Note::Leave { ticket });
    }

    fn note(self: &Arc<Self>, note: Note) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.turn();
    }

    /// Processes all notes, unless another thread is processing. Afterwards the thread checks again
    /// for notes.
    fn turn(self: &Arc<Self>) {
        self.due.store(true, Ordering::SeqCst);
        while self.due.load(Ordering::SeqCst) {
            let work = {
                let mut state = match self.state.try_lock() {
                    Ok(state) => state,
                    Err(TryLockError::Poisoned(fallen)) => fallen.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                };
                self.due.store(false, Ordering::SeqCst);
                self.next_work(&mut state)
            };
            // Run these actions without the lock, because they may wake or drop tasks and call
            // foreign code.
            drop(work.unwanted);
            for (reply, taken) in work.replies {
                // If the taker is gone, dropping the item releases it.
                waking(|| drop(reply.send(taken)));
            }
            if let Some((txn, proposed)) = work.proposal {
                self.propose(txn, proposed);
            }
            if let Some(head) = work.count {
                self.start_wait_timer(head);
            }
        }
    }

    fn next_work(self: &Arc<Self>, state: &mut BoardState) -> Work {
        let mut work = Work::default();
        let notes = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        for note in notes {
            match note {
                Note::Enter { ticket, only_try, reply } => {
                    state.takers.insert(ticket, Taker { only_try, reply });
                }
                Note::Leave { ticket } => drop(state.takers.remove(&ticket)),
                Note::Late(head) => {
                    state.counting = false;
                    state.wants_next = state.index.head() == Some(&head);
                }
                Note::Outcome(proposed, outcome) => {
                    state.is_proposing = false;
                    self.settle(state, proposed, outcome, &mut work);
                }
            }
        }
        // Without takers, do not read the changes. The watch buffers at most its limit.
        if !state.takers.is_empty()
            && let Err(error) = self.follow(state)
        {
            state.fail_all(&error.into(), &mut work);
        }
        if !state.is_proposing {
            self.decide(state, &mut work);
        }
        work
    }

    /// Reads all available events of the watch. Later events are recorded as a new note.
    fn follow(self: &Arc<Self>, state: &mut BoardState) -> Result<(), Error> {
        let waker = Waker::from(Arc::new(Ring(Arc::downgrade(self))));
        let mut context = Context::from_waker(&waker);
        loop {
            let Some(watch) = &mut state.watch else {
                self.look(state)?;
                continue;
            };
            match Pin::new(watch).poll_next(&mut context) {
                Poll::Ready(Some(Ok(batch))) => {
                    batch.events.iter().for_each(|event| state.index.follow(event));
                }
                Poll::Pending => return Ok(()),
                // The history was compacted, or the node stopped. The next read distinguishes these
                // two cases.
                Poll::Ready(Some(Err(_)) | None) => state.watch = None,
            }
        }
    }

    /// Reads a snapshot and starts a watch after it.
    fn look(&self, state: &mut BoardState) -> Result<(), Error> {
        let shared = self.session.shared();
        if let Some(reason) = shared.stop_reason() {
            return Err(CallError::Stopped { reason, maybe_applied: false }.into());
        }
        let parts = [KeyPart::Item, KeyPart::Delay, KeyPart::Claim, KeyPart::Idle];
        let keys_of = |part| {
            let mut range = Range::new(self.keys.part(part));
            range.keys_only = true;
            Op::Range(range)
        };
        let read = Txn { success: parts.map(keys_of).into(), ..Txn::default() };
        let reply = shared.reader.read_txn(&read)?;
        state.index = ItemIndex::new(self.keys.clone());
        for result in reply.results {
            let TxnResult::Range(range) = result else {
                unreachable!("the transaction has only ranges")
            };
            range.kvs.iter().for_each(|row| state.index.put(row));
        }
        let watch = self.session.client().watch(self.keys.all());
        state.watch = Some(watch.from(reply.revision.next()).begin()?);
        Ok(())
    }

    /// Processes the outcome of a proposal, which this replica has applied.
    fn settle(
        &self,
        state: &mut BoardState,
        proposed: ProposedTake,
        outcome: CallResult<Reply>,
        work: &mut Work,
    ) {
        let reply = match outcome {
            Ok(reply) => reply,
            Err(error) => {
                // No takers are left. If the board's row exists, the next proposal deletes it.
                state.stands = proposed.may_stand;
                let ProposedTake { claims, known, .. } = proposed;
                match error {
                    CallError::Deadline { maybe_applied: true } => {
                        state.doubtful.extend(claims.into_iter().map(|id| (id, known)));
                    }
                    // The node has stopped, so the claims cannot be released from here.
                    _ => state.doubtful.clear(),
                }
                let error = match (self.session.end(), error) {
                    (Some(end), _) => QueueError::ended(end, self.session.shared()),
                    // All keys of the proposal are attached to this lease, so the session has
                    // ended. The notification of its end has not arrived yet.
                    (None, CallError::Rejected(Rejection::LeaseNotFound(_))) => {
                        state.stands = false;
                        QueueError::SessionEnded(SessionEndReason::LeaseEnded)
                    }
                    (None, error) => QueueError::Store(error.into()),
                };
                return state.fail_all(&error, work);
            }
        };
        state.doubtful.clear();
        let revision = reply.revision();
        let results = match reply {
            Reply::Txn(reply) => reply.results,
            // The proposal was applied while this node was disconnected, and its reply was lost.
            // The current rows show the outcome.
            _ => Vec::new(),
        };
        for (n, id) in proposed.claims.into_iter().enumerate() {
            let lost =
                |result: &TxnResult| matches!(result, TxnResult::Txn(claim) if !claim.succeeded);
            if results.get(proposed.before + n).is_some_and(lost) {
                continue;
            }
            let Some(delivery) = self.won(&id, revision) else { continue };
            match state.takers.pop_first() {
                Some((_, taker)) => work.replies.push((taker.reply, Ok(Some(delivery)))),
                None => work.unwanted.push(delivery),
            }
        }
    }

    /// Returns the item if this board created its claim at that revision.
    fn won(&self, id: &Bytes, since: Revision) -> Option<Delivery> {
        let reader = &self.session.shared().reader;
        let (session, keys) = (self.session.clone(), self.keys.clone());
        let claim = DeliveryClaim { session, keys, id: ItemId(id.clone()), since };
        let (row, _) = reader.get(&claim.key());
        row.filter(|row| row.create_revision == since && row.value == self.idle)?;
        let dead_letter =
            self.keys.parent().is_some().then(|| reader.get(&claim.reason_key()).0).flatten();
        let dead_letter = dead_letter.and_then(|row| DeadLetter::parse(&row.value));
        match reader.get(&claim.item_key()).0 {
            Some(item) => Some(Delivery::new(claim, item, dead_letter, self.attempts_max)),
            // The item was deleted by another client despite the claim.
            None => {
                claim.give_back(ReplyTo::Discard);
                None
            }
        }
    }

    /// Decides what to propose, if anything.
    fn decide(&self, state: &mut BoardState, work: &mut Work) {
        if let Some(end) = self.session.end() {
            // The lease of a detached session lives on, and so does the board's row, until the
            // board is dropped.
            state.stands &= end == SessionEndReason::Detached;
            let error = QueueError::ended(end, self.session.shared());
            return state.fail_all(&error, work);
        }
        let known = self.session.shared().reader.revision();
        if !state.doubtful.is_empty() {
            let back = state.doubtful.iter().map(|(id, known)| self.unclaim(id, *known).into());
            let txn = Txn { success: back.collect(), ..Txn::default() };
            let (claims, may_stand) = (Vec::new(), state.stands);
            state.is_proposing = true;
            work.proposal = Some((txn, ProposedTake { claims, known, before: 0, may_stand }));
            return;
        }
        let takers = state.takers.len().min(CLAIMS_MAX);
        let tries = state.takers.values().any(|taker| taker.only_try);
        let wants_next = std::mem::take(&mut state.wants_next) || tries;
        let chooser = Chooser { lease: self.session.lease(), idle: &self.idle, wants_next };
        let chosen = match takers {
            0 => Vec::new(),
            _ => state.index.choose(takers, chooser),
        };
        if chosen.is_empty() {
            let all = std::mem::take(&mut state.takers);
            let (tried, wait) = all.into_iter().partition(|(_, taker)| taker.only_try);
            state.takers = wait;
            let tried: BTreeMap<u64, Taker> = tried;
            work.replies.extend(tried.into_values().map(|taker| (taker.reply, Ok(None))));
        }
        let head = state.index.head();
        if !state.takers.is_empty() && head != chosen.first() && !state.counting {
            work.count = head.cloned();
            state.counting = true;
        }
        let is_exhausted = |id: &Bytes| {
            let attempts = state.index.item(id).map_or(0, |item| item.attempts);
            self.attempts_max.is_some_and(|max| attempts >= max)
        };
        let (spent, claims): (Vec<Bytes>, Vec<Bytes>) = chosen.into_iter().partition(is_exhausted);
        // Move at most one item per proposal, because values may be large.
        let dead_letter_op = spent.first().and_then(|id| self.dead_letter_op(id, &state.index));
        let mut txn = Txn { success: dead_letter_op.into_iter().collect(), ..Txn::default() };
        let before = txn.success.len();
        txn.success.extend(claims.iter().map(|id| Op::Txn(self.claim(id))));
        let waits = state.takers.len() > claims.len();
        let in_line = state.index.is_idle(&self.idle);
        match (waits, state.stands) {
            // Takers wait, and there are no items for them: put the board into the queue of waiting
            // boards.
            (true, false) if claims.is_empty() => txn.success.push(self.stand()),
            // The board claims items, or its row is missing: put the board at the end of that
            // queue.
            (true, true) if !claims.is_empty() || !in_line => txn.success.push(self.stand()),
            (false, true) => txn.success.push(Op::delete(self.idle_key())),
            _ => {}
        }
        if txn.success.is_empty() {
            return;
        }
        let stood = state.stands;
        state.stands = waits && (stood || claims.is_empty());
        state.is_proposing = true;
        let may_stand = !state.takers.is_empty() && (stood || state.stands);
        work.proposal = Some((txn, ProposedTake { claims, known, before, may_stand }));
    }

    fn idle_key(&self) -> Bytes {
        self.keys.key(KeyPart::Idle, &self.idle)
    }

    /// Returns the operation that puts the board at the end of the queue of waiting boards.
    fn stand(&self) -> Op {
        Put::new(self.idle_key(), "").lease(self.session.lease()).into()
    }

    /// Returns the transaction that claims an item if it is available, and counts the attempt.
    fn claim(&self, id: &[u8]) -> Txn {
        let (item, claim) = (self.keys.key(KeyPart::Item, id), self.keys.key(KeyPart::Claim, id));
        let taken = Put::new(claim.clone(), self.idle.clone()).lease(self.session.lease());
        let counted = Put::keeping_value(item.clone()).keep_lease();
        let free = [
            Compare::exists(item),
            Compare::missing(claim),
            Compare::missing(self.keys.key(KeyPart::Delay, id)),
        ];
        let mut compares = Vec::from(free);
        mutant!(B13, drop(compares.remove(1)));
        Txn::if_all(compares, [Op::Put(taken), Op::Put(counted)])
    }

    /// Returns the transaction that releases an item if this board has claimed it after `known`.
    fn unclaim(&self, id: &[u8], known: Revision) -> Txn {
        let claim = self.keys.key(KeyPart::Claim, id);
        let is_mine = Compare::value(claim.clone()).eq(self.idle.clone());
        let is_newer = Compare::create_revision(claim.clone()).gt(known);
        Txn::if_all([is_mine, is_newer], [Op::delete(claim)])
    }

    /// Returns the operation that moves an item to the dead-letter queue.
    fn dead_letter_op(&self, id: &Bytes, index: &ItemIndex) -> Option<Op> {
        let key = self.keys.key(KeyPart::Item, id);
        let known = index.item(id)?;
        let (row, _) = self.session.shared().reader.get(&key);
        let row = row.filter(|row| row.mod_revision == known.modified)?;
        let compares = vec![
            Compare::mod_revision(key.clone()).eq(row.mod_revision),
            Compare::missing(self.keys.key(KeyPart::Claim, id)),
        ];
        let attempts = known.attempts;
        let reason = format!("taken {attempts} times without an acknowledgement");
        let mut success = vec![Op::delete(key)];
        // Also delete the old reason of an item that is moved out of a dead-letter queue.
        if self.keys.parent().is_some() {
            success.push(Op::delete(self.keys.key(KeyPart::Reason, id)));
        }
        success.extend(DeadLetter::new(attempts, reason).put(&self.keys, id, row.value));
        Some(Txn::if_all(compares, success).into())
    }

    fn propose(self: &Arc<Self>, txn: Txn, proposed: ProposedTake) {
        assert!(proposed.claims.len() <= CLAIMS_MAX, "more claims than CLAIMS_MAX");
        let board = Arc::clone(self);
        let reply = ReplyTo::Call(Box::new(move |outcome| {
            board.note(Note::Outcome(proposed, outcome));
        }));
        // The limit of in-flight writes need not be checked, because the board has one proposal at
        // a time.
        self.session.shared().propose_until_applied(Command::Txn(txn), reply);
    }

    fn start_wait_timer(self: &Arc<Self>, head: Bytes) {
        let shared = self.session.shared();
        let board = Arc::downgrade(self);
        let late = move |_| {
            if let Some(board) = board.upgrade() {
                board.note(Note::Late(head));
            }
        };
        let (revision, deadline) = (Revision(u64::MAX), shared.now() + WAIT_MAX);
        // No replica ever reaches this revision, so the wait ends at its deadline or when the node
        // stops.
        let reply = ReplyTo::Call(Box::new(late));
        shared.push(Input::AtLeast { revision, deadline, reply });
    }
}

impl BoardState {
    fn fail_all(&mut self, error: &QueueError, work: &mut Work) {
        let takers = std::mem::take(&mut self.takers).into_values();
        work.replies.extend(takers.map(|taker| (taker.reply, Err(error.clone()))));
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // If the session was lost, the board's row is deleted with the lease. If the session was
        // detached, the row would remain.
        if state.stands && self.session.end() != Some(SessionEndReason::NotRenewed) {
            let leave = Command::Delete(crate::model::Delete::new(self.idle_key()));
            self.session.shared().propose_until_applied(leave, ReplyTo::Discard);
        }
    }
}

/// Processes notes when the watch has events. The watch owns this value, which has only a weak
/// reference to the board.
struct Ring(Weak<Board>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(board) = self.0.upgrade() {
            board.turn();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, Config, KeyRange, Node};

    /// Simulates a request that had to be abandoned, or that this replica has skipped with a
    /// snapshot.
    #[test]
    fn unknown_claim_is_released_and_an_older_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let (kv, session) = (node.client(), node.session().block().unwrap());
        for item in ["older", "lost"] {
            kv.queue("jobs").put(item).block().unwrap();
        }
        let board = Board::new(session.clone(), QueueKeys { name: "jobs".into() }, None);
        let take = |ticket| board.enter(ticket, false).block().unwrap().unwrap().unwrap();
        let older = take(1);
        let rows = kv.range(KeyRange::prefix("jobs/item/")).block().unwrap().kvs;
        let claims: Vec<Bytes> =
            rows.iter().map(|row| row.key.slice("jobs/item/".len()..)).collect();
        let known = session.shared().reader.revision();
        // The claim was created, but the board did not receive the outcome.
        let claim = board.keys.key(KeyPart::Claim, &claims[1]);
        kv.put(claim, board.idle.clone()).lease(session.lease()).block().unwrap();
        let proposed = ProposedTake { claims, known, before: 0, may_stand: false };
        let unknown = Err(CallError::Deadline { maybe_applied: true });
        board.note(Note::Outcome(proposed, unknown));
        let lost = take(2);
        assert_eq!((&older.value()[..], &lost.value()[..]), (&b"older"[..], &b"lost"[..]));
        older.ack().block().unwrap();
        lost.ack().block().unwrap();
    }
}
