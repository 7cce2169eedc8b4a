//! Matches free revisions with the changes that may have made them, so that no revision stays free.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::gaps::Fixed;

/// Maximum number of rows and changes to visit if the first matching leaves a revision free.
const STEPS_MAX: u64 = 200_000_000;

/// A range of revisions, both ends included, in which a row cannot have changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiet {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Quiet {
    /// Sorts the ranges and merges those that overlap.
    pub(super) fn merge(all: &mut Vec<Self>) {
        all.sort_unstable_by_key(|quiet| (quiet.from, quiet.to));
        all.dedup_by(|next, before| {
            let is_next = next.from <= before.to + 1;
            if is_next {
                before.to = before.to.max(next.to);
            }
            is_next
        });
    }
}

/// The changes of one row that may have made revisions. Each has a lowest possible revision, and none may use a
/// revision at which the row is quiet.
pub(super) struct Pool<'a> {
    /// Sorted by their lowest possible revision.
    pub(super) spare: Vec<Spare>,
    /// Sorted by revision.
    pub(super) quiet: &'a [Quiet],
}

/// A change that may have made a revision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) place: usize,
    /// The lowest revision that it may have made.
    pub(super) first: u64,
    /// Whether the change makes a revision whenever it takes effect.
    pub(super) is_sure: bool,
    /// A revision that is already assigned to it. The assignment may only be changed to another revision.
    pub(super) has: Option<u64>,
}

impl Pool<'_> {
    /// Returns the end of the quiet range that contains the revision, if there is one.
    fn quiet_until(&self, revision: u64) -> Option<u64> {
        let next = self.quiet.get(self.quiet.partition_point(|quiet| quiet.to < revision))?;
        (next.from <= revision).then_some(next.to)
    }
}

/// A change, as the index of its pool and its index in the pool.
type Member = (usize, usize);

struct Matching<'p> {
    pools: &'p [Pool<'p>],
    /// For each change of each pool, the revision that it made.
    made: Vec<Vec<Option<u64>>>,
    looks: u64,
}

/// Returns a change for each of the free revisions, which must be sorted, and for each revision that is already
/// assigned. The error is a revision for which no change is left under any assignment, or `None` if the search limit
/// was reached.
pub(super) fn matched(free: &[u64], pools: &[Pool<'_>]) -> Result<Vec<(u64, usize)>, Option<u64>> {
    let has = |pool: &Pool<'_>| pool.spare.iter().map(|spare| spare.has).collect();
    let made = pools.iter().map(has).collect();
    let mut matching = Matching { pools, made, looks: 0 };
    for revision in matching.take_from_the_fullest(free) {
        matching.make_room(revision)?;
    }
    let all = pools.iter().zip(&matching.made);
    let all = all.flat_map(|(pool, made)| pool.spare.iter().zip(made));
    Ok(all.filter_map(|(spare, made)| Some(((*made)?, spare.place))).collect())
}

/// The changes of a pool that are left and may have made the current revision.
#[derive(Clone, Default)]
struct SpareRest {
    /// Changes that certainly take effect; those called last are at the end.
    sure: Vec<usize>,
    uncertain: Vec<usize>,
}

impl SpareRest {
    /// Returns the sort key of a pool: pools with a certain change first, then those with more changes.
    fn fullness(&self) -> (bool, usize) {
        (!self.sure.is_empty(), self.sure.len() + self.uncertain.len())
    }
}

impl Matching<'_> {
    /// Assigns to each revision a change from the row with the most unassigned changes. Returns the revisions without a
    /// change.
    fn take_from_the_fullest(&mut self, free: &[u64]) -> Vec<u64> {
        let mut coming: Vec<(u64, Member)> = Vec::new();
        for (number, pool) in self.pools.iter().enumerate() {
            let members = pool.spare.iter().enumerate().filter(|(_, spare)| spare.has.is_none());
            coming.extend(members.map(|(place, spare)| (spare.first, (number, place))));
        }
        coming.sort_unstable();
        let mut coming = coming.into_iter().peekable();
        let mut left = vec![SpareRest::default(); self.pools.len()];
        // The heap may contain outdated entries of pools that have become smaller. They are skipped.
        let mut ready: BinaryHeap<((bool, usize), Reverse<usize>)> = BinaryHeap::new();
        let mut quiet: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut homeless = Vec::new();
        for revision in free.iter().copied() {
            while let Some((_, (pool, place))) = coming.next_if(|(first, _)| *first <= revision) {
                let is_sure = self.pools[pool].spare[place].is_sure;
                let SpareRest { sure, uncertain } = &mut left[pool];
                if is_sure {
                    sure.push(place)
                } else {
                    uncertain.push(place)
                }
                ready.push((left[pool].fullness(), Reverse(pool)));
            }
            while let Some(Reverse((until, pool))) = quiet.peek().copied()
                && until < revision
            {
                quiet.pop();
                ready.push((left[pool].fullness(), Reverse(pool)));
            }
            let taken = loop {
                let Some((fullness, Reverse(pool))) = ready.pop() else { break None };
                if fullness != left[pool].fullness() {
                    continue;
                }
                match self.pools[pool].quiet_until(revision) {
                    Some(until) => quiet.push(Reverse((until, pool))),
                    None => {
                        let SpareRest { sure, uncertain } = &mut left[pool];
                        let place = sure.pop().or_else(|| uncertain.pop());
                        let Some(place) = place else { continue };
                        ready.push((left[pool].fullness(), Reverse(pool)));
                        break Some((pool, place));
                    }
                }
            };
            match taken {
                Some((pool, place)) => self.made[pool][place] = Some(revision),
                None => homeless.push(revision),
            }
        }
        homeless
    }

    /// Finds a change for one more revision: a free one, or one whose revision can be made by another change, and so
    /// on (an augmenting path).
    fn make_room(&mut self, revision: u64) -> Result<(), Option<u64>> {
        // `wanted` has the revision that would be assigned to each visited change. `has` contains the change that each
        // revision is assigned to.
        let mut wanted: HashMap<Member, u64, Fixed> = HashMap::default();
        let mut has: HashMap<u64, Member, Fixed> = HashMap::default();
        // For each pool, how far it has been visited.
        let mut seen = vec![0; self.pools.len()];
        let mut homeless = VecDeque::from([revision]);
        while let Some(at) = homeless.pop_front() {
            for (number, pool) in self.pools.iter().enumerate() {
                self.looks += 1;
                if pool.spare.get(seen[number]).is_none_or(|spare| spare.first > at)
                    || pool.quiet_until(at).is_some()
                {
                    continue;
                }
                while pool.spare.get(seen[number]).is_some_and(|spare| spare.first <= at) {
                    let member = (number, seen[number]);
                    seen[number] += 1;
                    self.looks += 1;
                    wanted.insert(member, at);
                    match self.made[number][member.1] {
                        Some(other) => {
                            has.insert(other, member);
                            homeless.push_back(other);
                        }
                        None => {
                            self.pass_on(member, &wanted, &has);
                            return Ok(());
                        }
                    }
                }
            }
            if self.looks > STEPS_MAX {
                return Err(None);
            }
        }
        Err(Some(revision))
    }

    /// Assigns the wanted revision to each change along the path, and passes its old revision on.
    fn pass_on(
        &mut self,
        mut member: Member,
        wanted: &HashMap<Member, u64, Fixed>,
        has: &HashMap<u64, Member, Fixed>,
    ) {
        loop {
            let at = wanted[&member];
            self.made[member.0][member.1] = Some(at);
            match has.get(&at) {
                Some(before) => member = *before,
                None => return,
            }
        }
    }
}
