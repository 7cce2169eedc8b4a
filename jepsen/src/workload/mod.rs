//! Workloads: the calls that clients make, and the checks of the replies.
//!
//! A workload belongs to one run. The workload runs the steps of each client ([`Client`]), records them in
//! [`Book`](crate::ledger::Book)s, and reads the final state. Each record is passed to a checker as an [`Exhibit`].
//! The public checkers of `bowline_check` are used wherever one fits.
//!
//! To write a workload, copy `register.rs`, which uses a public checker, or `counter.rs`, which has a check of its own.
//! Register it here with `mod` and an entry in [`ALL`]. [`Kind`] states how many clients each member has, and how often
//! each operation must succeed per minute.
//!
//! - `caller.call` sends a request and returns `Miss::Failed` (no effect, ever) or `Miss::Unknown`. A new kind of
//!   request needs a variant in `src/crates/fleet/src/calls.rs` and an arm in `client.rs` and
//!   `jepsen/src/server/mod.rs`, or a reason in `over.rs`.
//! - `caller.operation` records call, outcome and times in a `Book`. Use `.map_err(Miss::harmless)?` for reads before
//!   the write.
//! - `exhibits` returns the histories. Prefer a public checker and `Exhibit::new`, so that `bowline check` can read the
//!   histories. `Exhibit::of_our_own` runs your own check, which needs its own tests, with good and bad histories.
//! - `linear` needs few operations for each object: use a new key after some hundreds of operations.
//! - If a hold can end by itself, record its end as an operation of unknown outcome that begins when the hold was last
//!   seen (`lock.rs`).
//!
//! Run the workload, and make it fail once with a wrong reply. Add it to the table in `docs/assurance/harness.md`, which
//! `tests/tidy` checks.

mod append;
mod bank;
mod counter;
mod election;
mod exhibit;
mod lease;
mod lock;
mod locked_set;
mod membership;
mod queue;
mod register;
mod set;
mod watch;

use bowline_check::{Budget, Verdict};

use crate::caller::{Caller, Miss};
use crate::fleet::{Compaction, Setup};

pub(crate) use exhibit::words_of;
pub use exhibit::{Exhibit, Finding};

/// The result of checking a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// Everything is correct; a short description of what was observed.
    Ok(String),
    /// A promise was broken.
    Violation(String),
    /// The checker ran out of budget. An undecided check is not a pass.
    Undecided(String),
}

impl Judgement {
    /// Converts the verdict of a checker.
    pub fn of(verdict: &Verdict, well: impl Into<String>) -> Self {
        match verdict {
            Verdict::Ok => Self::Ok(well.into()),
            Verdict::Violation(why) => Self::Violation(why.to_string()),
            Verdict::Undecided { .. } => Self::Undecided(verdict.to_string()),
        }
    }

    /// Returns a violation if there are complaints. Shows some of them.
    pub fn of_complaints(problems: Vec<String>, well: impl Into<String>) -> Self {
        const SHOWN_MAX: usize = 10;
        if problems.is_empty() {
            return Self::Ok(well.into());
        }
        let more = problems.len().saturating_sub(SHOWN_MAX);
        let mut said = problems;
        said.truncate(SHOWN_MAX);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        Self::Violation(said.join("; "))
    }

    /// Returns the worse of two results. If both are ok, joins their descriptions.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ok(one), Self::Ok(other)) => Self::Ok(format!("{one}; {other}")),
            (violation @ Self::Violation(_), _) | (_, violation @ Self::Violation(_)) => violation,
            (Self::Ok(_), worse) | (worse, _) => worse,
        }
    }
}

/// One client, from the first step to the last.
pub trait Client: Send {
    /// Runs one operation, or a few related ones.
    fn step(&mut self, caller: &mut Caller<'_>);

    /// Runs after the last step, when all faults have ended: gives up all holds.
    fn end(&mut self, _caller: &mut Caller<'_>) {}
}

/// A period of a run, from start to end.
pub type Span = (u64, u64);

/// A workload.
pub trait Workload: Send + Sync {
    /// Changes the setup of the members before they are started.
    fn prepare(&self, _setup: &mut Setup) {}

    /// Prepares the store before the load.
    ///
    /// # Errors
    /// Returns an error if that fails.
    fn begin(&self, _caller: &mut Caller<'_>) -> Result<(), Miss> {
        Ok(())
    }

    /// Creates a client. Clients are numbered from 0.
    fn client<'a>(&'a self, number: u64) -> Box<dyn Client + 'a>;

    /// Reads the final state after the load, when all faults and all clients have ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the final state could not be read.
    fn conclude(&self, _caller: &mut Caller<'_>) -> Result<(), Miss> {
        Ok(())
    }

    /// Receives the compactions that were requested during the load, for example by a nemesis. Times are on the clock
    /// of the run. Called before the checks.
    fn hears_of(&self, _compactions: Vec<Compaction>) {}

    /// Receives the periods of faults and leader changes during the load. Times are on the clock of the run. Called
    /// before the checks.
    fn was_disturbed(&self, _spans: Vec<Span>) {}

    /// Returns the histories with their checkers. If a run ends early, the history up to then is checked. A missing
    /// final state ([`conclude`](Self::conclude)) is not a violation then, but earlier violations count.
    fn exhibits(&self) -> Vec<Exhibit>;
}

/// An entry in the list of workloads.
pub struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// One sentence on the clients' calls and on the promise that is checked.
    pub about: &'static str,
    /// Kinds of operations, each with the minimum number of successful operations per minute of load.
    pub least: &'static [(&'static str, u64)],
    /// Number of clients per member.
    pub clients: u64,
    /// Set for a control: a workload that must fail, as proof that the harness can detect such a failure.
    pub control: Option<Control>,
    /// Creates the workload for one run.
    pub make: fn() -> Box<dyn Workload>,
}

/// The conditions under which a control must fail. Its checker looks for violations as usual; the run inverts the
/// result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// Name of the nemesis.
    pub under: &'static str,
    /// Whether the control also counts as failed if a member stops by itself or does not start again.
    pub may_stop: bool,
}

/// Every workload.
pub const ALL: &[Kind] = &[
    register::KIND,
    register::LOCAL,
    set::KIND,
    set::UNSYNCED,
    append::KIND,
    bank::KIND,
    counter::KIND,
    watch::KIND,
    lease::KIND,
    lock::MUTEX,
    lock::AGAIN,
    lock::FENCED,
    lock::PERMITS,
    locked_set::GUARDED,
    locked_set::UNGUARDED,
    election::KIND,
    queue::KIND,
    membership::KIND,
];

/// Maximum number of steps of a search for an order. The search takes a few minutes at most. After this many steps,
/// the result is undecided.
const STEPS_MAX: u64 = 10_000_000;

/// Returns a budget of [`STEPS_MAX`] steps.
pub(crate) fn budget() -> Budget<'static> {
    Budget { steps: STEPS_MAX, ..Budget::default() }
}

/// Returns the workload with this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}
