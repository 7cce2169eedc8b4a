//! Tests of the size of counterexamples in long histories whose operations depend on each other.

use std::sync::Arc;

use super::judged::{Silencing, let_off, silenced};
use super::small::Random;
use crate::models::CurrentLeader;
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

fn value(number: u64) -> Value {
    Value::Number(number as i64)
}

/// Returns a lock that is acquired, refused and released in turn. At the end it is held twice, or has an old token.
fn locks(n: u64, is_fenced: bool) -> History<MutexCall, MutexReply> {
    let mut all = Sequence::new();
    let acquire = |owner: u64| MutexCall::Acquire { owner: value(owner % 5) };
    let acquired = |token: u64| MutexReply::Acquired { token: is_fenced.then_some(token) };
    for i in 1..n {
        all.push(acquire(i), acquired(i));
        all.push(acquire(i + 1), MutexReply::Refused);
        all.push(MutexCall::Release { owner: value(i % 5) }, MutexReply::Released);
    }
    all.push(acquire(2), acquired(n / 2));
    if !is_fenced {
        all.push(acquire(3), acquired(0));
    }
    all.history
}

/// Returns a semaphore of two permits, of which three are held at the end.
fn permits(n: u64) -> History<SemaphoreCall, SemaphoreReply> {
    let mut all = Sequence::new();
    let acquire = |owner| SemaphoreCall::Acquire { owner: value(owner), permits: 1 };
    for i in 1..n {
        all.push(acquire(i % 5), SemaphoreReply::Done);
        if i > 1 {
            let owner = value((i - 1) % 5);
            all.push(SemaphoreCall::Release { owner, permits: 1 }, SemaphoreReply::Done);
        }
    }
    all.push(acquire(9), SemaphoreReply::Done);
    all.push(acquire(8), SemaphoreReply::Done);
    all.history
}

/// Returns a queue that delivers `last` at the end, which is not its first value.
fn queue(n: u64, last: u64) -> History<QueueCall, QueueReply> {
    let mut all = Sequence::new();
    for i in 1..n {
        all.push(QueueCall::Put(value(i)), QueueReply::Put);
        if i > 2 {
            all.push(QueueCall::Take, QueueReply::Taken(Some(value(i - 2))));
        }
    }
    all.push(QueueCall::Take, QueueReply::Taken(Some(value(last))));
    all.history
}

/// Returns a store with compare-and-sets and a stale read at the end.
fn store(n: u64, with_revisions: bool) -> History<KvCall, KvReply> {
    let mut all = Sequence::new();
    let mut revision = 1;
    let cas = |key, expect, value| KvCall::CompareAndSet { key, expect: Some(expect), value };
    for i in 1..n {
        let key: Arc<str> = ["a", "b", "c"][(i % 3) as usize].into();
        let mut push = |call: KvCall, seen: Seen, now: u64| {
            all.push(call, KvReply { seen, revision: with_revisions.then_some(now) });
        };
        let put = revision + 1;
        revision += 2;
        push(KvCall::Put { key: key.clone(), value: value(i) }, Seen::Written, put);
        push(cas(key.clone(), put, value(i + 1_000)), Seen::Changed(true), revision);
        push(cas(key.clone(), put, value(i + 2_000)), Seen::Changed(false), revision);
        let seen = Seen::Read { value: Some(value(i + 1_000)), modified: None };
        push(KvCall::Get { key }, seen, revision);
    }
    let stale = value(1_000 + n / 6 * 3);
    let seen = Seen::Read { value: Some(stale), modified: None };
    all.push(KvCall::Get { key: "a".into() }, KvReply { seen, revision: None });
    all.history
}

/// Returns an election with an observation of an old leader at the end.
fn election(n: u64, is_fenced: bool) -> History<ElectionCall, ElectionReply> {
    let mut all = Sequence::new();
    let token = |i: u64| is_fenced.then_some(i);
    let leader = |i: u64| {
        let (candidate, value) = (value(i % 5), value(i));
        ElectionReply::Leader(Some(CurrentLeader { candidate, value, token: token(i) }))
    };
    for i in 1..n {
        let (candidate, other) = (value(i % 5), value((i + 1) % 5));
        let campaign = ElectionCall::Campaign { candidate: candidate.clone(), value: value(i) };
        all.push(campaign, ElectionReply::Elected { token: token(i) });
        all.push(ElectionCall::Leader, leader(i));
        let proclaim = ElectionCall::Proclaim { candidate: other, value: value(1) };
        all.push(proclaim, ElectionReply::Refused);
        if i + 1 < n {
            all.push(ElectionCall::Resign { candidate }, ElectionReply::Done);
        }
    }
    all.push(ElectionCall::Leader, leader(n / 2));
    all.history
}

#[test]
fn long_histories_of_each_model_need_few_operations() {
    for n in [10, 100, 400] {
        for flag in [false, true] {
            let model = MutexModel { holds_max: 1, is_fenced: flag };
            reason(&model, &format!("mutex {flag} {n}"), &locks(n, flag));
            reason(&Kv::default(), &format!("store {flag} {n}"), &store(n, flag));
            let model = ElectionModel { is_fenced: flag };
            reason(&model, &format!("election {flag} {n}"), &election(n, flag));
        }
        reason(&SemaphoreModel { permits: 2 }, &format!("semaphore {n}"), &permits(n));
        reason(&QueueModel, &format!("queue, delivered again, {n}"), &queue(n, n / 2));
        reason(&QueueModel, &format!("queue, not the first, {n}"), &queue(n, n - 1));
    }
}
