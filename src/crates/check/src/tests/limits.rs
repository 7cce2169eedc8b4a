//! Tests of the search with large inputs, small budgets, and several objects.

use std::cell::Cell;

use super::small::{self, Random};
use crate::{
    Budget, History, Operation, Outcome, Register, RegisterCall, RegisterReply, Undecided, Verdict,
    linear,
};

type Registers = History<RegisterCall, RegisterReply>;

fn write(value: i64) -> RegisterCall {
    RegisterCall::Write(Some(value.into()))
}

fn saw(value: i64) -> RegisterReply {
    RegisterReply::Read(Some(value.into()))
}

/// Returns concurrent writes of `0..count`, followed by a read of a value that was never written.
fn crowd(count: i64) -> Registers {
    let end = 10 * count as u64;
    let mut history: Registers =
        (0..count).map(|n| Operation::ok(1, end, write(n), RegisterReply::Written)).collect();
    // Adds a read of each written value, so that the search knows only at the end which writes are needed.
    history.extend((0..count).map(|n| Operation::ok(1, end, RegisterCall::Read, saw(n))));
    history.push(Operation::ok(end + 1, end + 2, RegisterCall::Read, saw(-1)));
    history
}

#[test]
fn exhausted_budget_is_undecided() {
    let history = crowd(12);
    let judged = |budget: Budget<'_>| linear::check(&Register::default(), &history, budget);
    let budget = Budget::default();
    let why = |verdict: Verdict| match verdict {
        Verdict::Undecided { why, .. } => Some(why),
        _ => None,
    };
    assert_eq!(why(judged(Budget { steps: 1000, ..budget })), Some(Undecided::Steps));
    let few = Budget { configurations: 100, ..budget };
    assert_eq!(why(judged(few)), Some(Undecided::Configurations));
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() == 3
    };
    let stopped = Budget { stop: Some(&stop), ..budget };
    assert_eq!(why(judged(stopped)), Some(Undecided::Stopped));
    assert_eq!(asked.get(), 3, "no further calls after a stop");
}

#[test]
fn violation_outweighs_an_undecided_object() {
    let mut history = crowd(12);
    history.push(Operation::ok(1, 2, RegisterCall::Read, saw(5)).on("other"));
    let budget = Budget { steps: 1000, ..Budget::default() };
    let verdict = linear::check(&Register::default(), &history, budget);
    let reason = verdict.violation().expect("the other object is broken");
    assert_eq!((reason.object.as_str(), &reason.operations[..]), ("other", &[24 + 1][..]));
}

#[test]
fn objects_impose_no_order_on_each_other() {
    let history = vec![
        Operation::ok(1, 2, write(1), RegisterReply::Written).on("x"),
        Operation::ok(3, 4, RegisterCall::Read, RegisterReply::Read(None)).on("y"),
    ];
    assert!(linear::check(&Register::default(), &history, Budget::default()).is_ok());
}

#[test]
fn single_fault_in_a_long_history_is_found() {
    const COUNT: i64 = 4_000;
    let mut random = Random(7);
    // Five concurrent operations at a time; each read sees the write before it.
    let mut history: Registers = Vec::new();
    for n in 0..COUNT {
        let at = 10 * n as u64;
        let width = 5 + random.below(30);
        history.push(Operation::ok(at, at + 4, write(n), RegisterReply::Written));
        history.push(Operation::ok(at + 5, at + 5 + width, RegisterCall::Read, saw(n)));
        if n % 10 == 0 {
            history.push(Operation::unknown(at + 1, write(-n)));
        }
    }
    let model = Register::default();
    assert_eq!(linear::check(&model, &history, Budget::default()), Verdict::Ok);
    // A read in the middle sees a value that was overwritten long before.
    let stale = history.len() / 2;
    let at = history[stale].invoked.0 + 1_000;
    history.push(Operation::ok(at, at + 1, RegisterCall::Read, saw(3)));
    let verdict = linear::check(&model, &history, Budget::default());
    let reason = verdict.violation().expect("it is stale");
    assert!(reason.operations.contains(&(history.len() - 1)), "{reason}");
    assert!(reason.operations.len() <= 3, "{reason}");
}

#[test]
fn unobserved_unknown_writes_are_cheap() {
    let mut history: Registers = (0..500).map(|n| Operation::unknown(n, write(n as i64))).collect();
    history.push(Operation::ok(600, 601, write(-1), RegisterReply::Written));
    history.push(Operation::ok(602, 603, RegisterCall::Read, saw(7)));
    history.push(Operation::ok(604, 605, RegisterCall::Read, saw(-1)));
    let budget = Budget { steps: 10_000, ..Budget::default() };
    let verdict = linear::check(&Register::default(), &history, budget);
    let reason = verdict.violation().expect("-1 was written once, and before 7 was read");
    assert_eq!(reason.operations, [500, 501, 502]);
    let links: Vec<_> = reason.links.iter().map(|link| (link.before, link.after)).collect();
    assert_eq!(links, [(500, 501), (501, 502)]);
    let expected = r#"object "": not linearizable: no order contains all of #500, #501, #502
  #500  process 0  600 to 601  write -1  → ok
  #501  process 0  602 to 603  read      → 7
  #502  process 0  604 to 605  read      → -1
  #500 before #501: had ended
  #501 before #502: had ended
  500 other operations may take effect at any time after their calls, or never (relaxed)
  after #500, #7 (relaxed), #501 the object holds 7, and #502 cannot be next"#;
    assert_eq!(reason.to_string(), expected);
}

#[test]
fn failed_write_that_was_read_is_named() {
    let read = |at, value| Operation::ok(at, at + 1, RegisterCall::Read, saw(value));
    let failed = Operation::failed(1, write(7));
    let why = |history: Registers| {
        let verdict = linear::check(&Register::default(), &history, Budget::default());
        verdict.violation().expect("nobody wrote the value").why.clone()
    };
    let said = why(vec![failed.clone(), read(3, 7)]);
    let expected =
        "no order contains #1; #0 wrote the value that #1 needs, but is recorded as failed";
    assert_eq!(said, expected);
    let said = why(vec![failed.clone(), read(3, 8)]);
    assert_eq!(said, "no order contains #1");
    // The value may also come from a write of unknown outcome.
    let history = vec![failed, Operation::unknown(2, write(7)), read(3, 7), read(5, 8)];
    assert_eq!(why(history), "no order contains #3");
}

#[test]
fn verdict_is_deterministic() {
    let model = Register::default();
    for seed in 0..200 {
        let history = small::history(&model, &mut Random(seed), 12);
        let first = linear::check(&model, &history, Budget::default());
        assert_eq!(first, linear::check(&model, &history, Budget::default()));
    }
}

#[test]
fn empty_or_failed_history_is_ok() {
    let model = Register::default();
    assert_eq!(linear::check(&model, &Registers::new(), Budget::default()), Verdict::Ok);
    let history = vec![Operation::failed(1, write(1)), Operation::unknown(2, write(2))];
    assert!(history.iter().all(|one| !matches!(one.outcome, Outcome::Ok { .. })));
    assert_eq!(linear::check(&model, &history, Budget::default()), Verdict::Ok);
}
