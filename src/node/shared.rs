//! The state that the handles of a node share with its driver.

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tracing::{Instrument as _, Span};

use crate::env::Env;
use crate::machine::{Change, Reader};
use crate::metrics::{Ending, Meters, NodeThread, RequestKind};
use crate::model::{
    Command, LeaseId, MembershipRequest, Moment, NodeId, Op, Range, RangeReply, Rejection, Reply,
    Revision, SessionInfo, SnapshotId, Txn, TxnReply,
};
use crate::watch::{Hub, waking};

use crate::node::health::Health;
use crate::node::health::node_state::NodeState;
use crate::node::health::replica_state::ReplicaState;
use crate::node::health::status::NodeStatus;
use crate::node::leader::lessor::{DirectRenewal, SharedLessor};
use crate::node::leader_queries::lease_calls::{LeaseRequest, PendingLeaseCall};
use crate::node::leader_queries::reads::ReadWaiter;
use crate::node::requests::admission::{Admission, OpenRead, fits, follow_up};
use crate::node::requests::answer::{CallError, CallResult, ReplyTo, StopReason};
use crate::node::requests::inbox::{Inbox, Input, Write};
use crate::node::requests::request_trace::{RequestTrace, ending};
use crate::node::requests::slow::{Slow, SlowLog};
use crate::node::sessions::session::{Claim, SessionClose, SessionKeeper, SharedSession};
use crate::node::sessions::{SessionOpening, SessionResuming};
use crate::node::settings::Settings;

/// Receives every change that the node has applied. The lock table implements this trait to follow
/// the replica. The driver calls the methods after a change is visible to readers and before it
/// answers the callers. Implementations must return quickly and must not block.
pub(crate) trait Follower: Any + Send + Sync {
    /// The changes up to `visible` are visible to readers. `received_at` is the time at which the driver
    /// received the changes.
    fn applied(self: Arc<Self>, changes: &[Change], visible: Revision, received_at: Moment);

    /// The replica was replaced by a later state. The changes in between are not reported.
    fn installed(self: Arc<Self>, visible: Revision);

    fn tick(self: Arc<Self>, now: Moment);

    fn stopped(self: Arc<Self>, reason: &StopReason);
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

/// The shared state of a node.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) env: Env,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) reader: Reader,
    pub(crate) hub: Arc<Hub>,
    /// Receives the applied changes. Set once, on the first use of a lock.
    pub(crate) follower: OnceLock<Arc<dyn Follower>>,
    pub(super) admission: Admission,
    /// Counts the leases while this node leads, from the first applied entry of the term.
    pub(crate) lessor: SharedLessor,
    pub(super) replica: ReplicaState,
    /// The state of the node, as its driver reports it.
    pub(crate) state: NodeState,
    pub(crate) meters: Arc<Meters>,
    pub(crate) slow: SlowLog,
    /// The log of batches of entries that take long to apply.
    pub(crate) slow_applies: SlowLog,
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
            admission: Admission::new(&settings),
            lessor: SharedLessor::default(),
            replica: ReplicaState::default(),
            state: NodeState::new(status, env.clock.now()),
            meters,
            settings,
            env,
            inbox,
            reader,
            hub,
            follower: OnceLock::new(),
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
        self.state.stop_reason()
    }

    /// Returns a receiver that is notified when the node stops.
    pub(crate) fn watch_stop(&self) -> watch::Receiver<Option<StopReason>> {
        self.state.watch_stop()
    }

    /// Returns the current health of the node.
    pub(crate) fn health(&self) -> Health {
        self.state.health(self.now(), self.settings.election_timeout)
    }

    /// Marks the node as stopped, unless it already is, and notifies everything that waits.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.replica.stop_local_linearizable_reads();
        self.lessor.stop();
        let mut first = false;
        waking(|| first = self.state.stop(&reason));
        if first {
            crate::node::requests::inbox::refuse_all(self.inbox.close(), &reason);
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

    /// Like [`Shared::write`], and calls `hook` exactly once: with the outcome, or with `None` if
    /// the outcome will never be known. The hook runs even if the caller no longer waits. The
    /// operations in `leaving` are applied after the transaction, in the same entry.
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
        let bytes = match checked.map_err(CallError::from).and_then(|()| self.admit_write(&command))
        {
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
        mutant!(M36, command = self.evaluated_here(command));
        self.push(Input::Write(Write { command, deadline, bytes, reply, trace }));
        Ok(span)
    }

    /// Used by a mutant: evaluates the conditions of a transaction on this replica, and returns the
    /// transaction without them.
    fn evaluated_here(&self, command: Command) -> Command {
        let Command::Txn(Txn { compares, success, failure }) = command else { return command };
        let held = self.reader.read_txn(&Txn { compares, ..Txn::default() });
        let holds = held.is_ok_and(|reply| reply.succeeded);
        let success = if holds { success } else { failure };
        Command::Txn(Txn { success, ..Txn::default() })
    }

    /// Admits a command that is within the limits of requests. Returns the number of bytes that the
    /// command uses of the limit of open writes.
    fn admit_write(&self, command: &Command) -> CallResult<usize> {
        self.admission.admit_write(command, &self.reader).map_err(|why| self.stopped_or(why))
    }

    /// Counts a read as open until the returned value is dropped.
    fn admit_read(&self) -> CallResult<OpenRead> {
        self.admission.admit_read().map_err(|why| self.stopped_or(why))
    }

    /// Returns `why` or, if the node has stopped, that error. Otherwise a caller could retry
    /// forever, because other reasons are temporary.
    fn stopped_or(&self, why: CallError) -> CallError {
        let stopped = |reason| CallError::Stopped { reason, maybe_applied: false };
        self.stop_reason().map_or(why, stopped)
    }

    /// Proposes a command without a deadline, and calls back with the outcome. For internal use:
    /// the command does not count towards the limit of open writes and is never given up.
    pub(crate) fn propose_until_applied(&self, command: Command, reply: ReplyTo<Reply>) {
        if let Err(rejection) = fits(&command) {
            tracing::error!(
                %rejection,
                "cannot propose an internal command: it is larger than a log entry"
            );
            return reply.send(Err(rejection.into()));
        }
        let trace = RequestTrace::begin(&command, self.now());
        self.push(Input::Write(Write { command, deadline: None, bytes: 0, reply, trace }));
    }

    /// Like [`Shared::propose_until_applied`], for operations that callers can request any number
    /// of times. Such operations count towards the limit of open writes.
    ///
    /// # Errors
    /// Returns [`CallError::Busy`], or the violated limit. After an error nothing will be applied.
    pub(crate) fn propose_admitted_until_applied(
        &self,
        command: Command,
        reply: ReplyTo<Reply>,
    ) -> CallResult<()> {
        self.begin_write(command, Vec::new(), None, reply).map(drop).map_err(|(error, _)| error)
    }

    /// Waits until this replica has applied everything that was committed anywhere before the call.
    pub(crate) async fn read_barrier(&self, deadline: Moment) -> CallResult<()> {
        if self.replica.is_alone() {
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
        let Some(suppressed) = self.is_slow(took, now) else { return };
        // Log the line in the read's span. If reads are not traced, this is the span of the caller.
        let _inside = span.enter();
        let status = self.state.status.borrow().clone();
        let (kind, outcome, leader) = (kind.as_str(), end.as_str(), status.leader_name());
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
                    leader,
                    suppressed,
                    "slow request (read): took {took:.1?}, mostly {most}"
                );
            }
            Err(_) => tracing::warn!(
                node,
                kind,
                outcome,
                ?took,
                leader,
                unapplied,
                suppressed,
                "slow request (read): given up after {took:.1?}"
            ),
        }
    }

    /// Counts the request that ends now after `took` if it is slow. If the request should be
    /// logged, returns the number of slow requests that were not logged since the last line.
    pub(crate) fn is_slow(&self, took: Duration, now: Moment) -> Option<u64> {
        let slowness = self.slow.classify(took, now);
        if slowness != Slow::No {
            self.meters.slow_requests_total.one();
        }
        match slowness {
            Slow::Line { suppressed } => Some(suppressed),
            Slow::No | Slow::Counted => None,
        }
    }

    /// Reads a range of this replica, or a page of it with at most `page_bytes`. Without
    /// `page_bytes`, counts all keys of the range and not only the returned rows. Logs a slow scan.
    pub(crate) fn range(
        &self,
        range: &Range,
        page_bytes: Option<u64>,
    ) -> Result<RangeReply, Rejection> {
        let began = self.now();
        let found = match page_bytes {
            None => self.reader.range(range),
            Some(bytes) => self.reader.page(range, bytes),
        };
        let now = self.now();
        self.meters.ranges_total.one();
        let took = now.since(began);
        if let Some(suppressed) = self.is_slow(took, now) {
            let node = &*self.settings.contact.name;
            let of = |reply: &RangeReply| (reply.kvs.len(), reply.count);
            let (rows, count) = found.as_ref().map(of).unwrap_or_default();
            tracing::warn!(
                node,
                kind = "range",
                ?took,
                rows,
                count,
                suppressed,
                "slow request (range): took {took:.1?}, reading this node's replica"
            );
        }
        found
    }

    /// Runs a transaction that writes nothing.
    pub(crate) fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        self.admission.keys_of_txn(txn, &self.reader)?;
        let reply = self.reader.read_txn(txn)?;
        let ranges = reply.ranges();
        self.meters.ranges_total.add(ranges);
        self.meters.txns_total.add(u64::from(ranges > 1));
        Ok(reply)
    }

    /// Updates the gauges that any thread can read. [`Metrics`](crate::metrics::Metrics) calls this
    /// for each snapshot, so that a snapshot includes every request that was answered before it.
    pub(crate) fn read_gauges(&self) {
        let (meters, reader) = (&self.meters, &self.reader);
        meters.open_bytes.count(self.admission.open_bytes());
        meters.wakeups_total.at(NodeThread::Driver).reach(self.inbox.wakeups());
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
        if self.replica.has_state() { Ok(()) } else { self.at_least(Revision(0), deadline).await }
    }

    /// Waits until this replica has reached `revision`.
    pub(crate) async fn at_least(&self, revision: Revision, deadline: Moment) -> CallResult<()> {
        if self.replica.has_state() && self.reader.revision() >= revision {
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
        let command = opening.command();
        self.settings.limits.check(&command)?;
        opening.bytes = self.admit_write(&command)?;
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
        if lease_request == LeaseRequest::Renew
            && let Some(ttl) = self.renew_at_once(lease)
        {
            return Ok(ttl);
        }
        // The call counts as an open read until its answer arrives, even if its future is not
        // polled. A caller that keeps many leases alive polls the futures one by one.
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

    /// Renews a lease on this thread, if this node leads and needs no round for it.
    fn renew_at_once(&self, lease: LeaseId) -> Option<Duration> {
        let now = self.now();
        self.lessor.with(|lessor| {
            let DirectRenewal { margin, ttl } = lessor.renew_at_once(lease, now)?;
            self.meters.lease_margin_seconds.add(margin);
            Some(ttl)
        })?
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
                Input::Write(write) => self.admission.release(write.bytes),
                Input::OpenSession(opening) => self.admission.release(opening.bytes),
                _ => {}
            }
            crate::node::requests::inbox::refuse_all(vec![*input], &reason);
        }
    }

    async fn answer<T>(
        &self,
        receiver: oneshot::Receiver<CallResult<T>>,
        changes: bool,
    ) -> CallResult<T> {
        match receiver.await {
            Ok(Err(CallError::Deadline { maybe_applied: false })) => Err(self.state.late()),
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

impl SessionKeeper for Shared {
    fn now(&self) -> Moment {
        Shared::now(self)
    }

    fn close_session(&self, session: &Arc<SharedSession>, how: SessionClose) {
        self.push(Input::CloseSession(Arc::clone(session), how));
    }
}
