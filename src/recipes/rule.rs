//! The lock modes, and the decision which entries of a lock queue may hold the lock. A queue is
//! ordered by the create revisions of its keys, and each mode has its own condition. The decision
//! is a pure function of the rows, so all replicas with the same rows agree.
//!
//! ```text
//!   mutex, write, candidate   holds if no entry is ahead
//!   read                      holds if only reads are ahead
//!   semaphore                 holds if the permits ahead plus its own fit into the limit
//!   upgrade of a read         holds if that read is the only one that holds
//! ```
//!
//! A queue has one kind of lock. A later entry of another kind is rejected. Until the key of the
//! rejected entry is deleted, it blocks like a mutex, so that mixed kinds are never unsafe.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::model::Revision;

/// Queue position: create revision and key. A lower position is earlier in the queue.
pub(crate) type Rank = (Revision, Bytes);

/// Lock mode: the condition under which an entry may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// Holds if the entry is first. Used for a mutex, a candidate, and requests of etcd clients.
    Alone,
    /// A leased key that is not a lock request, such as a group member. No request may wait after
    /// such a key, because the key does not disappear when a lock is released.
    Foreign,
    /// Holds if only reads are ahead.
    Read,
    /// Holds if the entry is first. Used for writers of a read/write lock.
    Write,
    /// Holds if the read entry with this key is the only reader that holds. An upgrade overtakes
    /// waiting writers, because they wait for that reader anyway. If such a writer leaves, readers
    /// after it may hold. So an upgrade that holds excludes no other holder by itself. It only
    /// allows the row of the read entry to be rewritten, provided that the queue has not changed.
    Upgrade(Bytes),
    /// Holds if the permits ahead plus the permits of this entry fit into the limit.
    Permits {
        /// Total number of permits.
        limit: u32,
        /// Number of requested permits.
        wants: u32,
    },
}

/// The kind of lock that a name is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LockKind {
    /// A mutex or an election, of Bowline or of etcd clients.
    Mutex,
    /// A read/write lock.
    ReadWrite,
    /// A semaphore with this number of permits.
    Semaphore(u32),
    /// Leased keys below the name that are not lock requests, such as group members or sequential
    /// keys.
    Foreign,
}

impl std::fmt::Display for LockKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LockKind::Mutex => f.write_str("a mutex or an election"),
            LockKind::ReadWrite => f.write_str("a read/write lock"),
            LockKind::Semaphore(limit) => write!(f, "a semaphore of {limit}"),
            LockKind::Foreign => f.write_str("keys that are not lock requests"),
        }
    }
}

impl Rule {
    pub(crate) fn is_upgrade(&self) -> bool {
        matches!(self, Rule::Upgrade(_))
    }

    /// Reports whether an entry of mode `successor` may take over a hold of this mode without
    /// excluding more than the hold did.
    pub(crate) fn covers(&self, successor: &Rule) -> bool {
        match (self, successor) {
            (Rule::Alone, Rule::Alone)
            | (Rule::Write, Rule::Write | Rule::Read)
            | (Rule::Read, Rule::Read) => true,
            (Rule::Permits { limit, wants }, Rule::Permits { limit: others, wants: less }) => {
                limit == others && less <= wants
            }
            _ => false,
        }
    }

    pub(crate) fn kind(&self) -> LockKind {
        match self {
            Rule::Alone => LockKind::Mutex,
            Rule::Read | Rule::Write | Rule::Upgrade(_) => LockKind::ReadWrite,
            Rule::Permits { limit, .. } => LockKind::Semaphore(*limit),
            Rule::Foreign => LockKind::Foreign,
        }
    }
}

/// The entries of one lock queue in order.
#[derive(Default, Debug)]
pub(crate) struct LockQueue {
    places: BTreeMap<Rank, Rule>,
    /// Entries that block readers: all entries except reads.
    barring: BTreeSet<Rank>,
    /// Leased keys that are not lock requests, and therefore do not disappear when a lock is
    /// released.
    foreign: BTreeSet<Rank>,
}

impl LockQueue {
    /// Adds or updates an entry.
    pub(crate) fn insert(&mut self, rank: Rank, rule: Rule) {
        if rule == Rule::Read {
            self.barring.remove(&rank);
        } else {
            self.barring.insert(rank.clone());
        }
        if rule == Rule::Foreign {
            self.foreign.insert(rank.clone());
        } else {
            self.foreign.remove(&rank);
        }
        self.places.insert(rank, rule);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, rank: &Rank) {
        self.places.remove(rank);
        self.barring.remove(rank);
        self.foreign.remove(rank);
    }

    pub(crate) fn contains(&self, rank: &Rank) -> bool {
        self.places.contains_key(rank)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn first(&self) -> Option<(&Rank, &Rule)> {
        self.places.first_key_value()
    }

    /// Returns the first leased key that is not a lock request. No request after it can hold.
    pub(crate) fn first_foreign(&self) -> Option<&Rank> {
        self.foreign.first()
    }

    pub(crate) fn rule(&self, rank: &Rank) -> Option<&Rule> {
        self.places.get(rank)
    }

    /// Returns the number of entries ahead of each position. Scans the queue once, up to the last
    /// of these positions.
    pub(crate) fn before_each(&self, ranks: BTreeSet<Rank>) -> BTreeMap<Rank, usize> {
        let (mut places, mut before) = (self.places.keys().peekable(), 0);
        let count = |rank: Rank| {
            while places.next_if(|place| **place < rank).is_some() {
                before += 1;
            }
            (rank, before)
        };
        ranks.into_iter().map(count).collect()
    }

    /// Returns all entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Rank, &Rule)> {
        self.places.iter()
    }

    /// Reports whether the entry at this position, which must exist, may hold.
    pub(crate) fn may_hold(&self, rank: &Rank) -> bool {
        let Some(rule) = self.places.get(rank) else { return false };
        if mutant!(M27) {
            return true;
        }
        match rule {
            Rule::Alone | Rule::Write | Rule::Foreign => {
                self.places.first_key_value().map(|(r, _)| r) == Some(rank)
            }
            Rule::Read => self.barring.first().is_none_or(|bar| bar > rank) || mutant!(B01),
            Rule::Upgrade(of) => {
                let mut line = self.places.iter();
                let is_first = line.next().is_some_and(|(first, rule)| {
                    first.1 == *of && first < rank && *rule == Rule::Read
                });
                // Holds if it is the only upgrade and no other reader holds. Readers hold from the
                // first entry of the queue up to the first entry that blocks readers. The upgrade
                // itself blocks the readers after it.
                is_first
                    && !self.barring.range(..rank).any(|bar| self.places[bar].is_upgrade())
                    && (line.next().is_none_or(|(_, rule)| *rule != Rule::Read) || mutant!(B02))
            }
            Rule::Permits { limit, wants } => {
                let (mut least, mut sum) = (*limit, u64::from(*wants));
                sum -= u64::from(mutant!(B04) && *wants > 0);
                for (_, before) in self.places.range(..rank) {
                    let Rule::Permits { limit, wants } = before else { return false };
                    least = least.min(*limit);
                    sum += u64::from(*wants);
                    if sum > u64::from(least) {
                        return false;
                    }
                }
                sum <= u64::from(least)
            }
        }
    }

    /// Checks whether an entry is allowed in this queue. The entry must have the kind of the first
    /// entry, and there must be at most one upgrade. `asked` is the kind at the time of the
    /// request. After a resize the row may state another limit, but the error reports the limit
    /// that the caller requested.
    pub(crate) fn judge(&self, rank: &Rank, asked: LockKind) -> Result<(), Misfit> {
        let (Some(rule), Some((first, head))) = (self.places.get(rank), self.first()) else {
            return Ok(());
        };
        if let Rule::Upgrade(of) = rule
            && !self.places.range(..rank).any(|((_, key), _)| key == of)
        {
            return Err(Misfit::NoRead);
        }
        if first == rank {
            return Ok(());
        }
        if self.first_foreign().is_some_and(|foreign| foreign < rank) {
            return Err(Misfit::Kind { stored: LockKind::Foreign, asked });
        }
        let stored = head.kind();
        if stored != rule.kind() && stored != asked {
            return Err(Misfit::Kind { stored, asked });
        }
        if let Rule::Upgrade(_) = rule {
            let is_other = |(_, rule): (&Rank, &Rule)| matches!(rule, Rule::Upgrade(_));
            if self.places.range(..rank).any(is_other) {
                return Err(Misfit::SecondUpgrade);
            }
        }
        Ok(())
    }
}

/// Why an entry is not allowed in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misfit {
    /// The queue is of another kind.
    Kind {
        /// Kind of the first entry.
        stored: LockKind,
        /// Requested kind.
        asked: LockKind,
    },
    /// Another reader is already waiting for an upgrade. The two readers would wait for each other.
    SecondUpgrade,
    /// The read to be upgraded does not exist.
    NoRead,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a queue from words: `m` mutex, `r` read, `w` write, `uN` upgrade of the entry at N,
    /// `pL/W` permits.
    fn line(words: &str) -> (LockQueue, Vec<Rank>) {
        let mut queue = LockQueue::default();
        let mut ranks = Vec::new();
        for (at, word) in words.split_whitespace().enumerate() {
            let rank = (Revision(at as u64 + 2), Bytes::from(format!("k{at}")));
            let rule = match word.split_at(1) {
                ("m", _) => Rule::Alone,
                ("r", _) => Rule::Read,
                ("w", _) => Rule::Write,
                ("u", of) => Rule::Upgrade(format!("k{of}").into()),
                ("p", rest) => {
                    let (limit, wants) = rest.split_once('/').unwrap();
                    Rule::Permits { limit: limit.parse().unwrap(), wants: wants.parse().unwrap() }
                }
                ("f", _) => Rule::Foreign,
                ("-", _) => {
                    ranks.push(rank);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            queue.insert(rank.clone(), rule);
            ranks.push(rank);
        }
        (queue, ranks)
    }

    #[test]
    fn positions_are_counted_for_several_entries_at_once() {
        let rank = |revision| (Revision(revision), Bytes::from_static(b"l/1"));
        let mut queue = LockQueue::default();
        [2, 3, 5, 8].into_iter().for_each(|at| queue.insert(rank(at), Rule::Alone));
        let before = queue.before_each([8, 1, 3, 4, 9].into_iter().map(rank).collect());
        let counted: Vec<_> =
            before.into_iter().map(|((at, _), count)| (at.get(), count)).collect();
        assert_eq!(counted, [(1, 0), (3, 1), (4, 2), (8, 3), (9, 4)]);
    }

    #[test]
    fn holders_follow_from_the_entries_ahead() {
        for (words, holders) in [
            ("m m m", "0"),
            ("- m m", "1"),
            ("r r w r", "0 1"),
            ("w r r", "0"),
            ("- r r w", "1 2"),
            ("r w u0", "0 2"),
            ("r u0 r", "0 1"),
            ("r r u0 r", "0 1"),
            ("r r u0", "0 1"),
            ("r r u1", "0 1"),
            ("r - w r u0 r", "0 4"),
            ("r w r u0", "0 3"),
            ("w r u0", "0"),
            ("p3/1 p3/2 p3/1", "0 1"),
            ("p3/1 p3/3 p3/1", "0"),
            ("p3/3 p3/1", "0"),
            ("p1/1 p2/1 p2/1", "0"),
            ("p2/1 p1/1", "0"),
            ("m r", "0"),
            ("r m", "0"),
            ("r p2/1", "0"),
        ] {
            let (queue, ranks) = line(words);
            let found: Vec<String> = (0..ranks.len())
                .filter(|at| queue.may_hold(&ranks[*at]))
                .map(|at| at.to_string())
                .collect();
            assert_eq!(found.join(" "), holders, "{words}");
        }
    }

    #[test]
    fn conflicting_entries_never_hold_together() {
        // All queues of up to five entries of these kinds.
        let kinds = ["m", "r", "w", "u0", "u1", "p2/1", "p2/2", "p1/1", "-"];
        let mut words = vec![String::new()];
        for _ in 0..5 {
            words = words
                .iter()
                .flat_map(|line| kinds.iter().map(move |kind| format!("{line} {kind}")))
                .collect();
            for line in words.iter().step_by(7) {
                check(line);
            }
        }
    }

    fn check(words: &str) {
        let (queue, ranks) = line(words);
        let holders: Vec<&Rank> = ranks.iter().filter(|rank| queue.may_hold(rank)).collect();
        let rules: Vec<&Rule> = holders.iter().map(|rank| &queue.places[*rank]).collect();
        let alone = rules.iter().filter(|r| matches!(r, Rule::Alone | Rule::Write)).count();
        assert!(alone == 0 || rules.len() == 1, "{words}: {rules:?}");
        let kinds: BTreeSet<String> = rules.iter().map(|rule| rule.kind().to_string()).collect();
        let upgraded = rules.iter().filter(|r| matches!(r, Rule::Upgrade(_))).count();
        assert!(
            upgraded == 0 || rules.len() == 2,
            "{words}: an upgrade and its own read: {rules:?}"
        );
        let limits = rules.iter().filter_map(|rule| match rule {
            Rule::Permits { limit, wants } => Some((*limit, *wants)),
            _ => None,
        });
        let (mut least, mut sum) = (u32::MAX, 0);
        for (limit, wants) in limits {
            (least, sum) = (least.min(limit), sum + wants);
        }
        assert!(sum <= least, "{words}: {rules:?}");
        assert!(kinds.len() <= 1 || sum > 0, "{words}: {kinds:?}");
    }

    #[test]
    fn hold_is_handed_off_only_to_an_equal_or_weaker_mode() {
        let permits = |limit, wants| Rule::Permits { limit, wants };
        for (held, successor, fits) in [
            (Rule::Alone, Rule::Alone, true),
            (Rule::Read, Rule::Read, true),
            (Rule::Read, Rule::Write, false),
            (Rule::Read, Rule::Upgrade("k0".into()), false),
            (Rule::Write, Rule::Read, true),
            (Rule::Write, Rule::Alone, false),
            (permits(3, 2), permits(3, 1), true),
            (permits(3, 1), permits(3, 2), false),
            (permits(3, 1), permits(4, 1), false),
        ] {
            assert_eq!(held.covers(&successor), fits, "{held:?} to {successor:?}");
        }
    }

    #[test]
    fn other_lock_kind_and_second_upgrade_are_rejected() {
        let (queue, ranks) = line("r r u0 u1 m p2/1");
        let judge = |at: usize, asked| queue.judge(&ranks[at], asked);
        assert_eq!(judge(0, LockKind::ReadWrite), Ok(()));
        assert_eq!(judge(2, LockKind::ReadWrite), Ok(()));
        assert_eq!(judge(3, LockKind::ReadWrite), Err(Misfit::SecondUpgrade));
        let (no_read, ranks_of_it) = line("- w u0");
        let found = no_read.judge(&ranks_of_it[2], LockKind::ReadWrite);
        assert_eq!(found, Err(Misfit::NoRead));
        for (at, asked) in [(4, LockKind::Mutex), (5, LockKind::Semaphore(2))] {
            let stored = LockKind::ReadWrite;
            assert_eq!(judge(at, asked), Err(Misfit::Kind { stored, asked }));
        }
    }

    #[test]
    fn no_request_waits_behind_a_foreign_key() {
        for words in ["f m", "m f m", "r f r", "r w f w", "p2/1 f p2/1"] {
            let (mut queue, ranks) = line(words);
            let (foreign, last) = (&ranks[ranks.len() - 2], &ranks[ranks.len() - 1]);
            let asked = queue.rule(last).unwrap().kind();
            let refused = Err(Misfit::Kind { stored: LockKind::Foreign, asked });
            assert_eq!(queue.judge(last, asked), refused, "{words}");
            assert_eq!(queue.judge(&ranks[0], asked), Ok(()), "{words}");
            queue.remove(foreign);
            assert_eq!(queue.judge(last, asked), Ok(()), "{words}");
        }
    }

    #[test]
    fn rejection_reports_the_requested_limit_despite_a_resize() {
        // The queue, the limit that the second entry requested, and whether this entry is accepted.
        for (words, asked, fits) in [
            ("p2/1 p3/1", 3, false),
            // There were two resizes. Each of them has rewritten one row.
            ("p5/1 p2/1", 3, false),
            ("p5/1 p2/1", 2, false),
            // One resize has rewritten both rows.
            ("p2/1 p2/1", 3, true),
            // One resize has rewritten only the second row. The first row has the limit that the
            // second entry requested.
            ("p3/1 p2/1", 3, true),
        ] {
            let (queue, ranks) = line(words);
            let stored = queue.first().unwrap().1.kind();
            let asked = LockKind::Semaphore(asked);
            let told = if fits { Ok(()) } else { Err(Misfit::Kind { stored, asked }) };
            assert_eq!(queue.judge(&ranks[1], asked), told, "{words}, {asked}");
        }
    }
}
