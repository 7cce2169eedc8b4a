//! Draws small random histories: a correct run, in which one detail may be changed afterwards. About half of the
//! histories have no explanation.

use crate::{
    At, History, Kv, KvCall, KvReply, Model, MutexCall, MutexModel, MutexReply, Operation, Outcome,
    QueueCall, QueueModel, QueueReply, Register, RegisterCall, RegisterReply, SemaphoreCall,
    SemaphoreModel, SemaphoreReply, Value, models::Seen,
};

/// A random number generator with a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn value(&mut self) -> Value {
        Value::Number(self.below(3) as i64)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// A model that can draw random calls and list all relevant replies.
pub(crate) trait Sample: Model {
    fn call(&self, random: &mut Random) -> Self::Call;
    fn replies(&self, call: &Self::Call) -> Vec<Self::Reply>;
}

/// Returns a few values, and none.
fn values() -> impl Iterator<Item = Option<Value>> {
    [None, Some(Value::Number(0)), Some(Value::Number(1)), Some(Value::Number(2))].into_iter()
}

impl Sample for Register {
    fn call(&self, random: &mut Random) -> RegisterCall {
        let value = |random: &mut Random| random.percent(90).then(|| random.value());
        match random.below(5) {
            0 | 1 => RegisterCall::Read,
            2 | 3 => RegisterCall::Write(value(random)),
            _ => RegisterCall::CompareAndSet { expect: value(random), value: value(random) },
        }
    }

    fn replies(&self, call: &RegisterCall) -> Vec<RegisterReply> {
        match call {
            RegisterCall::Read => values().map(RegisterReply::Read).collect(),
            RegisterCall::Write(_) => vec![RegisterReply::Written],
            RegisterCall::CompareAndSet { .. } => {
                [true, false].map(|swapped| RegisterReply::Compared { swapped }).into()
            }
        }
    }
}

impl Sample for MutexModel {
    fn call(&self, random: &mut Random) -> MutexCall {
        let owner = Value::Number(random.below(2) as i64);
        match random.below(5) {
            0..3 => MutexCall::Acquire { owner },
            _ => MutexCall::Release { owner },
        }
    }

    fn replies(&self, call: &MutexCall) -> Vec<MutexReply> {
        let mut replies = vec![MutexReply::Refused];
        match call {
            MutexCall::Acquire { .. } if self.is_fenced => {
                replies.extend((1..5).map(|token| MutexReply::Acquired { token: Some(token) }));
            }
            MutexCall::Acquire { .. } => replies.push(MutexReply::Acquired { token: None }),
            MutexCall::Release { .. } => replies.push(MutexReply::Released),
        }
        replies
    }
}

impl Sample for SemaphoreModel {
    fn call(&self, random: &mut Random) -> SemaphoreCall {
        let (owner, permits) = (Value::Number(random.below(2) as i64), 1 + random.below(2));
        match random.below(5) {
            0..3 => SemaphoreCall::Acquire { owner, permits },
            _ => SemaphoreCall::Release { owner, permits },
        }
    }

    fn replies(&self, _call: &SemaphoreCall) -> Vec<SemaphoreReply> {
        vec![SemaphoreReply::Done, SemaphoreReply::Refused]
    }
}

impl Sample for QueueModel {
    fn call(&self, random: &mut Random) -> QueueCall {
        match random.below(2) {
            0 => QueueCall::Put(random.value()),
            _ => QueueCall::Take,
        }
    }

    fn replies(&self, call: &QueueCall) -> Vec<QueueReply> {
        match call {
            QueueCall::Put(_) => vec![QueueReply::Put],
            QueueCall::Take => values().map(QueueReply::Taken).collect(),
        }
    }
}

impl Sample for Kv {
    fn call(&self, random: &mut Random) -> KvCall {
        let key = (*random.pick(&["a", "b"])).into();
        match random.below(6) {
            0 | 1 => KvCall::Put { key, value: random.value() },
            2 | 3 => KvCall::Get { key },
            4 => KvCall::Delete { key },
            _ => {
                let expect = random.percent(70).then(|| 2 + random.below(3));
                KvCall::CompareAndSet { key, expect, value: random.value() }
            }
        }
    }

    fn replies(&self, call: &KvCall) -> Vec<KvReply> {
        let seen: Vec<Seen> = match call {
            KvCall::Put { .. } => vec![Seen::Written],
            KvCall::Get { .. } => values()
                .flat_map(|value| {
                    let mut modified: Vec<Option<u64>> = vec![None];
                    if value.is_some() {
                        modified.extend((2..8).map(Some));
                    }
                    modified
                        .into_iter()
                        .map(move |modified| Seen::Read { value: value.clone(), modified })
                })
                .collect(),
            KvCall::Delete { .. } | KvCall::CompareAndSet { .. } => {
                vec![Seen::Changed(false), Seen::Changed(true)]
            }
        };
        let revisions = std::iter::once(None).chain((1..8).map(Some));
        let all = revisions.flat_map(|revision| {
            seen.iter().map(move |seen| KvReply { seen: seen.clone(), revision })
        });
        all.collect()
    }
}

/// Draws a history of at least three and at most `operations_max` operations by about three processes.
pub(crate) fn history<M: Sample>(
    model: &M,
    random: &mut Random,
    operations_max: u64,
) -> History<M::Call, M::Reply> {
    let count = 3 + random.below(operations_max - 2);
    // The range of times is small, so that some times are equal. Some histories have short operations, so that they are
    // nearly sequential.
    let width = *random.pick(&[2, 5, 12]);
    let mut drawn: Vec<(u64, u64, u64, M::Call)> = (0..count)
        .map(|number| {
            let invoked = number * 3 + random.below(4);
            let completed = invoked + random.below(width);
            let effect = invoked + random.below(completed - invoked + 1);
            (effect, invoked, completed, model.call(random))
        })
        .collect();
    drawn.sort_by_key(|(effect, ..)| *effect);
    let mut state = model.initial();
    let mut history: History<M::Call, M::Reply> = Vec::new();
    let mut next = Vec::new();
    for (number, (_, invoked, completed, call)) in drawn.into_iter().enumerate() {
        let fate = random.below(100);
        if fate < 5 {
            history.push(Operation::failed(invoked, call));
            continue;
        }
        if fate < 13 {
            history.push(Operation::unknown(invoked, call));
            continue;
        }
        let possible: Vec<M::Reply> = model
            .replies(&call)
            .into_iter()
            .filter(|reply| {
                next.clear();
                model.step(&state, &call, Some(reply), &mut next);
                !next.is_empty()
            })
            .collect();
        if possible.is_empty() {
            // No listed reply is possible because all tokens are used up.
            history.push(Operation::failed(invoked, call));
            continue;
        }
        let reply = random.pick(&possible).clone();
        next.clear();
        model.step(&state, &call, Some(&reply), &mut next);
        state = random.pick(&next).clone();
        history.push(if fate < 25 {
            Operation::unknown(invoked, call)
        } else {
            Operation::ok(invoked, completed, call, reply).by(number as u64)
        });
    }
    if random.percent(75) {
        for _ in 0..1 + random.below(4) {
            spoil(model, random, &mut history);
        }
    }
    history
}

/// Changes one detail that may or may not matter.
fn spoil<M: Sample>(model: &M, random: &mut Random, history: &mut History<M::Call, M::Reply>) {
    let place = random.below(history.len() as u64) as usize;
    let operation = &mut history[place];
    let call = operation.call.clone();
    let latest = operation.invoked.0 + 20;
    match (random.below(8), &mut operation.outcome) {
        (0, outcome @ Outcome::Ok { .. }) => *outcome = Outcome::Failed { at: None },
        (1 | 2, Outcome::Ok { at, .. }) => {
            operation.invoked = At(random.below(latest));
            *at = At(operation.invoked.0 + random.below(3));
        }
        (_, Outcome::Ok { reply, .. }) => *reply = random.pick(&model.replies(&call)).clone(),
        (_, outcome) => *outcome = Outcome::Failed { at: None },
    }
}
