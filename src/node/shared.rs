//! What a node's handles and its driver have in common.

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
use crate::mutant::{self, Mutant};
use crate::watch::{Hub, waking};

use super::answer::{CallError, CallResult, ReplyTo, StopReason};
use super::health::{Health, HealthSample};
use super::inbox::{Inbox, Input, Write};
use super::lease_calls::{LeaseCall, LeaseRequest};
use super::quota::growth;
use super::reads::ReadWaiter;
use super::request_trace::{RequestTrace, ending};
use super::session::Claim;
use super::sessions::{SessionOpening, SessionResuming};
use super::settings::Settings;
use super::slow::{Slow, SlowLog};
use super::status::NodeStatus;

/// Is told, by the driver, of everything that has been applied: how the recipes follow the replica.
/// Called after readers can see it and before the callers are answered. Must be quick and must not
/// wait.
pub(crate) trait Follower: Any + Send + Sync {
    /// These changes are visible, up to `visible`; the driver had them at `came`.
    fn applied(self: Arc<Self>, changes: &[Change], visible: Revision, came: Moment);

    /// The replica was replaced by a later state: what happened in between is told by nobody.
    fn installed(self: Arc<Self>, visible: Revision);

    /// Time has passed: called at every tick.
    fn tick(self: Arc<Self>, now: Moment);

    /// The node has stopped.
    fn stopped(self: Arc<Self>, reason: &StopReason);
}

/// A read that admission has counted, until this is dropped.
#[derive(Default)]
pub(crate) struct OpenRead(Arc<AtomicUsize>);

impl Drop for OpenRead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Rings once: with the outcome, or, when it is dropped unrung, without.
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

/// The largest command that is proposed, in bytes: the largest request that a configuration allows, as it is encoded,
/// and what a recipe may add to one.
pub(super) const COMMAND_BYTES_MAX: usize = 7 << 19;

/// What admission counts for each key that a command passes over, or that its caller is judged by, in bytes: what its
/// row takes in an answer, without the value, which is shared.
const LOOK_BYTES: usize = 160;

/// Adds to a transaction what is to be done behind it, in the same entry. The limits of callers are not for that.
fn follow_up(command: &mut Command, leaving: Vec<Op>) -> Result<(), Rejection> {
    let Command::Txn(txn) = &mut *command else { return Ok(()) };
    if leaving.is_empty() {
        return Ok(());
    }
    txn.success.extend(leaving);
    Limits::check_written(txn)?;
    fits(command)
}

/// Whether a command fits into an entry, whoever has made it.
fn fits(command: &Command) -> Result<(), Rejection> {
    let (bytes, max) = (encoded_len_hint(command), COMMAND_BYTES_MAX);
    if bytes > max {
        return Err(Rejection::RequestTooLarge { bytes, max });
    }
    Ok(())
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) env: Env,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) reader: Reader,
    pub(crate) hub: Arc<Hub>,
    pub(crate) status: watch::Sender<NodeStatus>,
    /// Set once, before the node runs.
    pub(crate) follower: OnceLock<Arc<dyn Follower>>,
    stopped: watch::Sender<Option<StopReason>>,
    /// What the node measures of itself.
    pub(crate) meters: Arc<Meters>,
    pub(crate) slow: SlowLog,
    /// The same for batches of entries that take long to apply.
    pub(crate) slow_applies: SlowLog,
    /// What the driver wrote down at its last tick.
    sample: Mutex<HealthSample>,
    open_writes: AtomicUsize,
    open_bytes: AtomicUsize,
    open_reads: Arc<AtomicUsize>,
    /// This node's disk is full.
    low: AtomicBool,
    /// This replica holds a state of its cluster.
    has_state: AtomicBool,
    /// This node is the only member, and leads.
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

    /// The present moment on this node's clock.
    pub(crate) fn now(&self) -> Moment {
        self.env.clock.now()
    }

    /// The moment by which a call made now must end.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Moment {
        self.now() + timeout.unwrap_or(self.settings.call_deadline)
    }

    /// Why the node has stopped, if it has.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.stopped.borrow().clone()
    }

    /// Told when the node stops.
    pub(crate) fn watch_stop(&self) -> watch::Receiver<Option<StopReason>> {
        self.stopped.subscribe()
    }

    /// The driver's pulse.
    pub(crate) fn record_sample(&self, sample: HealthSample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }

    /// How the node is now.
    pub(crate) fn health(&self) -> Health {
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Health::judge(sample, self.stop_reason(), self.now(), self.settings.election_timeout)
    }

    /// Marks the node as stopped, unless it is already, and tells everybody who waits.
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

    /// As [`Shared::write`], and tells `hook`, whether anybody waits for the answer or not, the outcome,
    /// or `None` if there will never be one: not after this, and once. What `leaving` says is carried out
    /// behind the transaction, in the same entry.
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

    /// Wants a step of the members, and waits until it is applied here. Tells whom it was about.
    pub(crate) async fn step(
        &self,
        membership_request: MembershipRequest,
        deadline: Moment,
    ) -> CallResult<NodeId> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Step { membership_request, deadline, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, true).await
    }

    /// Checks a command, asks for admission, and puts it before the driver.
    ///
    /// # Errors
    /// It is not let in: why, and whoever is to be told.
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
                tracing::debug!(parent: &trace.span, %error, "not let in");
                return Err((error, reply));
            }
        };
        tracing::trace!(parent: &trace.span, bytes, "let in");
        let span = trace.span.clone();
        let command = match mutant::is(Mutant::M36) {
            false => command,
            true => self.judged_here(command),
        };
        self.push(Input::Write(Write { command, deadline, bytes, reply, trace }));
        Ok(span)
    }

    /// For a mutant: a transaction without its conditions, which are judged here and now.
    fn judged_here(&self, command: Command) -> Command {
        let Command::Txn(Txn { compares, success, failure }) = command else { return command };
        let held = self.reader.read_txn(&Txn { compares, ..Txn::default() });
        let holds = held.is_ok_and(|reply| reply.succeeded);
        let success = if holds { success } else { failure };
        Command::Txn(Txn { success, ..Txn::default() })
    }

    /// What admission counts for a command that may come in.
    fn let_in(&self, command: &Command) -> CallResult<usize> {
        self.settings.limits.check(command)?;
        self.find_room(command)
    }

    /// As [`Shared::let_in`], for one that is within the limits.
    fn find_room(&self, command: &Command) -> CallResult<usize> {
        self.room_for(command).map_err(|why| self.shut_or(why))
    }

    /// Why something is not let in. A node that has stopped lets in nothing any more: what else is in the way might pass,
    /// and whoever waits for that would try for ever.
    fn shut_or(&self, why: CallError) -> CallError {
        let stopped = |reason| CallError::Stopped { reason, maybe_applied: false };
        self.stop_reason().map_or(why, stopped)
    }

    fn room_for(&self, command: &Command) -> CallResult<usize> {
        let is_wide = is_wide(command);
        // Not to be counted first, where there is no room whatever it passes over.
        if is_wide && self.open_bytes() >= self.settings.open_bytes_max {
            return Err(CallError::Busy);
        }
        let mut keys = if is_wide { self.may_look(command)? } else { 0 };
        if let Command::As(caller, deed) = command {
            // Each replica looks at all of them before it knows whether the caller may.
            keys += self.reader.judged_by(caller, deed);
        }
        if let Some(more) = growth(command, &|key| self.reader.value_len(key)) {
            self.may_grow(more)?;
        }
        let bytes = encoded_len_hint(command);
        // Where others are always open too, one that is as wide as it may be gets in.
        let looked =
            keys.saturating_mul(LOOK_BYTES).min(self.look_bytes_max().saturating_sub(bytes));
        let bytes = bytes + looked;
        let most = self.settings.open_bytes_max;
        // An eighth is left to those who look at single keys.
        self.admit(bytes, if looked > 0 { most - most / 8 } else { most })?;
        Ok(bytes)
    }

    /// The most that admission counts for one command on account of what it looks at: two of those may be open.
    fn look_bytes_max(&self) -> usize {
        self.settings.open_bytes_max / 8 * 3
    }

    /// Whether this replica may become so many bytes larger. What is under way at the same time is not
    /// counted: admission and the consensus bound it.
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

    /// Whether a command may look at as many keys as it names, and how many those are; of a deletion no more are
    /// counted than make a difference. Who has no right to them is not told how many there are: it is refused where
    /// that is decided.
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

    /// Whether a transaction may look at as many keys as its ranges name, and how many those are.
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

    /// Whether this node's disk is full.
    pub(crate) fn set_low(&self, low: bool) {
        self.low.store(low, Ordering::Relaxed);
    }

    /// Whether this replica holds a state of its cluster. Before it is founded, before a newcomer was given one, and
    /// while one that was lost is fetched, what can be read here is empty and means nothing.
    pub(crate) fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    /// From now on it does.
    pub(crate) fn set_has_state(&self) {
        self.has_state.store(true, Ordering::Release);
    }

    /// Proposes a command that must be carried out however long that takes, and calls back. For the
    /// recipes: it is not counted by admission and not given up.
    pub(crate) fn insist(&self, command: Command, reply: ReplyTo<Reply>) {
        if let Err(rejection) = fits(&command) {
            tracing::error!(%rejection, "made by a recipe, and more than a log entry holds");
            return reply.send(Err(rejection.into()));
        }
        let trace = RequestTrace::begin(&command, self.now());
        self.push(Input::Write(Write { command, deadline: None, bytes: 0, reply, trace }));
    }

    /// As [`Shared::insist`], for what callers can ask for without end: counted by admission.
    ///
    /// # Errors
    /// [`CallError::Busy`], or a rejection of the limits: nothing will be carried out.
    pub(crate) fn insist_admitted(
        &self,
        command: Command,
        reply: ReplyTo<Reply>,
    ) -> CallResult<()> {
        self.begin_write(command, Vec::new(), None, reply).map(drop).map_err(|(error, _)| error)
    }

    /// There is no other member, this node leads, and readers see all that is committed: nobody has seen more, and what
    /// is acknowledged from now on this node acknowledges, which shows it to readers first. Holds until
    /// [`Shared::in_company`].
    pub(crate) fn alone(&self) {
        self.alone.store(true, Ordering::SeqCst);
    }

    /// Something is about to be seen that readers here do not see yet: of another member, or of what is being applied.
    /// Called before anything is sent to the one, and before anything is done of the other.
    pub(crate) fn in_company(&self) {
        if !mutant::is(Mutant::B53) {
            self.alone.store(false, Ordering::SeqCst);
        }
    }

    /// Waits until this replica holds everything that was committed anywhere before the call.
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
        tracing::debug!(parent: span, outcome = end.as_str(), ?took, "answered");
        let Some(passed_over) = self.is_slow(took, now) else { return };
        // Where nobody traces reads, the line belongs to what the caller is doing.
        let _inside = span.enter();
        let status = self.status.borrow().clone();
        let (kind, outcome, leader) = (kind.as_str(), end.as_str(), status.leader);
        let unapplied = status.commit.get().saturating_sub(status.applied.get());
        let node = status.name;
        match result {
            Ok(confirmed) => {
                let (asking, applying) = (confirmed.since(asked), now.since(*confirmed));
                let most = match asking > applying {
                    true => "in asking the leader how far it must see",
                    false => "in waiting until this node had applied as much",
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
                    "a slow request (read): it took {took:.1?}, most of it {most}"
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
                "a slow request (read): it was given up after {took:.1?}"
            ),
        }
    }

    /// Whether a request that took so long, and ends now, deserves a line in the log, and for how many others it
    /// stands. One without is counted all the same.
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

    /// Reads a range of this replica, and counts all of it or only what is answered. One that takes long is said to.
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
                "a slow request (range): it took {took:.1?}, all of it in reading this node's replica"
            );
        }
        found
    }

    /// Reads what a transaction reads that writes nothing.
    pub(crate) fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        self.may_pass_over(txn)?;
        let reply = self.reader.read_txn(txn)?;
        let ranges = reply.ranges();
        self.meters.ranges_total.add(ranges);
        self.meters.txns_total.add(u64::from(ranges > 1));
        Ok(reply)
    }

    /// What admission counts for the writes that it has let in and that have no answer yet, in bytes.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open_bytes.load(Ordering::Relaxed)
    }

    /// Updates the gauges that any thread can read. [`Metrics`](crate::metrics::Metrics) does so for each snapshot, so that
    /// a snapshot includes every request that was answered before it.
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

    /// As [`Shared::at_least`], and what watches the replica has been told of it, too.
    pub(crate) async fn reach(&self, revision: Revision, deadline: Moment) -> CallResult<()> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::AtLeast { revision, deadline, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Ends at `deadline`, by the driver's ticks, or when the node stops: a timer that needs no runtime.
    pub(crate) async fn sleep_until(&self, deadline: Moment) {
        // No replica ever reaches it.
        drop(self.reach(Revision(u64::MAX), deadline).await);
    }

    /// Opens a session of this node, which believes in its lease for `ttl` and whose lease lives for
    /// `delay` longer.
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

    /// Goes on with a lease that exists, of whose life `delay` is not to be believed in.
    pub(crate) async fn resume_session(
        &self,
        lease: LeaseId,
        delay: Duration,
        deadline: Moment,
    ) -> CallResult<Claim> {
        // From here on this replica knows every lease that was granted before the call.
        self.read_barrier(deadline).await?;
        let _open = self.admit_read()?;
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        self.push(Input::ResumeSession(SessionResuming { lease, delay, deadline, reply }));
        Ok(self.answer(receiver, false).await?.taken())
    }

    /// Renews a lease, or looks how long it lives: the answer is how long it lives now.
    pub(crate) async fn lease_call(
        &self,
        lease: LeaseId,
        lease_request: LeaseRequest,
        deadline: Moment,
    ) -> CallResult<Duration> {
        // Until it is answered, and no longer: whoever keeps many leases alive looks at one answer after the other.
        let open = self.admit_read()?;
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        self.push(Input::Lease(LeaseCall { lease, lease_request, deadline, _open: open, reply }));
        self.answer(receiver, lease_request == LeaseRequest::Renew).await
    }

    /// Writes a copy of the state to a file.
    pub(crate) async fn backup(&self, path: PathBuf) -> CallResult<SnapshotId> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Backup { path, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Moves leadership to a member, or to whoever is best.
    pub(crate) async fn transfer(&self, to: Option<NodeId>, deadline: Moment) -> CallResult<()> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Transfer { to, deadline, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Flips a bit of a key's row in memory. True if there is such a key.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) async fn rot(&self, key: Vec<u8>) -> CallResult<bool> {
        let (sender, receiver) = oneshot::channel();
        self.push(Input::Rot { key, reply: ReplyTo::Waiting(sender) });
        self.answer(receiver, false).await
    }

    /// Hands something to the driver; if it has stopped, its caller is told at once.
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

    /// A write has ended: admission may let another one in.
    pub(crate) fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.open_writes.fetch_sub(1, Ordering::Relaxed);
            self.open_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a read until what is returned is dropped.
    fn admit_read(&self) -> CallResult<OpenRead> {
        let reads = self.open_reads.fetch_add(1, Ordering::Relaxed) + 1;
        let open = OpenRead(Arc::clone(&self.open_reads));
        if reads > self.settings.open_reads_max {
            return Err(self.shut_or(CallError::Busy));
        }
        Ok(open)
    }

    /// Counts it, if all that is open takes `most` bytes with it at the most.
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

    /// Why a call has met its deadline without an effect: while the cluster is not founded, that, with the members that
    /// are waited for.
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
            // The driver went away with the call inside: it fell.
            Err(_) => {
                let reason =
                    self.stop_reason().unwrap_or_else(|| StopReason::failed("its driver fell"));
                Err(CallError::Stopped { reason, maybe_applied: changes })
            }
        }
    }
}
