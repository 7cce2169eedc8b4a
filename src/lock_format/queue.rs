//! The decision which entries of a lock queue may hold the lock. A queue is
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
//! A queue has one kind of lock. A later entry of another kind is rejected. Until its key is
//! deleted, the rejected entry blocks the queue like a mutex, so that mixed kinds are safe.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::model::{KeyValue, Revision};

use super::metadata::EntryMetadata;
use super::mode::{LockKind, LockMode};

/// Position of an entry in its lock queue. A lower position is earlier in the queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct QueuePosition {
    /// Create revision of the entry's key.
    pub(crate) since: Revision,
    /// The entry's key.
    pub(crate) key: Bytes,
}

impl QueuePosition {
    /// Returns the position of the entry with this create revision and key.
    pub(crate) fn new(since: Revision, key: Bytes) -> Self {
        Self { since, key }
    }

    pub(crate) fn of(row: &KeyValue) -> Self {
        Self { since: row.create_revision, key: row.key.clone() }
    }
}

/// The entries of one lock queue in order.
#[derive(Default, Debug)]
pub(crate) struct LockQueue {
    entries: BTreeMap<QueuePosition, LockMode>,
    /// Entries that block readers: all entries except reads.
    barring: BTreeSet<QueuePosition>,
    /// Leased keys that are not lock requests, and therefore do not disappear when a lock is
    /// released.
    foreign: BTreeSet<QueuePosition>,
}

impl LockQueue {
    /// Builds the queue of these rows, which may be in any order.
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = &'a KeyValue>) -> Self {
        let mut queue = Self::default();
        for row in rows {
            let mode = EntryMetadata::mode_in_queue(&row.key, &row.value);
            queue.insert(QueuePosition::of(row), mode);
        }
        queue
    }

    /// Adds or updates an entry.
    pub(crate) fn insert(&mut self, position: QueuePosition, mode: LockMode) {
        if mode == LockMode::Read {
            self.barring.remove(&position);
        } else {
            self.barring.insert(position.clone());
        }
        if mode == LockMode::Foreign {
            self.foreign.insert(position.clone());
        } else {
            self.foreign.remove(&position);
        }
        self.entries.insert(position, mode);
    }

    pub(crate) fn remove(&mut self, position: &QueuePosition) {
        self.entries.remove(position);
        self.barring.remove(position);
        self.foreign.remove(position);
    }

    /// Reports whether the queue has an entry at this position.
    pub(crate) fn contains(&self, position: &QueuePosition) -> bool {
        self.entries.contains_key(position)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn first(&self) -> Option<(&QueuePosition, &LockMode)> {
        self.entries.first_key_value()
    }

    /// Returns the first leased key that is not a lock request. No request after such a key can
    /// hold the lock.
    pub(crate) fn first_foreign(&self) -> Option<&QueuePosition> {
        self.foreign.first()
    }

    /// Returns the mode of the entry at this position.
    pub(crate) fn mode(&self, position: &QueuePosition) -> Option<&LockMode> {
        self.entries.get(position)
    }

    /// Returns the number of entries ahead of each position. Scans the queue once, up to the last
    /// of these positions.
    pub(crate) fn before_each(
        &self,
        positions: BTreeSet<QueuePosition>,
    ) -> BTreeMap<QueuePosition, usize> {
        let (mut entries, mut before) = (self.entries.keys().peekable(), 0);
        let count = |position: QueuePosition| {
            while entries.next_if(|entry| **entry < position).is_some() {
                before += 1;
            }
            (position, before)
        };
        positions.into_iter().map(count).collect()
    }

    /// Returns all entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&QueuePosition, &LockMode)> {
        self.entries.iter()
    }

    /// Reports whether the entry at this position, which must exist, may hold the lock.
    pub(crate) fn may_hold(&self, position: &QueuePosition) -> bool {
        let Some(mode) = self.entries.get(position) else { return false };
        mutant!(M27, return true);
        match mode {
            LockMode::Mutex | LockMode::Write | LockMode::Foreign => {
                self.entries.first_key_value().map(|(r, _)| r) == Some(position)
            }
            LockMode::Read => self.barring.first().is_none_or(|bar| bar > position) || mutant!(B01),
            LockMode::Upgrade(of) => {
                let mut entries = self.entries.iter();
                let is_first = entries.next().is_some_and(|(first, mode)| {
                    first.key == *of && first < position && *mode == LockMode::Read
                });
                // An upgrade holds the lock if it is the only upgrade and no other reader holds.
                // Readers hold from the first entry of the queue up to the first entry that blocks
                // readers. The upgrade itself blocks the readers after it.
                is_first
                    && !self.barring.range(..position).any(|bar| self.entries[bar].is_upgrade())
                    && (entries.next().is_none_or(|(_, mode)| *mode != LockMode::Read)
                        || mutant!(B02))
            }
            LockMode::Permits { limit, wants } => {
                let (mut least, mut sum) = (*limit, u64::from(*wants));
                sum -= u64::from(mutant!(B04) && *wants > 0);
                for (_, before) in self.entries.range(..position) {
                    let LockMode::Permits { limit, wants } = before else { return false };
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
    pub(crate) fn validate(
        &self,
        position: &QueuePosition,
        asked: LockKind,
    ) -> Result<(), QueueMismatch> {
        let (Some(mode), Some((first, head))) = (self.entries.get(position), self.first()) else {
            return Ok(());
        };
        if let LockMode::Upgrade(of) = mode
            && !self.entries.range(..position).any(|(other, _)| other.key == *of)
        {
            return Err(QueueMismatch::NoRead);
        }
        if first == position {
            return Ok(());
        }
        if self.first_foreign().is_some_and(|foreign| foreign < position) {
            return Err(QueueMismatch::Kind { stored: LockKind::Foreign, asked });
        }
        let stored = head.kind();
        if stored != mode.kind() && stored != asked {
            return Err(QueueMismatch::Kind { stored, asked });
        }
        if let LockMode::Upgrade(_) = mode {
            let is_other =
                |(_, mode): (&QueuePosition, &LockMode)| matches!(mode, LockMode::Upgrade(_));
            if self.entries.range(..position).any(is_other) {
                return Err(QueueMismatch::SecondUpgrade);
            }
        }
        Ok(())
    }
}

/// Why an entry is not allowed in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueMismatch {
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
    fn queue_of(words: &str) -> (LockQueue, Vec<QueuePosition>) {
        let mut queue = LockQueue::default();
        let mut positions = Vec::new();
        for (at, word) in words.split_whitespace().enumerate() {
            let position = QueuePosition::new(Revision(at as u64 + 2), format!("k{at}").into());
            let mode = match word.split_at(1) {
                ("m", _) => LockMode::Mutex,
                ("r", _) => LockMode::Read,
                ("w", _) => LockMode::Write,
                ("u", of) => LockMode::Upgrade(format!("k{of}").into()),
                ("p", rest) => {
                    let (limit, wants) = rest.split_once('/').unwrap();
                    LockMode::Permits {
                        limit: limit.parse().unwrap(),
                        wants: wants.parse().unwrap(),
                    }
                }
                ("f", _) => LockMode::Foreign,
                ("-", _) => {
                    positions.push(position);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            queue.insert(position.clone(), mode);
            positions.push(position);
        }
        (queue, positions)
    }

    #[test]
    fn positions_are_counted_for_several_entries_at_once() {
        let position = |at| QueuePosition::new(Revision(at), Bytes::from_static(b"l/1"));
        let mut queue = LockQueue::default();
        [2, 3, 5, 8].into_iter().for_each(|at| queue.insert(position(at), LockMode::Mutex));
        let before = queue.before_each([8, 1, 3, 4, 9].into_iter().map(position).collect());
        let counted: Vec<_> =
            before.into_iter().map(|(at, count)| (at.since.get(), count)).collect();
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
            let (queue, positions) = queue_of(words);
            let found: Vec<String> = (0..positions.len())
                .filter(|at| queue.may_hold(&positions[*at]))
                .map(|at| at.to_string())
                .collect();
            assert_eq!(found.join(" "), holders, "{words}");
        }
    }

    #[test]
    fn conflicting_entries_never_hold_together() {
        let kinds = ["m", "r", "w", "u0", "u1", "p2/1", "p2/2", "p1/1", "-"];
        let mut words = vec![String::new()];
        for _ in 0..5 {
            words = words
                .iter()
                .flat_map(|queue| kinds.iter().map(move |kind| format!("{queue} {kind}")))
                .collect();
            for queue in words.iter().step_by(7) {
                check(queue);
            }
        }
    }

    fn check(words: &str) {
        let (queue, positions) = queue_of(words);
        let holders: Vec<&QueuePosition> =
            positions.iter().filter(|position| queue.may_hold(position)).collect();
        let modes: Vec<&LockMode> =
            holders.iter().map(|position| &queue.entries[*position]).collect();
        let alone = modes.iter().filter(|r| matches!(r, LockMode::Mutex | LockMode::Write)).count();
        assert!(alone == 0 || modes.len() == 1, "{words}: {modes:?}");
        let kinds: BTreeSet<String> = modes.iter().map(|mode| mode.kind().to_string()).collect();
        let upgraded = modes.iter().filter(|r| matches!(r, LockMode::Upgrade(_))).count();
        assert!(
            upgraded == 0 || modes.len() == 2,
            "{words}: an upgrade and its own read: {modes:?}"
        );
        let limits = modes.iter().filter_map(|mode| match mode {
            LockMode::Permits { limit, wants } => Some((*limit, *wants)),
            _ => None,
        });
        let (mut least, mut sum) = (u32::MAX, 0);
        for (limit, wants) in limits {
            (least, sum) = (least.min(limit), sum + wants);
        }
        assert!(sum <= least, "{words}: {modes:?}");
        assert!(kinds.len() <= 1 || sum > 0, "{words}: {kinds:?}");
    }

    #[test]
    fn hold_is_handed_off_only_to_an_equal_or_weaker_mode() {
        let permits = |limit, wants| LockMode::Permits { limit, wants };
        for (held, successor, fits) in [
            (LockMode::Mutex, LockMode::Mutex, true),
            (LockMode::Read, LockMode::Read, true),
            (LockMode::Read, LockMode::Write, false),
            (LockMode::Read, LockMode::Upgrade("k0".into()), false),
            (LockMode::Write, LockMode::Read, true),
            (LockMode::Write, LockMode::Mutex, false),
            (permits(3, 2), permits(3, 1), true),
            (permits(3, 1), permits(3, 2), false),
            (permits(3, 1), permits(4, 1), false),
        ] {
            assert_eq!(held.covers(&successor), fits, "{held:?} to {successor:?}");
        }
    }

    #[test]
    fn other_lock_kind_and_second_upgrade_are_rejected() {
        let (queue, positions) = queue_of("r r u0 u1 m p2/1");
        let validate = |at: usize, asked| queue.validate(&positions[at], asked);
        assert_eq!(validate(0, LockKind::ReadWrite), Ok(()));
        assert_eq!(validate(2, LockKind::ReadWrite), Ok(()));
        assert_eq!(validate(3, LockKind::ReadWrite), Err(QueueMismatch::SecondUpgrade));
        let (no_read, positions_in_it) = queue_of("- w u0");
        let found = no_read.validate(&positions_in_it[2], LockKind::ReadWrite);
        assert_eq!(found, Err(QueueMismatch::NoRead));
        for (at, asked) in [(4, LockKind::Mutex), (5, LockKind::Semaphore(2))] {
            let stored = LockKind::ReadWrite;
            assert_eq!(validate(at, asked), Err(QueueMismatch::Kind { stored, asked }));
        }
    }

    #[test]
    fn no_request_waits_behind_a_foreign_key() {
        for words in ["f m", "m f m", "r f r", "r w f w", "p2/1 f p2/1"] {
            let (mut queue, positions) = queue_of(words);
            let (foreign, last) =
                (&positions[positions.len() - 2], &positions[positions.len() - 1]);
            let asked = queue.mode(last).unwrap().kind();
            let refused = Err(QueueMismatch::Kind { stored: LockKind::Foreign, asked });
            assert_eq!(queue.validate(last, asked), refused, "{words}");
            assert_eq!(queue.validate(&positions[0], asked), Ok(()), "{words}");
            queue.remove(foreign);
            assert_eq!(queue.validate(last, asked), Ok(()), "{words}");
        }
    }

    #[test]
    fn rejection_reports_the_requested_limit_despite_a_resize() {
        // Each case is a queue, the limit that its second entry requested, and whether that entry
        // is accepted.
        for (words, asked, fits) in [
            ("p2/1 p3/1", 3, false),
            // There were two resizes, and each of them has rewritten one row.
            ("p5/1 p2/1", 3, false),
            ("p5/1 p2/1", 2, false),
            // One resize has rewritten both rows.
            ("p2/1 p2/1", 3, true),
            // One resize has rewritten only the second row. The first row has the limit that the
            // second entry requested.
            ("p3/1 p2/1", 3, true),
        ] {
            let (queue, positions) = queue_of(words);
            let stored = queue.first().unwrap().1.kind();
            let asked = LockKind::Semaphore(asked);
            let expected = if fits { Ok(()) } else { Err(QueueMismatch::Kind { stored, asked }) };
            assert_eq!(queue.validate(&positions[1], asked), expected, "{words}, {asked}");
        }
    }
}
