//! What clients do, and what must be true of what they saw.
//!
//! A workload is made for one run. It gives each client its steps ([`Client`]), takes down what they did in
//! [`Book`](crate::ledger::Book)s, and reads what is there in the end. What it has taken down it gives to the judges as
//! [`Exhibit`]s: the public checkers of `bowline::check`, wherever one knows what must be true.
//!
//! To write one: a file here with a type, one line in [`ALL`]. `register.rs` is a plain one that a public checker judges,
//! `counter.rs` one that judges by itself.

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

use bowline::check::{Budget, Verdict};

use crate::caller::{Caller, Miss};
use crate::fleet::{Compaction, Setup};

pub(crate) use exhibit::words_of;
pub use exhibit::{Exhibit, Finding};

/// What a workload says of its run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// All is well; in a few words, what was seen.
    Ok(String),
    /// It is not.
    Violation(String),
    /// The checker's budget ended. It is not a pass.
    Undecided(String),
}

impl Judgement {
    /// What a checker's verdict comes to.
    pub fn of(verdict: &Verdict, well: impl Into<String>) -> Self {
        match verdict {
            Verdict::Ok => Self::Ok(well.into()),
            Verdict::Violation(why) => Self::Violation(why.to_string()),
            Verdict::Undecided { .. } => Self::Undecided(verdict.to_string()),
        }
    }

    /// A violation if there are complaints; some of them are shown.
    pub fn of_complaints(complaints: Vec<String>, well: impl Into<String>) -> Self {
        const SHOWN_MAX: usize = 10;
        if complaints.is_empty() {
            return Self::Ok(well.into());
        }
        let more = complaints.len().saturating_sub(SHOWN_MAX);
        let mut said = complaints;
        said.truncate(SHOWN_MAX);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        Self::Violation(said.join("; "))
    }

    /// The worse of two; what both say, if both are well.
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
    /// One operation, or a few that belong together.
    fn step(&mut self, caller: &mut Caller<'_>);

    /// After the last step, when everything is healed: what is held is given up.
    fn end(&mut self, _caller: &mut Caller<'_>) {}
}

/// From this moment of a run to that.
pub type Span = (u64, u64);

/// See the module.
pub trait Workload: Send + Sync {
    /// What it needs of the members, before they are started.
    fn prepare(&self, _setup: &mut Setup) {}

    /// What is there before the load.
    ///
    /// # Errors
    /// It could not be put there.
    fn begin(&self, _caller: &mut Caller<'_>) -> Result<(), Miss> {
        Ok(())
    }

    /// A client. They are numbered from 0.
    fn client<'a>(&'a self, number: u64) -> Box<dyn Client + 'a>;

    /// What is there after the load, when all has healed and all clients have ended.
    ///
    /// # Errors
    /// It could not be read.
    fn conclude(&self, _caller: &mut Caller<'_>) -> Result<(), Miss> {
        Ok(())
    }

    /// What members were told to forget during the load, by whom else. Said before anything is judged; moments are the run's.
    fn hears_of(&self, _compactions: Vec<Compaction>) {}

    /// When something was broken during the load, or another member came to lead; from when to when, in the run's moments. Said
    /// before anything is judged.
    fn was_disturbed(&self, _spans: Vec<Span>) {}

    /// What was seen, and who judges whether it can be. A run that breaks off is judged by what was seen until then: what
    /// [`conclude`](Self::conclude) has not read does not lack anything, but what was wrong already stays so.
    fn exhibits(&self) -> Vec<Exhibit>;
}

/// A workload in the list of all.
pub struct Kind {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What its clients do and what must be true, in one sentence.
    pub about: &'static str,
    /// The kinds of operations of which some must end well, and how many a minute of load at least.
    pub least: &'static [(&'static str, u64)],
    /// How many clients each member has.
    pub clients: u64,
    /// Whether it is a control, that must fail: if it does not, the harness could not see such a failure.
    pub control: Option<Control>,
    /// A new one, for one run.
    pub make: fn() -> Box<dyn Workload>,
}

/// What a control must fail under. That is what its judge is to find, as if it were none; the run turns it around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// The nemesis.
    pub under: &'static str,
    /// Whether a member that stops by itself, or does not start any more, is such a failure, too.
    pub may_stop: bool,
}

/// Every workload there is.
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

/// What a search for an order may cost: a few minutes of a processor at most, then it is undecided.
const STEPS_MAX: u64 = 10_000_000;

/// See [`STEPS_MAX`].
pub(crate) fn budget() -> Budget<'static> {
    Budget { steps: STEPS_MAX, ..Budget::default() }
}

/// The one of this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}
