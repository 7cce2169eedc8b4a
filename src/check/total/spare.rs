//! Free revisions and the changes that may have made them: a matching that leaves no revision free.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::gaps::Fixed;

/// How many rows and changes are looked at where the first choice leaves something over.
const LOOKS_MAX: u64 = 200_000_000;

/// Revisions from one to another, both included, at which nothing can have changed a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiet {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Quiet {
    /// Puts them in order, none overlapping another one.
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

/// The changes of one row that may have made a revision each, from some first one on, but none at which the row was
/// quiet.
pub(super) struct Pool<'a> {
    /// By their first revisions.
    pub(super) spare: Vec<Spare>,
    /// By revision.
    pub(super) quiet: &'a [Quiet],
}

/// A change that may have made a revision, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) place: usize,
    /// The first revision that it may have made.
    pub(super) first: u64,
    /// Whether it certainly changes the store when it takes effect.
    pub(super) is_sure: bool,
    /// A revision that it has, and that it only leaves for another one.
    pub(super) has: Option<u64>,
}

impl Pool<'_> {
    /// Until when the row is quiet, if it is at this revision.
    fn quiet_until(&self, revision: u64) -> Option<u64> {
        let next = self.quiet.get(self.quiet.partition_point(|quiet| quiet.to < revision))?;
        (next.from <= revision).then_some(next.to)
    }
}

/// One of a pool's: which pool, and its place there.
type Member = (usize, usize);

struct Matching<'p> {
    pools: &'p [Pool<'p>],
    /// The revision that each of each pool's made.
    made: Vec<Vec<Option<u64>>>,
    looks: u64,
}

/// A change for each of the free revisions, which are in order, and for those that some have. The error is a revision for which none is left, whatever
/// is chosen; or nothing, if nobody knows.
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

/// What is left of a pool, as far as it may have made the revision that is looked at.
#[derive(Clone, Default)]
struct Left {
    /// Those that certainly change something; the ones that came late at the end.
    sure: Vec<usize>,
    perhaps: Vec<usize>,
}

impl Left {
    /// The fuller, the better; and rather one that is sure.
    fn fullness(&self) -> (bool, usize) {
        (!self.sure.is_empty(), self.sure.len() + self.perhaps.len())
    }
}

impl Matching<'_> {
    /// Takes for each revision one of the row that has most of them left. Gives back the revisions that got none.
    fn take_from_the_fullest(&mut self, free: &[u64]) -> Vec<u64> {
        let mut coming: Vec<(u64, Member)> = Vec::new();
        for (number, pool) in self.pools.iter().enumerate() {
            let members = pool.spare.iter().enumerate().filter(|(_, spare)| spare.has.is_none());
            coming.extend(members.map(|(place, spare)| (spare.first, (number, place))));
        }
        coming.sort_unstable();
        let mut coming = coming.into_iter().peekable();
        let mut left = vec![Left::default(); self.pools.len()];
        // What was put in and is not as full any more is passed over.
        let mut ready: BinaryHeap<((bool, usize), Reverse<usize>)> = BinaryHeap::new();
        let mut quiet: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut homeless = Vec::new();
        for revision in free.iter().copied() {
            while let Some((_, (pool, place))) = coming.next_if(|(first, _)| *first <= revision) {
                let is_sure = self.pools[pool].spare[place].is_sure;
                let Left { sure, perhaps } = &mut left[pool];
                if is_sure {
                    sure.push(place)
                } else {
                    perhaps.push(place)
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
                        let Left { sure, perhaps } = &mut left[pool];
                        let place = sure.pop().or_else(|| perhaps.pop());
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

    /// Finds a change for one more revision: one that is left, or one whose revision another one can make, and so on.
    fn make_room(&mut self, revision: u64) -> Result<(), Option<u64>> {
        // For which revision each would be taken, and which one it has.
        let mut wanted: HashMap<Member, u64, Fixed> = HashMap::default();
        let mut has: HashMap<u64, Member, Fixed> = HashMap::default();
        // Up to where each pool was looked at.
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
            if self.looks > LOOKS_MAX {
                return Err(None);
            }
        }
        Err(Some(revision))
    }

    /// One takes the revision for which it is wanted, who had that the next one, and so on.
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
