//! Random values for tests. The same seed gives the same values.
//!
//! Small and extreme numbers are drawn often, lists are short, and every variant and every optional
//! field occurs. The macros of [`declare`](super::declare) draw the types whose encoding they declare.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::model::{
    Access, AckWindow, AlarmChange, Alarms, ClusterId, ClusterVersion, Command, Compare, CompareOp,
    CompareTarget, Delete, DiskId, Incarnation, KeyRange, LeaseId, LogIndex, Member,
    MemberAttributes, MemberRole, Members, NodeId, Outcome, Put, PutLease, PutValue, Range,
    Revision, RevisionBounds, Secret, Sort, SortOrder, SortTarget, SplitMix64, StateHead, Term,
};

/// Maximum depth of lists inside lists. Transactions are such lists.
const DEPTH_MAX: u32 = 6;

/// A source of random values.
pub(crate) struct Sample {
    random: SplitMix64,
    depth: u32,
}

/// A type of which a sample can draw a value.
pub(crate) trait Draw: Sized {
    /// Draws a value that can be encoded.
    fn draw(sample: &mut Sample) -> Self;
}

impl Sample {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed), depth: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.random.next_u64()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Draws any value of a type.
    pub(crate) fn draw<T: Draw>(&mut self) -> T {
        T::draw(self)
    }

    fn list<T>(&mut self, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        if self.depth == DEPTH_MAX {
            return Vec::new();
        }
        self.depth += 1;
        let list = (0..self.below(4)).map(|_| draw(self)).collect();
        self.depth -= 1;
        list
    }
}

macro_rules! draw {
    ($($type:ty, |$sample:ident| $value:expr;)+) => {
        $(impl Draw for $type {
            fn draw($sample: &mut Sample) -> Self {
                $value
            }
        })+
    };
}

draw! {
    u64, |sample| match sample.below(5) {
        0 => 0,
        1 => sample.below(300),
        2 => 1 << sample.below(64),
        3 => u64::MAX - sample.below(2),
        _ => sample.next(),
    };
    usize, |sample| sample.draw::<u64>() as usize;
    bool, |sample| sample.next() & 1 == 1;
    Bytes, |sample| {
        let len = match sample.below(8) {
            0 => 0,
            1 => 200 + sample.below(200),
            _ => sample.below(20),
        };
        (0..len).map(|_| sample.next() as u8).collect()
    };
    String, |sample| {
        let len = sample.below(9);
        (0..len).map(|_| char::from(b'a' + sample.below(26) as u8)).collect()
    };
    Duration, |sample| Duration::from_millis(sample.draw());
    Revision, |sample| Self(sample.draw());
    Term, |sample| Self(sample.draw());
    LogIndex, |sample| Self(sample.draw());
    Incarnation, |sample| Self(sample.draw());
    ClusterVersion, |sample| Self(sample.draw());
    NodeId, |sample| Self::new(sample.draw::<u64>().max(1)).expect("not 0");
    LeaseId, |sample| Self::new(sample.draw::<u64>().max(1)).expect("not 0");
    DiskId, |sample| Self(u128::from(sample.next()) << 64 | u128::from(sample.next()));
    ClusterId, |sample| Self(u128::from(sample.next()) << 64 | u128::from(sample.next()));
    Secret, |sample| Self::new(sample.draw::<Bytes>());
    KeyRange, |sample| match sample.below(3) {
        0 => Self::key(sample.draw::<Bytes>()),
        1 => Self::between(sample.draw::<Bytes>(), sample.draw::<Bytes>()),
        _ => Self::starting_at(sample.draw::<Bytes>()),
    };
    Put, |sample| Self {
        key: sample.draw(),
        value: if sample.draw() { PutValue::Set(sample.draw()) } else { PutValue::Keep },
        lease: match sample.below(3) {
            0 => PutLease::None,
            1 => PutLease::Attach(sample.draw()),
            _ => PutLease::Keep,
        },
        prev_kv: sample.draw(),
    };
    Delete, |sample| Self { range: sample.draw(), prev_kv: sample.draw() };
    Sort, |sample| {
        use SortTarget::{Create, Key, Mod, Value, Version};
        let target = [Key, Version, Create, Mod, Value][sample.below(5) as usize];
        let order = if sample.draw() { SortOrder::Ascend } else { SortOrder::Descend };
        Self { target, order }
    };
    RevisionBounds, |sample| Self {
        mod_min: sample.draw(),
        mod_max: sample.draw(),
        create_min: sample.draw(),
        create_max: sample.draw(),
    };
    Range, |sample| Self {
        range: sample.draw(),
        revision: sample.draw(),
        limit: sample.draw(),
        sort: sample.draw(),
        keys_only: sample.draw(),
        count_only: sample.draw(),
        bounds: sample.draw(),
    };
    Compare, |sample| {
        use CompareOp::{Equal, Greater, Less, NotEqual};
        Self {
            range: sample.draw(),
            target: match sample.below(5) {
                0 => CompareTarget::Version(sample.draw()),
                1 => CompareTarget::Create(sample.draw()),
                2 => CompareTarget::Mod(sample.draw()),
                3 => CompareTarget::Value(sample.draw()),
                _ => CompareTarget::Lease(sample.draw()),
            },
            op: [Equal, NotEqual, Greater, Less][sample.below(4) as usize],
        }
    };
    Command, |sample| match sample.below(12) {
        0 => Self::Put(sample.draw()),
        1 => Self::Delete(sample.draw()),
        2 => Self::Txn(sample.draw()),
        3 => Self::Compact(sample.draw()),
        4 => Self::Grant { id: sample.draw(), ttl: sample.draw(), session: sample.draw() },
        5 => Self::Revoke(sample.draw()),
        6 => Self::Announce(MemberAttributes {
            name: sample.draw(),
            address: sample.draw(),
            endpoints: sample.draw(),
        }),
        7 => Self::Raise(sample.draw()),
        8 => Self::Access(sample.draw()),
        9 => Self::Alarm(sample.draw()),
        10 => Self::Move { member: sample.draw(), address: sample.draw() },
        _ => {
            let caller = sample.draw();
            match sample.draw() {
                Self::As(_, command) => Self::As(caller, command),
                command => Self::As(caller, Box::new(command)),
            }
        }
    };
    AckWindow, |sample| {
        let mut at = sample.below(1000);
        let mut open = Vec::new();
        for _ in 0..sample.below(4) {
            let end = at + 1 + sample.below(100);
            open.push(at..end);
            at = end + 1 + sample.below(100_000);
        }
        Self { frontier: at, open }
    };
    Outcome, |sample| if sample.below(9) == 0 { Err(sample.draw()) } else { Ok(sample.draw()) };
    Member, |sample| Self {
        disk: sample.draw(),
        name: sample.draw(),
        address: sample.draw(),
        moves_to: sample.draw(),
        endpoints: sample.draw(),
        role: if sample.draw() { MemberRole::Voter } else { MemberRole::Learner },
        replaces: sample.draw(),
        since: sample.draw(),
    };
    Members, |sample| {
        let id = |sample: &mut Sample| NodeId::new(1 + sample.below(99)).expect("not 0");
        let rows = sample.list(|sample| (id(sample), sample.draw())).into_iter().collect();
        let outgoing = sample.list(id).into_iter().collect();
        Self::from_parts(rows, outgoing, 100 + sample.below(9)).expect("ids below 100")
    };
    // Apply random changes to an empty table. Most of these changes are rejected. But the names are
    // very short, so some changes name an existing user or role.
    Access, |sample| {
        let mut access = Access::default();
        for _ in 0..sample.below(9) {
            let _ = access.apply(sample.draw());
        }
        access
    };
    Alarms, |sample| {
        let mut alarms = Alarms::default();
        for change in sample.draw::<Vec<AlarmChange>>() {
            alarms.apply(&change).expect("few");
        }
        alarms
    };
    StateHead, |sample| Self {
        version: sample.draw(),
        index: sample.draw(),
        term: sample.draw(),
        revision: sample.draw(),
        compacted: sample.draw::<Option<u64>>().map(|revision| Revision(revision >> 1)),
        past: sample.next(),
        next_lease: sample.draw(),
        members: sample.draw(),
        access: sample.draw(),
        alarms: sample.draw(),
        digest: sample.next(),
    };
}

impl<T: Draw> Draw for Option<T> {
    fn draw(sample: &mut Sample) -> Self {
        if sample.draw() { Some(sample.draw()) } else { None }
    }
}

impl<T: Draw> Draw for Vec<T> {
    fn draw(sample: &mut Sample) -> Self {
        sample.list(T::draw)
    }
}

impl<A: Draw, B: Draw> Draw for (A, B) {
    fn draw(sample: &mut Sample) -> Self {
        (sample.draw(), sample.draw())
    }
}

impl<A: Draw, B: Draw, C: Draw> Draw for (A, B, C) {
    fn draw(sample: &mut Sample) -> Self {
        (sample.draw(), sample.draw(), sample.draw())
    }
}

impl<K: Draw + Ord, V: Draw> Draw for BTreeMap<K, V> {
    fn draw(sample: &mut Sample) -> Self {
        sample.draw::<Vec<_>>().into_iter().collect()
    }
}

impl<T: Draw + Ord> Draw for BTreeSet<T> {
    fn draw(sample: &mut Sample) -> Self {
        sample.draw::<Vec<_>>().into_iter().collect()
    }
}
