//! What is said of a run, and how it comes of what its judges say.

use crate::process::HarnessError;
use crate::workload::{Control, Exhibit, Finding, Judgement};

/// What is said of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All is well.
    Ok(String),
    /// Bowline did what it must not.
    Violation(String),
    /// The checker's budget ended, or the checker failed.
    Undecided(String),
    /// It says nothing: too little happened, or the harness could not go on.
    Invalid(String),
    /// This machine cannot do it.
    Skipped(String),
}

impl Verdict {
    /// In one word.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Ok(_) => "ok",
            Verdict::Violation(_) => "violation",
            Verdict::Undecided(_) => "undecided",
            Verdict::Invalid(_) => "invalid",
            Verdict::Skipped(_) => "skipped",
        }
    }

    /// In a few.
    pub fn why(&self) -> &str {
        let (Verdict::Ok(why)
        | Verdict::Violation(why)
        | Verdict::Undecided(why)
        | Verdict::Invalid(why)
        | Verdict::Skipped(why)) = self;
        why
    }

    /// What it comes to where it is a control's: it must fail.
    #[must_use]
    pub(crate) fn of_control(self) -> Self {
        match self {
            Verdict::Ok(why) => Verdict::Invalid(format!("the control has not failed: {why}")),
            Verdict::Violation(why) => Verdict::Ok(format!("it has failed, as it must: {why}")),
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

/// A member that stops by itself, dies or hangs is Bowline's fault; everything else is the harness's or the machine's.
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

/// What the judges say of a run that came to its end.
pub(crate) fn judge(exhibits: &[Exhibit], control: Option<Control>, pages: &mut Pages) -> Verdict {
    let judged = exhibits.iter().map(|exhibit| said_of(exhibit, pages)).reduce(Judgement::and);
    let nobody = || Verdict::Invalid("nobody judges what was seen".to_owned());
    let verdict = judged.map_or_else(nobody, Verdict::from);
    if control.is_some() { verdict.of_control() } else { verdict }
}

/// The same of one that did not, and came to `verdict`: what was seen until then may be a violation all the same. What a
/// control shows before its end says nothing.
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
            Verdict::Violation(format!("{seen} (and the run did not come to its end: {why})"))
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
    use bowline::check::{History, Operation, Register, RegisterCall, RegisterReply, linear};

    use crate::workload::budget;

    const CONTROL: Control = Control { under: "none", may_stop: false };

    /// A register of which somebody read this.
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
        Exhibit::complaints("sums", vec!["#3 sees 801 in all".to_owned()])
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
