//! A history together with its checker. A run has one or several exhibits. For each exhibit with a violation, the
//! report directory contains the history, in the format that `bowline check` reads, and the HTML page of the checker.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bowline_check::lines::{self, Written};
use bowline_check::page::Page;
use bowline_check::{History, Verdict};
use serde::Serialize;

use super::Judgement;
use crate::ledger;

/// A history and its checker.
pub struct Exhibit {
    /// Name of the history, used in the file name.
    pub name: &'static str,
    /// Arguments with which `bowline check` checks the history again, or `None` if the workload has its own checker.
    pub check: Option<&'static str>,
    judge: Box<dyn Fn() -> Finding>,
    lines: Box<dyn Fn() -> String>,
}

/// The result of a check.
pub struct Finding {
    /// The verdict.
    pub judgement: Judgement,
    /// The page of the checker for a violation.
    pub page: Option<String>,
}

impl Exhibit {
    /// Returns an exhibit for a public checker.
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
            let well = format!("{} operations of {name} are consistent", judged.len());
            Finding { judgement: Judgement::of(&verdict, well), page }
        };
        let lines = move || history.iter().map(|operation| lines::line(operation) + "\n").collect();
        Self { name, check: Some(check), judge: Box::new(judge), lines: Box::new(lines) }
    }

    /// Returns an exhibit with a checker of the workload, which returns complaints. `well` describes a history
    /// without any.
    pub(super) fn of_our_own<C, R>(
        name: &'static str,
        history: History<C, R>,
        problems: impl Fn(&History<C, R>) -> Vec<String> + 'static,
    ) -> Self
    where
        C: Serialize + 'static,
        R: Serialize + 'static,
    {
        let history = Rc::new(history);
        let judged = Rc::clone(&history);
        let judge = move || {
            let well = format!("{} operations of {name} are consistent", judged.len());
            Finding { judgement: Judgement::of_complaints(problems(&judged), well), page: None }
        };
        let lines = move || ledger::lines(&history);
        Self { name, check: None, judge: Box::new(judge), lines: Box::new(lines) }
    }

    /// Returns an exhibit with further complaints of a workload, in addition to those of a checker.
    pub(crate) fn problems(name: &'static str, problems: Vec<String>) -> Self {
        let said = problems.iter().map(|complaint| format!("# {complaint}\n")).collect::<String>();
        let judge = move || {
            let well = format!("{name} are correct");
            Finding { judgement: Judgement::of_complaints(problems.clone(), well), page: None }
        };
        Self { name, check: None, judge: Box::new(judge), lines: Box::new(move || said.clone()) }
    }

    /// Checks the history. If the checker panics, the result is undecided.
    pub fn judge(&self) -> Finding {
        catch_unwind(AssertUnwindSafe(|| (self.judge)())).unwrap_or_else(|panic| {
            let said = format!("the checker of {} panicked: {}", self.name, words_of(&*panic));
            Finding { judgement: Judgement::Undecided(said), page: None }
        })
    }

    /// Returns the history as JSON lines.
    pub fn lines(&self) -> String {
        (self.lines)()
    }
}

/// Returns the message of a panic.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown reason")
}
