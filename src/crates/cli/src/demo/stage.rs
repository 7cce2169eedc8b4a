//! The state of a running demo: the processes, the ledger, the clock, and a record of all reports. While the scenario
//! waits for its next condition, this module receives reports, shows events, and reacts to Ctrl-C.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::crew::{Crew, News, Seat};
use super::ledger::Ledger;
use super::proof::{Evidence, Store};
use super::timeline::{Event, Figures, Spread, Timeline, ms};
use super::wire::{Fence, Instant, OpId, Order, Point, Report, Worker};

/// Time limit for each condition. An election and the expiry of a lease together take less than five seconds; a busy
/// machine may be slower.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval for checking conditions that are not reported.
const LOOK: Duration = Duration::from_millis(25);

/// Reason why the demo ended early.
#[derive(Debug, Error)]
pub(crate) enum Trouble {
    /// A signal.
    #[error("interrupted by {0}")]
    Interrupted(&'static str),
    /// A problem of the machine.
    #[error("cannot run the demo: {0}")]
    Environment(String),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    /// A condition was not met or a process failed, which disproves Bowline's promise.
    #[error("the demo came to a halt: {0}")]
    Halted(String),
}

impl Trouble {
    /// Returns a conversion for errors that only the machine can cause.
    pub(crate) fn environment(what: &str) -> impl FnOnce(io::Error) -> Trouble {
        move |error| Trouble::Environment(format!("{what}: {error}"))
    }
}

/// A record of all reports.
#[derive(Debug, Default)]
struct Account {
    /// Incarnation of each process that has reported that it runs.
    running: BTreeMap<Seat, u32>,
    leader: Option<Leader>,
    terms_led: BTreeSet<u64>,
    acknowledged: BTreeMap<OpId, u64>,
    refused_by_ledger: BTreeSet<OpId>,
    refused_by_store: BTreeSet<OpId>,
    /// Increments with a final result, for which no more reports follow.
    ended: BTreeSet<OpId>,
    /// Increments with an unknown outcome.
    doubtful: BTreeSet<OpId>,
    /// Number of increments acknowledged only after more than one attempt.
    tried_again: u64,
    holder: Option<Worker>,
    handoffs: u64,
    lingering: Option<Lingering>,
    /// Time since which no increment has been started and acknowledged.
    halted_at: Option<Instant>,
    recovered_after: Option<Duration>,
    resting: BTreeSet<Seat>,
    /// The store of each process as read so far, and whether it is complete.
    stores: BTreeMap<Seat, (Store, bool)>,
    /// Counts of the story itself.
    recoveries: Vec<Duration>,
    late: BTreeSet<OpId>,
    leader_kills: u64,
    holder_kills: u64,
    worked: Duration,
}

/// The leader according to the reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leader {
    pub(crate) seat: Seat,
    life: u32,
    pub(crate) term: u64,
}

/// A worker that pauses while it holds the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lingering {
    pub(crate) seat: Seat,
    pub(crate) op: OpId,
    pub(crate) token: Fence,
}

/// Receives the signals that end a demo. From the creation of this value on, a signal ends the demo in an orderly way,
/// so everything that is created afterwards is cleaned up.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns the name of the next signal.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}

/// The state of a running demo.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) crew: Crew,
    pub(crate) ledger: Ledger,
    timeline: Timeline,
    account: Account,
    signals: Signals,
    /// Start time of the work.
    work_began: Option<Instant>,
}

impl Stage {
    pub(crate) fn set(crew: Crew, ledger: Ledger, timeline: Timeline, signals: Signals) -> Self {
        let (account, work_began) = (Account::default(), None);
        Self { crew, ledger, timeline, account, signals, work_began }
    }

    /// Returns the timeline, for output after the story.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Shows an event of one process, or of the whole demo.
    pub(crate) fn tell(&self, seat: Option<Seat>, event: &Event) -> Result<(), Trouble> {
        let member = seat.map(|seat| self.crew.name(seat));
        self.timeline.tell(member, event).map_err(Trouble::Output)
    }

    /// Waits until `met` holds. `what` describes the condition for the error text.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        met: impl Fn(&Stage) -> bool,
    ) -> Result<(), Trouble> {
        let patience = Instant::now();
        while !met(self) {
            if Instant::now().since(patience) > PATIENCE {
                return Err(Trouble::Halted(format!(
                    "timed out after {PATIENCE:?} while waiting for {what}"
                )));
            }
            self.wait(LOOK).await?;
        }
        Ok(())
    }

    /// Lets time pass.
    pub(crate) async fn pass(&mut self, time: Duration) -> Result<(), Trouble> {
        let since = Instant::now();
        loop {
            let passed = Instant::now().since(since);
            if passed >= time {
                return Ok(());
            }
            self.wait(LOOK.min(time - passed)).await?;
        }
    }

    /// Waits for a report, up to a time limit.
    async fn wait(&mut self, at_most: Duration) -> Result<(), Trouble> {
        tokio::select! {
            signal = self.signals.next() => return Err(Trouble::Interrupted(signal)),
            news = self.crew.news() => self.hear(news)?,
            () = tokio::time::sleep(at_most) => {}
        }
        if let Some(why) = self.ledger.failure() {
            return Err(Trouble::Environment(why));
        }
        if let Some(began) = self.work_began {
            let worked = Instant::now().since(began);
            let increments = self.account.acknowledged.len();
            let rate = increments as f64 / worked.as_secs_f64().max(0.1);
            self.timeline.progress(worked, format!("{increments} increments, {rate:.0}/s"));
        }
        Ok(())
    }

    /// Records a report.
    fn hear(&mut self, News { from, life, report }: News) -> Result<(), Trouble> {
        let present = self.crew.runs(from) && life == self.crew.life(from);
        let Some(report) = report else {
            return match present {
                true => Err(self.fell(from, "has exited")),
                false => Ok(()),
            };
        };
        let account = &mut self.account;
        let event = match report {
            Report::Started => {
                account.running.insert(from, life);
                Event::Started { life }
            }
            Report::Failed { why } => {
                return if present { Err(self.fell(from, &why)) } else { Ok(()) };
            }
            Report::Leads { term } => {
                account.terms_led.insert(term);
                if account.leader.is_none_or(|leader| leader.term < term) {
                    account.leader = Some(Leader { seat: from, life, term });
                }
                Event::Leads { term }
            }
            Report::LeadsNoMore { term } => {
                account.leader.take_if(|leader| leader.term == term);
                Event::LeadsNoMore { term }
            }
            Report::Granted { worker, .. } => {
                account.handoffs += u64::from(account.holder.as_ref() != Some(&worker));
                account.holder = Some(worker);
                return Ok(());
            }
            Report::Lingers { op, token } => {
                account.lingering = Some(Lingering { seat: from, op, token });
                return Ok(());
            }
            Report::Acknowledged { op, count, began, tries } => {
                account.tried_again += u64::from(tries > 1);
                account.ended.insert(op.clone());
                account.acknowledged.insert(op, count);
                match account.halted_at {
                    Some(halted) if began > halted => {
                        let after = Instant::now().since(halted);
                        account.halted_at = None;
                        account.recovered_after = Some(after);
                        Event::Recovered { after_ms: ms(after) }
                    }
                    _ => return Ok(()),
                }
            }
            Report::LedgerRefused { op, token, highest } => {
                account.refused_by_ledger.insert(op.clone());
                Event::LedgerRefused { op: op.to_string(), token, highest }
            }
            Report::StoreRefused { op, doubt } => {
                account.refused_by_store.insert(op.clone());
                if doubt {
                    account.doubtful.insert(op.clone());
                }
                account.ended.insert(op.clone());
                Event::StoreRefused { op: op.to_string() }
            }
            Report::Unknown { op, why } => {
                account.doubtful.insert(op.clone());
                account.ended.insert(op.clone());
                Event::Unknown { op: op.to_string(), why }
            }
            Report::Lost { worker, why } => Event::Lost { worker: worker.0, why },
            Report::Resting => {
                account.resting.insert(from);
                return Ok(());
            }
            Report::Rows { mut rows } => {
                account.stores.entry(from).or_default().0.rows.append(&mut rows);
                return Ok(());
            }
            Report::Store { count, in_line } => {
                let member = self.crew.name(from).to_owned();
                let (store, finished) = account.stores.entry(from).or_default();
                (store.member, store.count, store.in_line) = (member, count, in_line);
                *finished = true;
                Event::Read { increments: store.rows.len() as u64, count }
            }
        };
        self.tell(Some(from), &event)
    }

    /// Returns the error for a process that ended unexpectedly. Before the work starts, it is the machine's fault.
    fn fell(&self, seat: Seat, why: &str) -> Trouble {
        let mut why = format!("{}: {why}", self.crew.name(seat));
        if let Some(words) = self.crew.last_words(seat) {
            why += &format!(" (the last line of its log: {words})");
        }
        match self.work_began {
            None => Trouble::Environment(why),
            Some(_) => Trouble::Halted(why),
        }
    }

    /// Starts a process, and waits until its node runs.
    pub(crate) async fn start(&mut self, seat: Seat) -> Result<(), Trouble> {
        self.crew.start(seat).await.map_err(Trouble::environment("cannot start a process"))?;
        self.until("a node to run", |stage| stage.has_started(seat)).await
    }

    /// Starts all processes, and waits for the first increment.
    pub(crate) async fn start_all(&mut self) -> Result<(), Trouble> {
        for seat in self.crew.seats() {
            let started = self.crew.start(seat).await;
            started.map_err(Trouble::environment("cannot start a process"))?;
        }
        self.until("all nodes to run", |stage| {
            stage.crew.seats().all(|seat| stage.has_started(seat))
        })
        .await?;
        self.until("the first increment", |stage| !stage.account.acknowledged.is_empty()).await?;
        self.work_began = Some(Instant::now());
        Ok(())
    }

    fn has_started(&self, seat: Seat) -> bool {
        self.account.running.get(&seat) == Some(&self.crew.life(seat))
    }

    /// Returns the duration of the work so far.
    pub(crate) fn worked(&self) -> Duration {
        self.work_began.map_or(Duration::ZERO, |began| Instant::now().since(began))
    }

    /// Returns the leader if it is known and running.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.account.leader.filter(|Leader { seat, life, .. }| {
            self.crew.runs(*seat) && self.crew.life(*seat) == *life
        })
    }

    /// Waits until a worker of this process holds the lock and pauses at this point.
    pub(crate) async fn linger(&mut self, seat: Seat, at: Point) -> Result<Lingering, Trouble> {
        self.account.lingering = None;
        self.crew.tell(seat, &Order::Linger { at }).await;
        self.until("a worker to hold the lock", |stage| stage.account.lingering.is_some()).await?;
        Ok(self.account.lingering.take().expect("the value was waited for"))
    }

    /// Waits for the final result of an increment.
    pub(crate) async fn end_of(&mut self, op: &OpId) -> Result<(), Trouble> {
        let what = format!("the end of increment {op}");
        self.until(&what, |stage| stage.account.ended.contains(op)).await
    }

    /// Starts measuring the time until an increment is started and acknowledged.
    pub(crate) fn expect_recovery(&mut self) {
        self.account.halted_at = Some(Instant::now());
        self.account.recovered_after = None;
    }

    /// Waits for the first such increment, and returns the time that it took.
    pub(crate) async fn recovery(&mut self) -> Result<Duration, Trouble> {
        self.until("an increment after a fault", |stage| stage.account.halted_at.is_none()).await?;
        Ok(self.account.recovered_after.expect("the value was waited for"))
    }

    /// Counts a killed leader and the time to recover from it.
    pub(crate) fn count_leader_kill(&mut self, recovered_after: Duration) {
        self.account.leader_kills += 1;
        self.account.recoveries.push(recovered_after);
    }

    /// Counts a killed lock holder.
    pub(crate) fn count_holder_kill(&mut self) {
        self.account.holder_kills += 1;
    }

    /// Counts a holder that was suspended beyond its lease, with its increment.
    pub(crate) fn count_late(&mut self, op: OpId) {
        self.account.late.insert(op);
    }

    /// Waits until all workers rest.
    pub(crate) async fn rest(&mut self) -> Result<(), Trouble> {
        self.account.worked = self.worked();
        self.tell(None, &Event::Resting)?;
        self.crew.tell_all(&Order::Rest).await;
        self.until("all workers to stop", |stage| {
            stage.crew.seats().all(|seat| stage.account.resting.contains(&seat))
        })
        .await
    }

    /// Asks every member to report its store, and waits for the reports.
    pub(crate) async fn read_all(&mut self) -> Result<(), Trouble> {
        self.crew.tell_all(&Order::Read).await;
        self.until("all members to read their stores", |stage| {
            stage.crew.seats().all(|seat| stage.account.stores.get(&seat).is_some_and(|it| it.1))
        })
        .await
    }

    /// Returns the evidence for the verdict.
    pub(crate) fn evidence(&mut self, complaints: Vec<String>) -> Result<Evidence, Trouble> {
        let ledger = self.ledger.read_back();
        let ledger = ledger.map_err(Trouble::environment("cannot read the ledger"))?;
        let account = &mut self.account;
        let by_store = account.refused_by_store.difference(&account.doubtful);
        let refused = account.refused_by_ledger.iter().chain(by_store).cloned();
        Ok(Evidence {
            refused: refused.collect(),
            acknowledged: account.acknowledged.clone(),
            refused_by_store: account.refused_by_store.clone(),
            late: account.late.clone(),
            ledger,
            stores: std::mem::take(&mut account.stores).into_values().map(|it| it.0).collect(),
            kills: account.leader_kills + account.holder_kills,
            complaints,
        })
    }

    /// Returns the statistics of the run.
    pub(crate) fn figures(&self) -> Figures {
        let account = &self.account;
        let worked_s = account.worked.as_secs_f64();
        let per_s = |many: u64| {
            let rate = if worked_s > 0.0 { many as f64 / worked_s } else { 0.0 };
            (rate * 10.0).round() / 10.0
        };
        let acknowledged = account.acknowledged.len() as u64;
        Figures {
            worked_s: (worked_s * 1000.0).round() / 1000.0,
            acknowledged,
            increments_per_s: per_s(acknowledged),
            handoffs: account.handoffs,
            handoffs_per_s: per_s(account.handoffs),
            elections: account.terms_led.len() as u64,
            leader_kills: account.leader_kills,
            holder_kills: account.holder_kills,
            holders_stopped: account.late.len() as u64,
            refused_by_ledger: account.refused_by_ledger.len() as u64,
            refused_by_store: account.refused_by_store.len() as u64,
            unknown: account.doubtful.len() as u64,
            tried_again: account.tried_again,
            recovery_ms: Spread::of(&account.recoveries),
        }
    }
}
