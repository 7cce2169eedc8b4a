//! The state that the handles of a node share with its driver.

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tracing::{Instrument as _, Span};

use crate::codec::encoded_len_hint;
use crate::env::Env;
use crate::machine::{Change, Reader, is_wide};
use crate::metrics::{Ending, Meters, RequestKind};
use crate::model::{
    Command, LeaseId, Limits, MembershipRequest, Moment, NodeId, Op, Range, RangeReply, Rejection,
    Reply, Revision, SessionInfo, SnapshotId, Txn, TxnReply,
};
use crate::watch::{Hub, waking};

use super::answer::{CallError, CallResult, ReplyTo, StopReason};
use super::health::{Health, HealthSample};
use super::inbox::{Inbox, Input, Write};
use super::lease_calls::{LeaseRequest, PendingLeaseCall};
use super::quota::growth;
use super::reads::ReadWaiter;
use super::request_trace::{RequestTrace, ending};
use super::session::Claim;
use super::sessions::{SessionOpening, SessionResuming};
use super::settings::Settings;
use super::slow::{Slow, SlowLog};
use super::status::NodeStatus;

/// Receives every change that the node has applied. The lock table implements this trait to follow
/// the replica. The driver calls the methods after a change is visible to readers and before it
/// answers the callers. Implementations must return quickly and must not block.
pub(crate) trait Follower: Any + Send + Sync {
    /// The changes up to `visible` are visible to readers. `came` is the time at which the driver received them.
    fn applied(self: Arc<Self>, changes: &[Change], visible: Revision, came: Moment);

    /// The replica was replaced by a later state. The changes in between are not reported.
    fn installed(self: Arc<Self>, visible: Revision);

    /// Called at every tick.
    fn tick(self: Arc<Self>, now: Moment);

    fn stopped(self: Arc<Self>, reason: &StopReason);
}

/// Counts as one open read until it is dropped.
#[derive(Default)]
pub(crate) struct OpenRead(Arc<AtomicUsize>);

impl Drop for OpenRead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls the hook once: with the outcome, or with `None` if this value is dropped before the
/// outcome is known.
struct Hook<F: FnOnce(Option<&CallResult<Reply>>)>(Option<F>);

impl<F: FnOnce(Option<&CallResult<Reply>>)> Hook<F> {
    fn run(mut self, outcome: &CallResult<Reply>) {
        if let Some(hook) = self.0.take() {
            hook(Some(outcome));
        }
    }
}

impl<F: FnOnce(Option<&CallResult<Reply>>)> Drop for Hook<F> {
    fn drop(&mut self) {
        if let Some(hook) = self.0.take() {
            hook(None);
        }
    }
}

/// Maximum size of a proposed command, in bytes: the encoded size of the largest request that a
/// configuration allows, plus the operations that a lock may add.
pub(super) const COMMAND_BYTES_MAX: usize = 7 << 19;

/// Bytes that each scanned key counts towards the limit of open writes. Keys are scanned by the
/// command itself, or by the check of the caller's rights. The value is the size of a row in an
/// answer, without the value of the row, which is shared.
const LOOK_BYTES: usize = 160;

/// Adds operations that are applied after a transaction in the same entry. The limits for callers
/// do not apply to these operations.
fn follow_up(command: &mut Command, leaving: Vec<Op>) -> Result<(), Rejection> {
    let Command::Txn(txn) = &mut *command else { return Ok(()) };
    if leaving.is_empty() {
        return Ok(());
    }
    txn.success.extend(leaving);
    Limits::check_written(txn)?;
    fits(command)
}

/// Checks that a command fits into an entry, whatever its origin.
fn fits(command: &Command) -> Result<(), Rejection> {
    let (bytes, max) = (encoded_len_hint(command), COMMAND_BYTES_MAX);
    if bytes > max {
        return Err(Rejection::RequestTooLarge { bytes, max });
    }
    Ok(())
}

/// The shared state of a node.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) env: Env,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) reader: Reader,
    pub(crate) hub: Arc<Hub>,
    pub(crate) status: watch::Sender<NodeStatus>,
    /// Receives the applied changes. Set once, on the first use of a lock.
    pub(crate) follower: OnceLock<Arc<dyn Follower>>,
    stopped: watch::Sender<Option<StopReason>>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) slow: SlowLog,
    /// The log of batches of entries that take long to apply.
    pub(crate) slow_applies: SlowLog,
    /// The facts that the driver recorded at its last tick.
    sample: Mutex<HealthSample>,
    open_writes: AtomicUsize,
    open_bytes: AtomicUsize,
    open_reads: Arc<AtomicUsize>,
    /// Whether this node's disk is full.
    low: AtomicBool,
    /// Whether this replica holds a state of its cluster.
    has_state: AtomicBool,
    /// Whether this node is the only member, and leads.
    alone: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        env: Env,
        inbox: Arc<Inbox>,
        reader: Reader,
        hub: Arc<Hub>,
        status: NodeStatus,
        meters: Arc<Meters>,
    ) -> Self {
        meters.quota_bytes.set(settings.quota_bytes);
        Self {
            slow: SlowLog::new(settings.slow_request),
            slow_applies: SlowLog::new(settings.slow_apply),
            sample: Mutex::new(HealthSample::initial(env.clock.now())),
            meters,
            settings,
            env,
            inbox,
            reader,
            hub,
            status: watch::Sender::new(status),
            follower: OnceLock::new(),
            stopped: watch::Sender::new(None),
            open_writes: AtomicUsize::new(0),
            open_bytes: AtomicUsize::new(0),
            open_reads: Arc::default(),
            low: AtomicBool::new(false),
            has_state: AtomicBool::new(false),
            alone: AtomicBool::new(false),
        }
    }

    /// Returns the time on this node's clock.
    pub(crate) fn now(&self) -> Moment {
        self.env.clock.now()
    }

    /// Returns the deadline of a call that is made now.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Moment {
        self.now() + timeout.unwrap_or(self.settings.call_deadline)
    }

    /// Returns the reason for which the node has stopped, if it has.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.stopped.borrow().clone()
    }

    /// Returns a receiver that is notified when the node stops.
    pub(crate) fn watch_stop(&self) -> watch::Receiver<Option<StopReason>> {
        self.stopped.subscribe()
    }

    /// Records the facts of the driver.
    pub(crate) fn record_sample(&self, sample: HealthSample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }

    /// Returns the current health of the node.
    pub(crate) fn health(&self) -> Health {
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Health::judge(sample, self.stop_reason(), self.now(), self.settings.election_timeout)
    }

    /// Marks the node as stopped, unless it already is, and notifies everything that waits.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.in_company();
        let mut first = false;
        waking(|| {
            self.stopped.send_if_modified(|stopped| {
                first = stopped.is_none();
                stopped.get_or_insert_with(|| reason.clone());
                first
            })
        });
        if first {
            super::inbox::refuse_all(self.inbox.close(), &reason);
            self.hub.close(&reason.to_string());
            if let Some(follower) = self.follower.get() {
                Arc::clone(follower).stopped(&reason);
            }
        }
    }

    /// Proposes a command and waits for its outcome on this replica.
    pub(crate) async fn write(&self, command: Command, deadline: Moment) -> CallResult<Reply> {
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        let span = self.begin_write(command, Vec::new(), Some(deadline), reply);
        let span = span.map_err(|(error, _)| error)?;
        match self.answer(receiver, true).instrument(span).await? {
            Reply::AppliedBefore { revision } => Err(CallError::AnswerLost { revision }),
            reply => Ok(reply),
        }
    }

    /// Like [`Shared::write`], and calls `hook` exactly once: with the outcome, or with `None` if there will never be
    /// one. The hook runs even if the caller has gone away. The operations in `leaving` are applied after the
    /// transaction, in the same entry.
    pub(crate) async fn write_hooked(
        &self,
        txn: Txn,
        leaving: Vec<Op>,
        deadline: Moment,
        hook: impl FnOnce(Option<&CallResult<Reply>>) + Send + 'static,
    ) -> CallResult<Reply> {
        let (sender, receiver) = oneshot::channel();
        let hook = Hook(Some(hook));
        let reply = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            hook.run(&outcome);
            waking(|| drop(sender.send(outcome)));
        }));
        let span = match self.begin_write(Command::Txn(txn), leaving, Some(deadline), reply) {
            Ok(span) => span,
            Err((error, reply)) => {
                reply.send(Err(error.clone()));
                return Err(error);
            }
        };
        match self.answer(receiver, true).instrument(span).await? {
            Reply::AppliedBefore { revision } => Err(CallError::AnswerLost { revision }),
            reply => Ok(reply),
        }
    }

    /// Requests a membership change and waits until it is applied here. Returns the id of the affected member.
    pub(crate) async fn step(
        &self,
        membership_request: MembershipRequest,
        deadline: Moment,
    ) -> CallResult<NodeId> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Step { membership_request, deadline, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, true).await
    }

    /// Checks a command, counts it towards the limit of open writes, and queues it for the driver.
    ///
    /// # Errors
    /// If the command is not admitted, returns the reason and the receiver, which the caller must
    /// notify.
    fn begin_write(
        &self,
        mut command: Command,
        leaving: Vec<Op>,
        deadline: Option<Moment>,
        reply: ReplyTo<Reply>,
    ) -> Result<Span, (CallError, ReplyTo<Reply>)> {
        let trace = RequestTrace::begin(&command, self.now());
        let checked = self.settings.limits.check(&command);
        let checked = checked.and_then(|()| follow_up(&mut command, leaving));
        let bytes = match checked.map_err(CallError::from).and_then(|()| self.find_room(&command)) {
            Ok(bytes) => bytes,
            Err(error) => {
                let end = ending(&Err::<(), _>(error.clone()));
                self.meters.ended(trace.kind, end, Duration::ZERO);
                tracing::debug!(parent: &trace.span, %error, "request not admitted");
                return Err((error, reply));
            }
        };
        tracing::trace!(parent: &trace.span, bytes, "request admitted");
        let span = trace.span.clone();
        let command = match mutant!(M36) {
            false => command,
            true => self.judged_here(command),
        };
        self.push(Input::Write(Write { command, deadline, bytes, reply, trace }));
        Ok(span)
    }

    /// Used by a mutant: evaluates the conditions of a transaction on this replica, and returns the
    /// transaction without them.
    fn judged_here(&self, command: Command) -> Command {
        let Command::Txn(Txn { compares, success, failure }) = command else { return command };
        let held = self.reader.read_txn(&Txn { compares, ..Txn::default() });
        let holds = held.is_ok_and(|reply| reply.succeeded);
        let success = if holds { success } else { failure };
        Command::Txn(Txn { success, ..Txn::default() })
    }

    /// Checks a command, and returns the bytes that it counts towards the limit of open writes.
    fn let_in(&self, command: &Command) -> CallResult<usize> {
        self.settings.limits.check(command)?;
        self.find_room(command)
    }

    /// Like [`Shared::let_in`], for a command that is within the limits.
    fn find_room(&self, command: &Command) -> CallResult<usize> {
        self.room_for(command).map_err(|why| self.shut_or(why))
    }

    /// Returns the reason for a rejection. If the node has stopped, returns this as the reason:
    /// other reasons are temporary, and the caller would retry forever.
    fn shut_or(&self, why: CallError) -> CallError {
        let stopped = |reason| CallError::Stopped { reason, maybe_applied: false };
        self.stop_reason().map_or(why, stopped)
    }

    fn room_for(&self, command: &Command) -> CallResult<usize> {
        let is_wide = is_wide(command);
        // If the limit is already reached, avoid the cost of counting keys.
        if is_wide && self.open_bytes() >= self.settings.open_bytes_max {
            return Err(CallError::Busy);
        }
        let mut keys = if is_wide { self.may_look(command)? } else { 0 };
        if let Command::As(caller, deed) = command {
            // Each replica scans all of these keys before it knows whether the caller has the
            // rights.
            keys += self.reader.judged_by(caller, deed);
        }
        if let Some(more) = growth(command, &|key| self.reader.value_len(key)) {
            self.may_grow(more)?;
        }
        let bytes = encoded_len_hint(command);
        // Limit the bytes for scanned keys, so that the largest scan can still be admitted while
        // other commands are open.
        let looked =
            keys.saturating_mul(LOOK_BYTES).min(self.look_bytes_max().saturating_sub(bytes));
        let bytes = bytes + looked;
        let most = self.settings.open_bytes_max;
        // An eighth of the limit is reserved for commands on single keys.
        self.admit(bytes, if looked > 0 { most - most / 8 } else { most })?;
        Ok(bytes)
    }

    /// Returns the maximum number of bytes that the scanned keys of one command count. Two commands
    /// with this maximum may be open at once.
    fn look_bytes_max(&self) -> usize {
        self.settings.open_bytes_max / 8 * 3
    }

    /// Checks whether this replica may grow by `more` bytes. Commands in flight are not counted
    /// here. The limit of open writes and consensus bound the commands in flight.
    fn may_grow(&self, more: u64) -> CallResult<()> {
        if self.low.load(Ordering::Relaxed) {
            return Err(CallError::NoSpace);
        }
        let (bytes, quota) = (self.reader.bytes(), self.settings.quota_bytes);
        if bytes.saturating_add(more) > quota {
            return Err(CallError::QuotaExceeded { bytes, quota });
        }
        Ok(())
    }

    /// Checks whether a command may scan as many keys as its ranges contain, and returns their
    /// number. For a deletion, counting stops where a higher number makes no difference. If the
    /// caller has no rights to the keys, their number is not revealed. Such a command is rejected
    /// later, when its rights are checked.
    fn may_look(&self, command: &Command) -> Result<usize, Rejection> {
        if let Command::As(caller, deed) = command
            && self.reader.judge(caller, deed).is_err()
        {
            return Ok(0);
        }
        match command.deed() {
            Command::Txn(txn) => self.may_pass_over(txn),
            Command::Delete(delete) => {
                let max = self.look_bytes_max() / LOOK_BYTES + 1;
                Ok(self.reader.passed_over_by(&delete.range, max))
            }
            _ => Ok(0),
        }
    }

    /// Checks whether a transaction may scan as many keys as its ranges contain, and returns their
    /// number.
    fn may_pass_over(&self, txn: &Txn) -> Result<usize, Rejection> {
        let max = self.settings.limits.txn_keys_max;
        let count = |max: usize| self.reader.passed_over(txn, max.saturating_add(1));
        let keys = count(max);
        if keys <= max {
            return Ok(keys);
        }
        let max = max.max(self.reader.kept_keys().saturating_mul(4));
        let keys = count(max);
        if keys > max { Err(Rejection::TooManyKeys { max }) } else { Ok(keys) }
    }

    /// Records whether this node's disk is full.
    pub(crate) fn set_low(&self, low: bool) {
        self.low.store(low, Ordering::Relaxed);
    }

    /// Returns whether this replica holds a state of its cluster. Before the cluster is founded, before a new member
    /// has received a state, and while a lost state is fetched, the store is empty and must not be read.
    pub(crate) fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_state(&self) {
        self.has_state.store(true, Ordering::Release);
    }

    /// Proposes a command without a deadline, and calls back with the outcome. For internal use by
    /// locks: the command does not count towards the limit of open writes and is never given up.
    pub(crate) fn insist(&self, command: Command, reply: ReplyTo<Reply>) {
        if let Err(rejection) = fits(&command) {
            tracing::error!(%rejection, "internal command is larger than a log entry");
            return reply.send(Err(rejection.into()));
        }
        let trace = RequestTrace::begin(&command, self.now());
        self.push(Input::Write(Write { command, deadline: None, bytes: 0, reply, trace }));
    }

    /// Like [`Shared::insist`], for operations that callers can request any number of times. They
    /// count towards the limit of open writes.
    ///
    /// # Errors
    /// Returns [`CallError::Busy`], or the violated limit. After an error nothing will be applied.
    pub(crate) fn insist_admitted(
        &self,
        command: Command,
        reply: ReplyTo<Reply>,
    ) -> CallResult<()> {
        self.begin_write(command, Vec::new(), None, reply).map(drop).map_err(|(error, _)| error)
    }

    /// Enables local linearizable reads without a question to the leader. The caller guarantees
    /// that this node is the only member and leads, and that its readers see everything committed.
    /// Every later commit is acknowledged by this node, after it is visible to readers. This is
    /// valid until [`Shared::in_company`] is called.
    pub(crate) fn alone(&self) {
        self.alone.store(true, Ordering::SeqCst);
    }

    /// Disables local linearizable reads. Must be called before a change can become visible on
    /// another node and is not visible to readers here yet. This is the case before any message is
    /// sent to another member, and before an entry is applied.
    pub(crate) fn in_company(&self) {
        if !mutant!(B53) {
            self.alone.store(false, Ordering::SeqCst);
        }
    }

    /// Waits until this replica has applied everything that was committed anywhere before the call.
    pub(crate) async fn read_barrier(&self, deadline: Moment) -> CallResult<()> {
        if self.alone.load(Ordering::SeqCst) {
            self.meters.ended(RequestKind::Read, Ending::Ok, Duration::ZERO);
            return Ok(());
        }
        let asked = self.now();
        let span = tracing::debug_span!("read");
        let asking = self.ask_leader(deadline, span.clone());
        let result = asking.instrument(span.clone()).await;
        self.read_ended(asked, &span, &result);
        result.map(drop)
    }

    async fn ask_leader(&self, deadline: Moment, span: Span) -> CallResult<Moment> {
        let _open = self.admit_read()?;
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Read(ReadWaiter { deadline, reply: ReplyTo::Waiting(sender), span }));
        self.answer(receiver, false).await
    }

    fn read_ended(&self, asked: Moment, span: &Span, result: &CallResult<Moment>) {
        let (now, kind, end) = (self.now(), RequestKind::Read, ending(result));
        let took = now.since(asked);
        self.meters.ended(kind, end, took);
        tracing::debug!(parent: span, outcome = end.as_str(), ?took, "read answered");
        let Some(passed_over) = self.is_slow(took, now) else { return };
        // Log the line in the read's span. If reads are not traced, this is the span of the caller.
        let _inside = span.enter();
        let status = self.status.borrow().clone();
        let (kind, outcome, leader) = (kind.as_str(), end.as_str(), status.leader);
        let unapplied = status.commit.get().saturating_sub(status.applied.get());
        let node = status.name;
        match result {
            Ok(confirmed) => {
                let (asking, applying) = (confirmed.since(asked), now.since(*confirmed));
                let most = match asking > applying {
                    true => "asking the leader for the read index",
                    false => "waiting until this node had applied that index",
                };
                tracing::warn!(
                    node,
                    kind,
                    outcome,
                    ?took,
                    ?asking,
                    ?applying,
                    ?leader,
                    passed_over,
                    "slow request (read): took {took:.1?}, mostly {most}"
                );
            }
            Err(_) => tracing::warn!(
                node,
                kind,
                outcome,
                ?took,
                ?leader,
                unapplied,
                passed_over,
                "slow request (read): given up after {took:.1?}"
            ),
        }
    }

    /// Counts the request that ends now after `took` if it is slow. If it should be logged, returns
    /// the number of slow requests that were not logged since the last line.
    pub(crate) fn is_slow(&self, took: Duration, now: Moment) -> Option<u64> {
        let judged = self.slow.judge(took, now);
        if judged != Slow::No {
            self.meters.slow_requests_total.one();
        }
        match judged {
            Slow::Line { passed_over } => Some(passed_over),
            Slow::No | Slow::Counted => None,
        }
    }

    /// Reads a range of this replica. If `counted` is set, counts all keys of the range and not
    /// only the returned rows. Logs a slow scan.
    pub(crate) fn range(&self, range: &Range, counted: bool) -> Result<RangeReply, Rejection> {
        let began = self.now();
        let found = if counted { self.reader.range(range) } else { self.reader.page(range) };
        let now = self.now();
        self.meters.ranges_total.one();
        let took = now.since(began);
        if let Some(passed_over) = self.is_slow(took, now) {
            let node = &*self.settings.contact.name;
            let of = |reply: &RangeReply| (reply.kvs.len(), reply.count);
            let (rows, count) = found.as_ref().map(of).unwrap_or_default();
            tracing::warn!(
                node,
                kind = "range",
                ?took,
                rows,
                count,
                passed_over,
                "slow request (range): took {took:.1?}, reading this node's replica"
            );
        }
        found
    }

    /// Runs a transaction that writes nothing.
    pub(crate) fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        self.may_pass_over(txn)?;
        let reply = self.reader.read_txn(txn)?;
        let ranges = reply.ranges();
        self.meters.ranges_total.add(ranges);
        self.meters.txns_total.add(u64::from(ranges > 1));
        Ok(reply)
    }

    /// Returns the bytes that admission counts for unanswered writes.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open_bytes.load(Ordering::Relaxed)
    }

    /// Updates the gauges that any thread can read. [`Metrics`](crate::metrics::Metrics) calls this
    /// for each snapshot, so that a snapshot includes every request that was answered before it.
    pub(crate) fn read_gauges(&self) {
        let (meters, reader) = (&self.meters, &self.reader);
        meters.open_bytes.count(self.open_bytes());
        meters.watchers.count(self.hub.open());
        meters.watchers_behind.count(self.hub.behind());
        meters.watch_overflows_total.reach(self.hub.overflows());
        meters.keys.set(reader.keys());
        meters.state_bytes.set(reader.bytes());
        meters.history_bytes.set(reader.history_bytes());
        meters.leases.count(reader.lease_count());
        meters.alarms.count(reader.alarms().len());
        meters.revision.set(reader.revision().get());
        meters.compacted_revision.set(reader.compacted().get());
    }

    /// Waits until this replica holds a state of its cluster.
    pub(crate) async fn any_state(&self, deadline: Moment) -> CallResult<()> {
        if self.has_state() { Ok(()) } else { self.at_least(Revision(0), deadline).await }
    }

    /// Waits until this replica has reached `revision`.
    pub(crate) async fn at_least(&self, revision: Revision, deadline: Moment) -> CallResult<()> {
        if self.has_state() && self.reader.revision() >= revision {
            return Ok(());
        }
        let _open = self.admit_read()?;
        self.reach(revision, deadline).await
    }

    /// Like [`Shared::at_least`], and also waits until the follower has processed that revision.
    pub(crate) async fn reach(&self, revision: Revision, deadline: Moment) -> CallResult<()> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::AtLeast { revision, deadline, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Waits until `deadline` or until the node stops. The wait uses the ticks of the driver and
    /// needs no async runtime.
    pub(crate) async fn sleep_until(&self, deadline: Moment) {
        // No replica ever reaches this revision.
        drop(self.reach(Revision(u64::MAX), deadline).await);
    }

    /// Opens a session that relies on its lease for `ttl` without a renewal. The lease exists for `delay` longer.
    pub(crate) async fn open_session(
        &self,
        ttl: Duration,
        delay: Duration,
        info: SessionInfo,
        deadline: Moment,
    ) -> CallResult<Claim> {
        let (sender, receiver) = oneshot::channel();
        let (asked, reply) = (self.now(), ReplyTo::Waiting(sender));
        let mut opening = SessionOpening { ttl, delay, info, asked, deadline, bytes: 0, reply };
        opening.bytes = self.let_in(&opening.command())?;
        self.push(Input::OpenSession(opening));
        Ok(self.answer(receiver, true).await?.taken())
    }

    /// Resumes a session whose lease exists. The session does not rely on the last `delay` of the TTL.
    pub(crate) async fn resume_session(
        &self,
        lease: LeaseId,
        delay: Duration,
        deadline: Moment,
    ) -> CallResult<Claim> {
        // After this barrier, this replica contains every lease that was granted before the call.
        self.read_barrier(deadline).await?;
        let _open = self.admit_read()?;
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        self.push(Input::ResumeSession(SessionResuming { lease, delay, deadline, reply }));
        Ok(self.answer(receiver, false).await?.taken())
    }

    /// Renews a lease, or only queries it. Returns its remaining TTL.
    pub(crate) async fn lease_call(
        &self,
        lease: LeaseId,
        lease_request: LeaseRequest,
        deadline: Moment,
    ) -> CallResult<Duration> {
        // The call counts as an open read until its answer arrives, even if its future is not
        // polled: a caller that keeps many leases alive polls the futures one by one.
        let open = self.admit_read()?;
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        self.push(Input::Lease(PendingLeaseCall {
            lease,
            lease_request,
            deadline,
            _open: open,
            reply,
        }));
        self.answer(receiver, lease_request == LeaseRequest::Renew).await
    }

    /// Writes a backup of the state to a file.
    pub(crate) async fn backup(&self, path: PathBuf) -> CallResult<SnapshotId> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Backup { path, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Transfers leadership to a member or, if `to` is `None`, to the most up-to-date voter.
    pub(crate) async fn transfer(&self, to: Option<NodeId>, deadline: Moment) -> CallResult<()> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Transfer { to, deadline, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Flips a bit of a key's row in memory. Returns whether the key exists.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) async fn rot(&self, key: Vec<u8>) -> CallResult<bool> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Rot { key, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Queues an input for the driver. If the driver has stopped, fails the call at once.
    pub(crate) fn push(&self, input: Input) {
        if let Err(input) = self.inbox.push(input) {
            let reason = self.stop_reason().unwrap_or(StopReason::Shutdown);
            match &*input {
                Input::Write(write) => self.release(write.bytes),
                Input::OpenSession(opening) => self.release(opening.bytes),
                _ => {}
            }
            super::inbox::refuse_all(vec![*input], &reason);
        }
    }

    /// Removes a write that has ended from the counts of open writes.
    pub(crate) fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.open_writes.fetch_sub(1, Ordering::Relaxed);
            self.open_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a read as open until the returned value is dropped.
    fn admit_read(&self) -> CallResult<OpenRead> {
        let reads = self.open_reads.fetch_add(1, Ordering::Relaxed) + 1;
        let open = OpenRead(Arc::clone(&self.open_reads));
        if reads > self.settings.open_reads_max {
            return Err(self.shut_or(CallError::Busy));
        }
        Ok(open)
    }

    /// Counts a write, if all open writes then take at most `most` bytes.
    fn admit(&self, bytes: usize, most: usize) -> CallResult<()> {
        assert!(bytes > 0, "a command of no bytes");
        let writes = self.open_writes.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.open_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if writes > self.settings.open_writes_max || total > most {
            self.release(bytes);
            return Err(CallError::Busy);
        }
        Ok(())
    }

    /// Returns the error for a call whose deadline has passed without an effect. While the cluster
    /// is not founded, the error names the members that the node waits for.
    fn late(&self) -> CallError {
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        match &sample.founding {
            Some(waiting_for) if !waiting_for.is_empty() => {
                CallError::NotFounded { waiting_for: waiting_for.clone() }
            }
            _ => CallError::Deadline { maybe_applied: false },
        }
    }

    async fn answer<T>(
        &self,
        receiver: oneshot::Receiver<CallResult<T>>,
        changes: bool,
    ) -> CallResult<T> {
        match receiver.await {
            Ok(Err(CallError::Deadline { maybe_applied: false })) => Err(self.late()),
            Ok(result) => result,
            // The driver dropped the call because it panicked.
            Err(_) => {
                let reason =
                    self.stop_reason().unwrap_or_else(|| StopReason::failed("the driver panicked"));
                Err(CallError::Stopped { reason, maybe_applied: changes })
            }
        }
    }
}
