//! The verdict on a run, combined from the results of its checks.

use crate::process::HarnessError;
use crate::workload::{Control, Exhibit, Finding, Judgement};

/// The verdict on a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything is correct.
    Ok(String),
    /// Bowline broke a promise.
    Violation(String),
    /// The checker ran out of budget, or failed.
    Undecided(String),
    /// The run proves nothing: too little happened, or the harness could not continue.
    Invalid(String),
    /// This machine does not support the run.
    Skipped(String),
}

impl Verdict {
    /// Returns the name of the verdict.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Ok(_) => "ok",
            Verdict::Violation(_) => "violation",
            Verdict::Undecided(_) => "undecided",
            Verdict::Invalid(_) => "invalid",
            Verdict::Skipped(_) => "skipped",
        }
    }

    /// Returns the reason in a few words.
    pub fn why(&self) -> &str {
        let (Verdict::Ok(why)
        | Verdict::Violation(why)
        | Verdict::Undecided(why)
        | Verdict::Invalid(why)
        | Verdict::Skipped(why)) = self;
        why
    }

    /// Returns the verdict of a control, which must fail.
    #[must_use]
    pub(crate) fn of_control(self) -> Self {
        match self {
            Verdict::Ok(why) => Verdict::Invalid(format!("the control did not fail: {why}")),
            Verdict::Violation(why) => Verdict::Ok(format!("failed as expected: {why}")),
            verdict => verdict,
        }
    }
}

impl From<Judgement> for Verdict {
    fn from(judgement: Judgement) -> Self {
        match judgement {
            Judgement::Ok(why) => Verdict::Ok(why),
            Judgement::Violation(why) => Verdict::Violation(why),
            Judgement::Undecided(why) => Verdict::Undecided(why),
        }
    }
}

/// Classifies an error. If a member stops by itself, dies or hangs, the error is a violation. Every other error is a
/// problem of the harness or the machine.
impl From<&HarnessError> for Verdict {
    fn from(trouble: &HarnessError) -> Self {
        match trouble {
            HarnessError::Hangs(_)
            | HarnessError::Stopped(_)
            | HarnessError::Ended(_)
            | HarnessError::NotBack(_)
            | HarnessError::Backup(_) => Verdict::Violation(trouble.to_string()),
            HarnessError::TooLate(_)
            | HarnessError::System { .. }
            | HarnessError::Tool { .. }
            | HarnessError::Answered { .. } => Verdict::Invalid(trouble.to_string()),
        }
    }
}

/// The pages of violations, by the names of their exhibits.
pub(crate) type Pages = Vec<(&'static str, String)>;

/// Checks a run that is complete.
pub(crate) fn judge(exhibits: &[Exhibit], control: Option<Control>, pages: &mut Pages) -> Verdict {
    let judged = exhibits.iter().map(|exhibit| said_of(exhibit, pages)).reduce(Judgement::and);
    let nobody = || Verdict::Invalid("no checker for the history".to_owned());
    let verdict = judged.map_or_else(nobody, Verdict::from);
    if control.is_some() { verdict.of_control() } else { verdict }
}

/// Checks a run that ended early with `verdict`. The histories are checked because a violation may have been observed
/// before the end. An early result of a control proves nothing.
pub(crate) fn without_end(
    verdict: Verdict,
    exhibits: &[Exhibit],
    control: Option<Control>,
    pages: &mut Pages,
) -> Verdict {
    let Verdict::Invalid(why) = verdict else { return verdict };
    if control.is_some() {
        return Verdict::Invalid(why);
    }
    match exhibits.iter().map(|exhibit| said_of(exhibit, pages)).reduce(Judgement::and) {
        Some(Judgement::Violation(seen)) => {
            Verdict::Violation(format!("{seen} (the run ended early: {why})"))
        }
        _ => Verdict::Invalid(why),
    }
}

fn said_of(exhibit: &Exhibit, pages: &mut Pages) -> Judgement {
    let Finding { judgement, page } = exhibit.judge();
    pages.extend(page.map(|page| (exhibit.name, page)));
    judgement
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_check::{History, Operation, Register, RegisterCall, RegisterReply, linear};

    use crate::workload::budget;

    const CONTROL: Control = Control { under: "none", may_stop: false };

    /// Returns a history of a register with a read of this value.
    fn register(read: i64) -> Exhibit {
        let history = vec![
            Operation::ok(1, 2, RegisterCall::Write(Some(7.into())), RegisterReply::Written),
            Operation::ok(3, 4, RegisterCall::Read, RegisterReply::Read(Some(read.into()))),
        ];
        let judge =
            |history: &History<_, _>| linear::check(&Register::default(), history, budget());
        Exhibit::new("register", "--model register", history, judge)
    }

    fn complaint() -> Exhibit {
        Exhibit::problems("sums", vec!["#3 read a total of 801".to_owned()])
    }

    fn broken_off(exhibits: &[Exhibit], control: Option<Control>) -> (Verdict, usize) {
        let mut pages = Pages::new();
        let trouble = Verdict::from(&HarnessError::TooLate("no door opens".to_owned()));
        (without_end(trouble, exhibits, control, &mut pages), pages.len())
    }

    #[test]
    fn violation_found_before_a_harness_error_wins() {
        for (exhibits, pages) in [([register(7), register(8)], 1), ([register(7), complaint()], 0)]
        {
            let (verdict, left) = broken_off(&exhibits, None);
            assert!(
                matches!(&verdict, Verdict::Violation(why) if why.contains("no door opens")),
                "{verdict:?}"
            );
            assert_eq!(left, pages);
        }
    }

    #[test]
    fn member_hang_is_a_violation_but_a_late_command_is_invalid() {
        let said = |trouble: fn(String) -> HarnessError| Verdict::from(&trouble("late".to_owned()));
        assert!(matches!(said(HarnessError::Hangs), Verdict::Violation(_)));
        assert!(matches!(said(HarnessError::TooLate), Verdict::Invalid(_)));
        let healed = HarnessError::Hangs("late".to_owned()).when_healed();
        assert!(matches!(healed, HarnessError::NotBack(_)));
    }

    #[test]
    fn valid_history_before_a_harness_error_is_invalid() {
        for (exhibit, control) in [(register(7), None), (register(8), Some(CONTROL))] {
            let (verdict, _) = broken_off(&[exhibit], control);
            assert!(
                matches!(&verdict, Verdict::Invalid(why) if why.contains("no door opens")),
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn run_without_a_checker_is_invalid() {
        let said = |exhibits: &[Exhibit], control| judge(exhibits, control, &mut Pages::new());
        assert!(matches!(said(&[], None), Verdict::Invalid(_)));
        assert!(matches!(said(&[], Some(CONTROL)), Verdict::Invalid(_)));
        assert!(matches!(said(&[register(7)], None), Verdict::Ok(_)));
        assert!(matches!(said(&[register(7)], Some(CONTROL)), Verdict::Invalid(_)));
        assert!(matches!(said(&[register(8)], Some(CONTROL)), Verdict::Ok(_)));
    }

    #[test]
    fn panicking_checker_is_undecided_and_hides_no_violation() {
        let fails = || {
            let judge = |_: &History<RegisterCall, RegisterReply>| panic!("of a surprise");
            Exhibit::new("surprise", "--model register", Vec::new(), judge)
        };
        let mut pages = Pages::new();
        let said = judge(&[fails(), register(7)], None, &mut pages);
        assert!(
            matches!(&said, Verdict::Undecided(why) if why.contains("of a surprise")),
            "{said:?}"
        );
        let said = judge(&[fails(), register(8)], None, &mut pages);
        assert!(matches!(said, Verdict::Violation(_)), "{said:?}");
    }
}
