//! A history, and who judges it. A run has one or several; each that does not fit leaves its lines, in the format that
//! `bowline check` reads, and the checker's page.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bowline::check::lines::{self, Written};
use bowline::check::page::Page;
use bowline::check::{History, Verdict};
use serde::Serialize;

use super::Judgement;
use crate::ledger;

/// See the module.
pub struct Exhibit {
    /// What it is of, in a word that may be part of a file's name.
    pub name: &'static str,
    /// What `bowline check` is to be told to judge it again; `None` where the workload has a judge of its own.
    pub check: Option<&'static str>,
    judge: Box<dyn Fn() -> Finding>,
    lines: Box<dyn Fn() -> String>,
}

/// What comes of judging an exhibit.
pub struct Finding {
    /// The verdict.
    pub judgement: Judgement,
    /// The checker's page of a violation.
    pub page: Option<String>,
}

impl Exhibit {
    /// A history that a public checker judges.
    pub(crate) fn new<C>(
        name: &'static str,
        check: &'static str,
        history: History<C, C::Reply>,
        judge: impl Fn(&History<C, C::Reply>) -> Verdict + 'static,
    ) -> Self
    where
        C: Written + Clone + 'static,
        C::Reply: Clone + 'static,
    {
        let history = Rc::new(history);
        let judged = Rc::clone(&history);
        let judge = move || {
            let verdict = judge(&judged);
            let page = verdict.violation().map(|why| Page::new(name).of(&judged, why));
            let well = format!("{} operations of {name} fit", judged.len());
            Finding { judgement: Judgement::of(&verdict, well), page }
        };
        let lines = move || history.iter().map(|operation| lines::line(operation) + "\n").collect();
        Self { name, check: Some(check), judge: Box::new(judge), lines: Box::new(lines) }
    }

    /// A history of which no public checker knows what must be true: what it complains of, and what to say if nothing.
    pub(super) fn of_our_own<C, R>(
        name: &'static str,
        history: History<C, R>,
        complaints: impl Fn(&History<C, R>) -> Vec<String> + 'static,
    ) -> Self
    where
        C: Serialize + 'static,
        R: Serialize + 'static,
    {
        let history = Rc::new(history);
        let judged = Rc::clone(&history);
        let judge = move || {
            let well = format!("{} operations of {name} fit", judged.len());
            Finding { judgement: Judgement::of_complaints(complaints(&judged), well), page: None }
        };
        let lines = move || ledger::lines(&history);
        Self { name, check: None, judge: Box::new(judge), lines: Box::new(lines) }
    }

    /// What else a workload complains of, beside what the checker of another exhibit does.
    pub(crate) fn complaints(name: &'static str, complaints: Vec<String>) -> Self {
        let said =
            complaints.iter().map(|complaint| format!("# {complaint}\n")).collect::<String>();
        let judge = move || {
            let well = format!("{name} are right");
            Finding { judgement: Judgement::of_complaints(complaints.clone(), well), page: None }
        };
        Self { name, check: None, judge: Box::new(judge), lines: Box::new(move || said.clone()) }
    }

    /// Judges it. A judge that panics has not decided.
    pub fn judge(&self) -> Finding {
        catch_unwind(AssertUnwindSafe(|| (self.judge)())).unwrap_or_else(|panic| {
            let said = format!("the judge of {} has failed: {}", self.name, words_of(&*panic));
            Finding { judgement: Judgement::Undecided(said), page: None }
        })
    }

    /// It as JSON lines.
    pub fn lines(&self) -> String {
        (self.lines)()
    }
}

/// What a panic says.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("nobody knows why")
}
