//! The results of the workers so far, shared with the demo's main thread.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline::Token;
use bowline_check::{KvCall, KvReply, Recorder};
use bowline_fleet::moment;
use serde_json::{Value, json};

use crate::ledger::{Entry, Ledger};
use crate::proof::Evidence;
use crate::stage::DemoError;
use crate::timeline::{Timeline, ms, rounded, spread};

/// The state that all threads of the demo share.
pub(crate) struct Shared {
    pub(crate) timeline: Timeline,
    ledger: Mutex<Ledger>,
    /// Reads and writes of the counter.
    pub(crate) history: Recorder<KvCall, KvReply>,
    account: Mutex<Account>,
    changed: Condvar,
}

/// A record of all results.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) evidence: Evidence,
    /// Reason for which the demo must end, if a worker has found one.
    pub(crate) error: Option<DemoError>,
    /// Number of workers that run.
    pub(crate) workers: usize,
    /// Whether the workers must stop after their current increment.
    pub(crate) resting: bool,
    /// Length of the work.
    pub(crate) work_time: Duration,
    /// Increments with an unknown outcome.
    pub(crate) doubtful: BTreeSet<String>,
    /// Number of increments acknowledged only after more than one attempt.
    retried: u64,
    holder: Option<String>,
    handoffs: u64,
    pub(crate) terms_led: BTreeSet<u64>,
    /// The time from each kill of a leader to the next increment.
    pub(crate) recoveries: Vec<Duration>,
    /// The process whose next lock holder must pause, and the point at which it must pause.
    pub(crate) linger: Option<(usize, Point)>,
    /// The increment and the token of a worker that pauses.
    pub(crate) lingering: Option<(String, Token)>,
    /// Time since which no increment has been started and acknowledged.
    pub(crate) idle_since: Option<u64>,
    pub(crate) recovered_after: Option<Duration>,
}

/// A point within an increment, with the lock held and the counter read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// Before anything is written.
    BeforeLedger,
    /// After the ledger was written, before the store.
    BeforeStore,
}

impl Account {
    pub(crate) fn granted(&mut self, worker: &str) {
        self.handoffs += u64::from(self.holder.as_deref() != Some(worker));
        self.holder = Some(worker.to_owned());
    }

    /// Returns whether the increment has its final result.
    pub(crate) fn has_ended(&self, op: &str) -> bool {
        let Evidence { acknowledged, refused_by_store, .. } = &self.evidence;
        acknowledged.contains_key(op) || refused_by_store.contains(op) || self.doubtful.contains(op)
    }

    /// Returns the statistics of the run.
    pub(crate) fn figures(&self) -> Value {
        let Evidence { acknowledged, refused_by_store, late, ledger, kills, .. } = &self.evidence;
        let seconds = self.work_time.as_secs_f64().max(0.001);
        let per_s = |many: f64| (many / seconds * 10.0).round() / 10.0;
        let leader_kills = self.recoveries.len();
        json!({
            "worked_s": rounded(self.work_time),
            "acknowledged": acknowledged.len(),
            "increments_per_s": per_s(acknowledged.len() as f64),
            "handoffs": self.handoffs,
            "handoffs_per_s": per_s(self.handoffs as f64),
            "elections": self.terms_led.len(),
            "leader_kills": leader_kills,
            "holder_kills": kills - leader_kills,
            "holders_stopped": late.len(),
            "refused_by_ledger": ledger.iter().filter(|entry| !entry.accepted).count(),
            "refused_by_store": refused_by_store.len(),
            "unknown": self.doubtful.len(),
            "tried_again": self.retried,
            "recovery_ms": spread(&self.recoveries),
        })
    }
}

impl Shared {
    pub(crate) fn new(timeline: Timeline, ledger: Ledger) -> Self {
        let (account, changed) = Default::default();
        Self { timeline, ledger: Mutex::new(ledger), history: Recorder::new(), account, changed }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the account, and notifies all threads that wait for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Account) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits for a change, up to a time limit.
    pub(crate) fn wait(&self, at_most: Duration) {
        drop(self.changed.wait_timeout(self.lock(), at_most));
    }

    /// Ends the demo.
    pub(crate) fn fail(&self, error: DemoError) {
        self.change(|account| {
            account.error.get_or_insert(error);
        });
    }

    /// Shows an event of one process, or of the whole demo.
    pub(crate) fn report(&self, member: Option<&str>, event: &str, fields: &Value) {
        if let Err(error) = self.timeline.report(member, event, fields) {
            self.fail(DemoError::Output(error));
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to the ledger.
    pub(crate) fn write(&self, op: &str, token: Token) -> Result<Entry, DemoError> {
        let written = self.ledger().append(op, token);
        written.map_err(DemoError::environment("the ledger cannot write its file"))
    }

    /// Pauses a lock holder of this process at this point if that was requested, until it may continue.
    pub(crate) fn stay(&self, seat: usize, at: Point, op: &str, token: Token) {
        let mut account = self.lock();
        if account.linger == Some((seat, at)) {
            account.linger = None;
            account.lingering = Some((op.to_owned(), token));
            self.changed.notify_all();
            while account.lingering.is_some() {
                account = self.changed.wait(account).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Records an acknowledged increment, which was sent to the store at `began`. The first one that was sent after a
    /// fault ends the outage.
    pub(crate) fn acknowledge(&self, member: &str, op: String, count: i64, began: u64, tries: u32) {
        let recovered = self.change(|account| {
            account.retried += u64::from(tries > 1);
            account.evidence.acknowledged.insert(op, count);
            let halted = account.idle_since.take_if(|halted| began > *halted)?;
            let after = Duration::from_micros(moment::now().saturating_sub(halted));
            account.recovered_after = Some(after);
            account.recovered_after
        });
        if let Some(after) = recovered {
            self.report(Some(member), "recovered", &json!({"after_ms": ms(after)}));
        }
    }
}
