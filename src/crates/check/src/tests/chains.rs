//! Tests of the size of counterexamples in long histories whose operations depend on each other.

use super::judged::{Silencing, let_off, silenced};
use super::small::Random;
use crate::{
    Budget, Counterexample, ElectionCall, ElectionModel, ElectionReply, History, Kv, KvCall,
    KvReply, Model, MutexCall, MutexModel, MutexReply, Operation, Process, QueueCall, QueueModel,
    QueueReply, Register, RegisterCall, RegisterReply, Seen, SemaphoreCall, SemaphoreModel,
    SemaphoreReply, Value, linear,
};

/// Maximum number of operations of a counterexample.
const OPERATIONS_MAX: usize = 8;

/// Maximum number of lines of its text.
const LINES_MAX: usize = 24;

/// Appends operations that do not overlap.
struct Sequence<C, R> {
    at: u64,
    history: History<C, R>,
}

impl<C, R> Sequence<C, R> {
    fn new() -> Self {
        Self { at: 0, history: History::new() }
    }

    fn push(&mut self, call: C, reply: R) {
        let process = self.history.len() as u64 % 5;
        self.history.push(Operation::ok(self.at, self.at + 1, call, reply).by(process));
        self.at += 3;
    }
}

type Registers = Sequence<RegisterCall, RegisterReply>;

impl Registers {
    fn read(&mut self, value: i64) {
        self.push(RegisterCall::Read, RegisterReply::Read(Some(value.into())));
    }

    fn write(&mut self, value: i64) {
        self.push(RegisterCall::Write(Some(value.into())), RegisterReply::Written);
    }

    fn cas(&mut self, expect: i64, value: i64, swapped: bool) {
        let (expect, value) = (Some(expect.into()), Some(value.into()));
        let call = RegisterCall::CompareAndSet { expect, value };
        self.push(call, RegisterReply::Compared { swapped });
    }
}

/// Returns the counterexample, after checking it: with all other operations relaxed, the history is still a violation.
fn reason<M: Model>(model: &M, what: &str, history: &History<M::Call, M::Reply>) -> Counterexample {
    let budget = Budget::default();
    let verdict = linear::check(model, history, budget);
    let reason = verdict.violation().unwrap_or_else(|| panic!("{what}: {verdict}")).clone();
    assert!(reason.is_minimal && reason.operations.len() <= OPERATIONS_MAX, "{what}: {verdict}");
    let text = verdict.to_string();
    assert!(text.lines().count() <= LINES_MAX && text.len() <= 4_000, "{what}: {text}");
    let kept = &reason.operations;
    let again = match reason.dead_end.as_ref().is_some_and(|dead_end| dead_end.silenced > 0) {
        true => linear::check(&Silencing(model), &silenced(model, history, kept), budget),
        false => linear::check(model, &let_off::<M>(history, kept), budget),
    };
    assert!(again.is_violation(), "{what}: {kept:?} are no contradiction: {again}");
    reason
}

fn registers(kind: &str, n: i64) -> History<RegisterCall, RegisterReply> {
    let mut all = Registers::new();
    all.write(0);
    for i in 1..n {
        match kind {
            "writes" => all.write(i),
            "chain of cas" => all.cas(i - 1, i, true),
            "failed cas" => {
                all.write(i);
                all.cas(i - 1, 1_000_000 + i, false);
            }
            _ => {
                all.write(i);
                all.cas(i, 1_000_000 + i, true);
            }
        }
        all.read(if kind == "swapped cas" { 1_000_000 + i } else { i });
    }
    all.read(n / 2);
    all.history
}

#[test]
fn stale_read_after_many_compare_and_sets_needs_few_operations() {
    for n in [10, 20, 100, 1000] {
        for kind in ["writes", "chain of cas", "failed cas", "swapped cas"] {
            let history = registers(kind, n);
            let reason = reason(&Register::default(), &format!("{kind} {n}"), &history);
            let most = if kind == "writes" || kind == "failed cas" { 3 } else { 2 };
            assert!(reason.operations.len() <= most, "{kind} {n}: {reason}");
            assert!(reason.operations.contains(&(history.len() - 1)), "{kind} {n}: {reason}");
        }
    }
}

/// Returns a history of six processes with a stale read near its end.
fn concurrent(operations: u64, seed: u64) -> History<RegisterCall, RegisterReply> {
    let mut random = Random(seed);
    let mut history = History::new();
    let (mut value, mut now) = (0_i64, 0);
    for n in 0..operations {
        now += 2;
        let number = n as i64 + 1;
        let (call, reply) = match random.below(4) {
            0 => (RegisterCall::Write(Some(number.into())), RegisterReply::Written),
            1 => {
                let expect = if random.below(2) == 0 { value } else { value - 1 };
                let call = RegisterCall::CompareAndSet {
                    expect: Some(expect.into()),
                    value: Some(number.into()),
                };
                (call, RegisterReply::Compared { swapped: expect == value })
            }
            _ => (RegisterCall::Read, RegisterReply::Read(Some(value.into()))),
        };
        match reply {
            RegisterReply::Written | RegisterReply::Compared { swapped: true } => value = number,
            _ => {}
        }
        // Each takes effect at `now`.
        let (before, after) = (random.below(8), 1 + random.below(8));
        let lost = random.below(50) == 0;
        history.push(match lost {
            true => Operation::unknown(now.max(before) - before, call),
            false => Operation::ok(now.max(before) - before, now + after, call, reply),
        });
        history.last_mut().expect("it was pushed").process = Process(n % 6);
    }
    let at = now + 100;
    let next = RegisterCall::Write(Some((-1).into()));
    history.push(Operation::ok(at, at + 1, next, RegisterReply::Written));
    let stale = RegisterReply::Read(Some(value.into()));
    history.push(Operation::ok(at + 5, at + 6, RegisterCall::Read, stale));
    history
}

#[test]
fn stale_read_among_concurrent_compare_and_sets_needs_few_operations() {
    let register = Register { first: Some(0.into()) };
    for (operations, seed) in [(30, 1), (300, 2), (1_000, 3), (1_000, 4), (3_000, 5), (3_000, 6)] {
        let what = format!("{operations} operations with seed {seed}");
        let reason = reason(&register, &what, &concurrent(operations, seed));
        assert!(reason.operations.len() <= 3, "{what}: {reason}");
    }
}

#[test]
fn long_histories_of_each_model_need_few_operations() {
    let value = |n: u64| Value::Number(n as i64);
    for n in [10, 100, 400] {
        // A lock.
        for is_fenced in [false, true] {
            let mut all = Sequence::new();
            let token = |n: u64| is_fenced.then_some(n);
            for i in 1..n {
                let owner = value(i % 5);
                all.push(
                    MutexCall::Acquire { owner: owner.clone() },
                    MutexReply::Acquired { token: token(i) },
                );
                all.push(MutexCall::Acquire { owner: value((i + 1) % 5) }, MutexReply::Refused);
                all.push(MutexCall::Release { owner }, MutexReply::Released);
            }
            if is_fenced {
                let token = token(n / 2);
                all.push(MutexCall::Acquire { owner: value(2) }, MutexReply::Acquired { token });
            } else {
                all.push(
                    MutexCall::Acquire { owner: value(2) },
                    MutexReply::Acquired { token: None },
                );
                all.push(
                    MutexCall::Acquire { owner: value(3) },
                    MutexReply::Acquired { token: None },
                );
            }
            reason(
                &MutexModel { holds_max: 1, is_fenced },
                &format!("mutex {is_fenced} {n}"),
                &all.history,
            );
        }
        // A semaphore.
        let mut all = Sequence::new();
        for i in 1..n {
            let owner = value(i % 5);
            all.push(
                SemaphoreCall::Acquire { owner: owner.clone(), permits: 1 },
                SemaphoreReply::Done,
            );
            if i > 1 {
                all.push(
                    SemaphoreCall::Release { owner: value((i - 1) % 5), permits: 1 },
                    SemaphoreReply::Done,
                );
            }
        }
        all.push(SemaphoreCall::Acquire { owner: value(9), permits: 1 }, SemaphoreReply::Done);
        all.push(SemaphoreCall::Acquire { owner: value(8), permits: 1 }, SemaphoreReply::Done);
        reason(&SemaphoreModel { permits: 2 }, &format!("semaphore {n}"), &all.history);
        // A queue.
        for kind in ["again", "order"] {
            let mut all = Sequence::new();
            for i in 1..n {
                all.push(QueueCall::Put(value(i)), QueueReply::Put);
                if i > 2 && !(kind == "order" && i + 2 > n) {
                    all.push(QueueCall::Take, QueueReply::Taken(Some(value(i - 2))));
                }
            }
            let last = if kind == "again" { n / 2 } else { n - 2 };
            all.push(QueueCall::Take, QueueReply::Taken(Some(value(last))));
            reason(&QueueModel, &format!("queue {kind} {n}"), &all.history);
        }
        // A store.
        for with in [false, true] {
            let mut all = Sequence::new();
            let mut revision = 1;
            for i in 1..n {
                let key = |i: u64| ["a", "b", "c"][(i % 3) as usize].into();
                revision += 1;
                let shown = |revision| with.then_some(revision);
                all.push(
                    KvCall::Put { key: key(i), value: value(i) },
                    KvReply { seen: Seen::Written, revision: shown(revision) },
                );
                revision += 1;
                all.push(
                    KvCall::CompareAndSet {
                        key: key(i),
                        expect: Some(revision - 1),
                        value: value(i + 1000),
                    },
                    KvReply { seen: Seen::Changed(true), revision: shown(revision) },
                );
                all.push(
                    KvCall::CompareAndSet {
                        key: key(i),
                        expect: Some(revision - 1),
                        value: value(i + 2000),
                    },
                    KvReply { seen: Seen::Changed(false), revision: shown(revision) },
                );
                all.push(
                    KvCall::Get { key: key(i) },
                    KvReply {
                        seen: Seen::Read { value: Some(value(i + 1000)), modified: None },
                        revision: shown(revision),
                    },
                );
            }
            let stale = 1000 + n / 2 / 3 * 3;
            all.push(
                KvCall::Get { key: "a".into() },
                KvReply {
                    seen: Seen::Read { value: Some(value(stale)), modified: None },
                    revision: None,
                },
            );
            reason(&Kv::default(), &format!("kv {with} {n}"), &all.history);
        }
        // An election.
        for is_fenced in [false, true] {
            let mut all = Sequence::new();
            let token = |i: u64| is_fenced.then_some(i);
            let leader = |i: u64| {
                ElectionReply::Leader(Some(crate::models::CurrentLeader {
                    candidate: value(i % 5),
                    value: value(i),
                    token: token(i),
                }))
            };
            for i in 1..n {
                let candidate = value(i % 5);
                all.push(
                    ElectionCall::Campaign { candidate: candidate.clone(), value: value(i) },
                    ElectionReply::Elected { token: token(i) },
                );
                all.push(ElectionCall::Leader, leader(i));
                all.push(
                    ElectionCall::Proclaim { candidate: value((i + 1) % 5), value: value(1) },
                    ElectionReply::Refused,
                );
                if i + 1 < n {
                    all.push(ElectionCall::Resign { candidate }, ElectionReply::Done);
                }
            }
            all.push(ElectionCall::Leader, leader(n / 2));
            reason(
                &ElectionModel { is_fenced },
                &format!("election {is_fenced} {n}"),
                &all.history,
            );
        }
    }
}
