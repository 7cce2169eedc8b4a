//! Fuzz targets that compare the store with the naive model. The store and the model receive the same commands and must
//! return the same replies.

use std::fmt::Debug;

use bowline::machine::MachineOptions;
use bowline::model::{
    AckWindow, Command, Delete, Incarnation, Item, KeyRange, NodeId, Op, Proposal, Put, Range,
    Revision, RevisionBounds, Sort, SortOrder, SortTarget, Txn,
};
use bytes::Bytes;

use super::Came;
use crate::histories::{self, Authors, Now, Random, TERM};
use crate::naive::Naive;
use crate::subject::{Applied, Real, Subject};

/// The two stores that are compared.
struct Both {
    real: Real,
    naive: Naive,
    now: Now,
}

impl Both {
    fn new(sweep_rows: usize, page_bytes: usize) -> Self {
        let options = MachineOptions { sweep_rows, ..MachineOptions::default() };
        let now = Now { revision: Revision::FIRST, compacted: Revision(0) };
        Self { real: Real::new(options, page_bytes), naive: Naive::new(), now }
    }

    fn apply(&mut self, items: &[Item]) -> Applied {
        let (real, naive) = (self.real.apply(TERM, items), self.naive.apply(TERM, items));
        agree(&items, &real, &naive);
        if let Some((revision, _)) = naive.changes.last() {
            self.now.revision = *revision;
        }
        self.now.compacted = naive.compacted.unwrap_or(self.now.compacted);
        naive
    }

    fn publish(&mut self) {
        self.real.publish();
        self.naive.publish();
    }
}

fn agree<T: PartialEq + Debug>(what: &impl Debug, real: &T, naive: &T) {
    assert_eq!(real, naive, "machine and naive model differ: {what:?}");
}

/// Compares both stores on requests of all kinds, mainly transactions, with reads in between.
pub(super) fn transactions(data: &[u8]) -> Came {
    let random = &mut Random::fed(data);
    let mut both = Both::new(*random.pick(&[0, 1, 64]), *random.pick(&[1, 20, usize::MAX]));
    let mut authors = Authors::new();
    let mut came = Came::Refused;
    while !random.is_exhausted() {
        let items = authors.entry(random, both.now);
        let applied = both.apply(&items);
        if applied.outcomes.iter().any(|(_, outcome)| outcome.is_ok()) {
            came = Came::Through;
        }
        if random.percent(70) {
            both.publish();
        }
        if random.percent(30) {
            let txn = histories::read_txn(random, both.now);
            agree(&txn, &both.real.read_txn(&txn), &both.naive.read_txn(&txn));
        }
        if random.percent(10) {
            let (keys, from) = (histories::keys(random), histories::revision(random, both.now));
            let (real, naive) = (both.real.events(&keys, from), both.naive.events(&keys, from));
            agree(&(keys, from), &real, &naive);
        }
        if random.percent(10) {
            let id = authors.request_id(random);
            agree(&id, &both.real.answer(id), &both.naive.answer(id));
        }
    }
    both.publish();
    let all = Range::new(KeyRange::all());
    agree(&all, &both.real.range(&all), &both.naive.range(&all));
    agree(&"leases", &both.real.leases(), &both.naive.leases());
    came
}

/// Returns a key that consists of few different letters, so that keys are neighbours and prefixes
/// of each other.
fn key(random: &mut Random) -> Bytes {
    (0..=random.below(3)).map(|_| *random.pick(&[0, b'a', b'b', b'y', 0xff])).collect()
}

fn keys(random: &mut Random) -> KeyRange {
    let start = key(random);
    match random.below(6) {
        0 => KeyRange::key(start),
        1 => KeyRange::prefix(start),
        2 => KeyRange::starting_at(start),
        3 => KeyRange::all(),
        _ => KeyRange::between(start, key(random)),
    }
}

/// Compares ranges over rows that were put and deleted.
pub(super) fn ranges(data: &[u8]) -> Came {
    let random = &mut Random::fed(data);
    let mut both = Both::new(*random.pick(&[0, 64]), 20);
    let mut came = Came::Refused;
    for seq in 1..=random.below(12) {
        let change = |random: &mut Random| match random.below(4) {
            0 => Op::Delete(Delete::new(keys(random))),
            _ => Op::Put(Put::new(key(random), vec![b'v'; random.below(3) as usize])),
        };
        // The limits forbid the same key twice in one transaction.
        let command = match random.below(8) {
            0 => Command::Compact(histories::revision(random, both.now)),
            _ => Command::Txn(Txn { success: vec![change(random)], ..Txn::default() }),
        };
        let proposal = Proposal {
            node: NodeId::new(1).expect("not 0"),
            incarnation: Incarnation(1),
            window: AckWindow::default(),
            requests: vec![(seq, command)],
        };
        both.apply(&[Item::Proposal(proposal)]);
    }
    both.publish();
    while !random.is_exhausted() {
        let bound = |random: &mut Random| {
            let is_bound = random.below(4) == 0;
            is_bound.then(|| Revision(1 + random.below(20)))
        };
        let range = Range {
            range: keys(random),
            revision: (random.below(3) == 0).then(|| histories::revision(random, both.now)),
            limit: (random.below(3) == 0).then(|| match random.below(8) {
                7 => u64::MAX,
                few => few,
            }),
            sort: Sort {
                target: *random.pick(&[
                    SortTarget::Key,
                    SortTarget::Version,
                    SortTarget::Create,
                    SortTarget::Mod,
                    SortTarget::Value,
                ]),
                order: *random.pick(&[SortOrder::Ascend, SortOrder::Descend]),
            },
            keys_only: random.below(6) == 0,
            count_only: random.below(6) == 0,
            bounds: RevisionBounds {
                mod_min: bound(random),
                mod_max: bound(random),
                create_min: bound(random),
                create_max: bound(random),
            },
        };
        let naive = both.naive.range(&range);
        if naive.as_ref().is_ok_and(|reply| !reply.kvs.is_empty()) {
            came = Came::Through;
        }
        agree(&range, &both.real.range(&range), &naive);
    }
    came
}

fn drawn(seed: u64, len: u64) -> Vec<u8> {
    let random = &mut Random::new(seed);
    (0..len).map(|_| random.number() as u8).collect()
}

pub(super) fn transaction_seeds() -> Vec<Vec<u8>> {
    (0..40).map(|seed| drawn(seed, 100 + seed * 10)).collect()
}

pub(super) fn range_seeds() -> Vec<Vec<u8>> {
    (0..40).map(|seed| drawn(seed, 60 + seed * 5)).collect()
}
