//! The background job: switches flags off when their time has come. All processes campaign, and
//! the elected leader runs the job.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline::{Compare, LeaderTask, Leadership};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::flags::{Flag, Flags, key, name_of};
use crate::service::until_set;

/// Name of the election. The candidates use the keys below `sweeper/`.
pub const ELECTION: &str = "sweeper";

/// Pause between two sweeps.
const EVERY: Duration = Duration::from_millis(500);

/// How long a sweep may continue after the process was asked to stop.
const GRACE: Duration = Duration::from_secs(1);

/// Why a sweep failed, for the log.
type Failure = Box<dyn Error + Send + Sync>;

/// Results of the job since this process was elected, in memory. Only those of the leader count.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Report {
    /// Fencing token of the leadership.
    pub token: String,
    /// Number of sweeps.
    pub sweeps: u64,
    /// Number of flags that were switched off.
    pub switched_off: u64,
}

/// The report of this process, shared with the handler that shows it.
#[derive(Clone, Default, Debug)]
pub struct SharedReport(Arc<Mutex<Report>>);

impl SharedReport {
    /// Returns a copy of the report.
    pub fn get(&self) -> Report {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Campaigns, and runs the job while this process leads, until `stop` is set. Then resigns.
pub async fn run(
    task: LeaderTask,
    flags: Flags,
    report: SharedReport,
    stop: watch::Receiver<bool>,
) {
    // Each term runs a clone. A loss of the leadership drops it at its next await point, before
    // another process is elected.
    let term = async move |leadership: Arc<Leadership>| {
        let token = leadership.token().to_string();
        tracing::info!(token, "elected leader of the sweeper");
        report.change(|report| *report = Report { token, ..Report::default() });
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // The process stops, or an operator wants another one to lead.
                _ = leadership.asked_to_release() => return,
                _ = ticks.tick() => {}
            }
            match sweep(&flags, &leadership).await {
                Ok(off) => report.change(|report| {
                    report.sweeps += 1;
                    report.switched_off += off;
                }),
                // The next tick tries again.
                Err(error) => tracing::warn!(error, "sweep failed"),
            }
        }
    };
    while !*stop.borrow() {
        // Each run joins the end of the queue.
        let running = task.clone().run_until(until_set(stop.clone()), GRACE, term.clone());
        if let Err(error) = running.await {
            tracing::error!(%error, "campaign ended");
            return;
        }
    }
}

/// Switches off the flags whose time has come, and returns their number.
async fn sweep(flags: &Flags, leadership: &Leadership) -> Result<u64, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut off = 0;
    for due in flags.due(now).await? {
        // Applied only if this process still leads, and the flag is as it was read.
        let name = name_of(&due.key);
        let is_unchanged = Compare::mod_revision(key(&name)).eq(due.mod_revision);
        let switch_off = flags.put_op(&name, &Flag { on: false, off_at: None })?;
        let reply = leadership.txn().when(is_unchanged).then(switch_off).commit().await?;
        off += u64::from(reply.succeeded);
    }
    Ok(off)
}
