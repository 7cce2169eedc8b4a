//! Compares the rules for holds with a check of every pair and every moment, on thousands of small random histories.

use super::small::Random;
use crate::intervals::{self, HoldCall, HoldKind, HoldReply, Holds};
use crate::{History, Operation, Outcome, Value};

/// Number of histories for each set of rules.
const HISTORIES: u64 = 4_000;

type Beliefs = History<HoldCall, HoldReply>;

fn draw(random: &mut Random) -> Beliefs {
    let mut token = 0;
    let mut at = 0;
    let holds = 2 + random.below(4);
    let hold = |_| {
        at += random.below(8);
        token += random.below(4);
        let kind = match random.below(4) {
            0 | 1 => HoldKind::Write,
            2 => HoldKind::Read,
            _ => HoldKind::Permits(1 + random.below(2)),
        };
        let owner = Value::from(random.below(3) as i64);
        let told = (random.below(5) > 0).then_some(token + 1 - random.below(2));
        let end = at + random.below(6);
        let call = HoldCall::Hold { owner, kind, token: told };
        match random.below(8) {
            0 => Operation::unknown(at, call),
            1 => Operation::failed(at, call),
            _ => Operation::ok(at, end, call, HoldReply { lost: random.below(3) == 0 }),
        }
    };
    (0..holds).map(hold).collect()
}

/// Returns the begin and the end of a hold that its owner believed in, and whether it was lost.
fn span(operation: &Operation<HoldCall, HoldReply>) -> Option<(i128, i128, bool)> {
    let begin = i128::from(operation.invoked.0);
    match operation.outcome {
        Outcome::Failed { .. } => None,
        Outcome::Unknown { .. } => Some((begin, begin, false)),
        Outcome::Ok { at, reply } => Some((begin, i128::from(at.0), reply.lost)),
    }
}

/// Returns whether all rules hold, by checking each pair and each moment.
fn is_fine(rules: &Holds, history: &Beliefs) -> bool {
    let slack = i128::from(rules.slack);
    let delay = i128::from(rules.lock_delay) * i128::from(100 - rules.drift_percent) / 100;
    let delay = delay - slack;
    for (index, first) in history.iter().enumerate() {
        for (other, second) in history.iter().enumerate() {
            let (Some(one), Some(two)) = (span(first), span(second)) else { continue };
            let HoldCall::Hold { owner, kind, token } = &first.call;
            let HoldCall::Hold { owner: rival, kind: how, token: told } = &second.call;
            if index == other || *kind != HoldKind::Write && *how != HoldKind::Write {
                continue;
            }
            let is_shared = rules.is_reentrant && owner == rival;
            if !is_shared && one.0 + slack < two.1 && two.0 + slack < one.1 {
                return false;
            }
            if let (Some(token), Some(told)) = (token, told)
                && !is_shared
                && one.0 + slack < two.0
                && told <= token
            {
                return false;
            }
            let is_both = *kind == HoldKind::Write && *how == HoldKind::Write;
            if let (Some(token), Some(told)) = (token, told)
                && is_shared
                && is_both
                && (one.0, index) < (two.0, other)
                && told < token
            {
                return false;
            }
            let is_later = (one.0, index) < (two.0, other);
            let is_one_hold = is_shared && token == told;
            if one.2 && is_later && !is_one_hold && two.0 < one.1 + delay {
                return false;
            }
        }
    }
    // Holds that overlap pairwise for every possible difference of the clocks have a moment in common.
    let permits = |index: &usize| match history[*index].call {
        HoldCall::Hold { kind: HoldKind::Permits(permits), .. } => {
            span(&history[*index]).map(|_| permits)
        }
        HoldCall::Hold { .. } => None,
    };
    let overlap = |one: &usize, other: &usize| {
        let (one, other) = (span(&history[*one]), span(&history[*other]));
        one.zip(other)
            .is_some_and(|(one, other)| one.0 + slack < other.1 && other.0 + slack < one.1)
    };
    (0..1_u32 << history.len()).all(|some| {
        let some: Vec<usize> = (0..history.len()).filter(|index| some & 1 << index > 0).collect();
        let is_one_moment = some
            .iter()
            .enumerate()
            .all(|(place, one)| some[place + 1..].iter().all(|other| overlap(one, other)));
        !is_one_moment || some.iter().filter_map(permits).sum::<u64>() <= rules.permits
    })
}

fn judge(rules: Holds) {
    let (mut fine, mut broken) = (0, 0);
    for seed in 0..HISTORIES {
        let history = draw(&mut Random(seed * 1_000_003));
        let verdict = intervals::holds(&rules, &history);
        let told = || format!("seed {seed}: {verdict}\n{history:#?}");
        assert_eq!(verdict.is_ok(), is_fine(&rules, &history), "{}", told());
        let Some(reason) = verdict.violation() else {
            fine += 1;
            continue;
        };
        broken += 1;
        // The operations of the reason are a violation on their own, and each of them is needed.
        let kept = |but: Option<usize>| {
            let kept = reason.operations.iter().filter(|index| Some(**index) != but);
            kept.map(|index| history[*index].clone()).collect::<Beliefs>()
        };
        assert!(!is_fine(&rules, &kept(None)), "{}", told());
        for index in &reason.operations {
            assert!(is_fine(&rules, &kept(Some(*index))), "#{index} is not needed: {}", told());
        }
    }
    assert!(fine * 10 >= HISTORIES && broken * 10 >= HISTORIES, "{fine} fine, {broken} broken");
}

#[test]
fn holds_agree_with_pairwise_checks() {
    judge(Holds { permits: 2, ..Holds::default() });
}

#[test]
fn reentrant_holds_agree_with_pairwise_checks() {
    judge(Holds { is_reentrant: true, permits: 2, ..Holds::default() });
}

#[test]
fn holds_with_clock_skew_agree_with_pairwise_checks() {
    judge(Holds { slack: 2, permits: 2, ..Holds::default() });
}

#[test]
fn lost_holds_with_clock_skew_agree_with_pairwise_checks() {
    judge(Holds { slack: 3, lock_delay: 2, permits: 2, ..Holds::default() });
}

#[test]
fn holds_with_a_lock_delay_agree_with_pairwise_checks() {
    let delayed = Holds { lock_delay: 6, drift_percent: 50, ..Holds::default() };
    judge(Holds { slack: 1, permits: 2, ..delayed });
}
