//! Tracks which members have disk space, from the reports that members send to each other.
//!
//! A member whose disk is full repeats a report. When the member has space again, it sends one
//! report. A report that is not repeated for a while expires, so the loss of a message has no
//! lasting effect. A member without a report counts as having space.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Moment, NodeId};

/// The members whose disks are full.
#[derive(Debug)]
pub(crate) struct SpaceTable {
    me: NodeId,
    low: bool,
    /// Members that have reported a full disk, with the time of the report.
    peers: BTreeMap<NodeId, Moment>,
    /// Time between two reports.
    every: Duration,
    /// Time of the next report.
    next: Moment,
}

/// Number of report intervals after which a report expires.
const REPORT_MISSES_MAX: u32 = 4;

impl SpaceTable {
    /// Returns a table in which all members have space. A member with a full disk reports every `every`.
    pub(crate) fn new(me: NodeId, every: Duration, now: Moment) -> Self {
        Self { me, low: false, peers: BTreeMap::new(), every, next: now }
    }

    /// Records the state of this node's disk. Returns whether this state has changed.
    pub(crate) fn own(&mut self, low: bool, now: Moment) -> bool {
        self.next = now;
        std::mem::replace(&mut self.low, low) != low
    }

    /// Returns whether this node's disk is full.
    pub(crate) fn is_low(&self) -> bool {
        self.low
    }

    /// Records the report of another member.
    pub(crate) fn hear(&mut self, peer: NodeId, low: bool, now: Moment) {
        if low {
            self.peers.insert(peer, now);
        } else {
            self.peers.remove(&peer);
        }
    }

    /// Expires old reports. Returns whether this node should repeat its own report.
    pub(crate) fn tick(&mut self, now: Moment) -> bool {
        let forgotten = self.every * REPORT_MISSES_MAX;
        self.peers.retain(|_, reported| now.since(*reported) < forgotten);
        let due = self.low && now >= self.next;
        if due {
            self.next = now + self.every;
        }
        due
    }

    /// Returns whether a member has disk space, as far as is known.
    pub(crate) fn has_room(&self, member: NodeId) -> bool {
        if member == self.me { !self.low } else { !self.peers.contains_key(&member) }
    }

    /// Returns whether a majority of these voters has disk space for new entries.
    pub(crate) fn quorum_has_room(&self, voters: impl Iterator<Item = NodeId>) -> bool {
        let (mut all, mut with_room) = (0, 0);
        for voter in voters {
            all += 1;
            with_room += usize::from(self.has_room(voter));
        }
        all == 0 || with_room > all / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::{at, node};

    fn table() -> SpaceTable {
        SpaceTable::new(node(1), Duration::from_millis(500), at(0))
    }

    #[test]
    fn quorum_of_voters_must_have_space() {
        let mut table = table();
        let voters = || (1..=3).map(node);
        assert!(table.quorum_has_room(voters()));
        table.hear(node(3), true, at(0));
        table.hear(node(9), true, at(0));
        assert!(table.quorum_has_room(voters()), "two of three have, and 9 has no vote");
        assert!(table.own(true, at(1)), "that is news");
        assert!(!table.own(true, at(1)), "that is none");
        assert!(!table.quorum_has_room(voters()));
        table.hear(node(3), false, at(2));
        assert!(table.quorum_has_room(voters()));
        assert!(!table.has_room(node(1)) && table.has_room(node(3)));
        assert!(!table.quorum_has_room((1..=2).map(node)), "one of two is none");
        assert!(table.quorum_has_room(std::iter::empty()), "nobody is asked");
    }

    #[test]
    fn full_disk_is_reported_repeatedly() {
        let mut table = table();
        assert!(!table.tick(at(0)));
        table.own(true, at(100));
        let reports: Vec<u64> = (100..2000).filter(|ms| table.tick(at(*ms))).collect();
        assert_eq!(reports, [100, 600, 1100, 1600]);
        table.own(false, at(2000));
        assert!(!(2000..4000).any(|ms| table.tick(at(ms))));
    }

    #[test]
    fn unrepeated_space_report_expires() {
        let mut table = table();
        table.hear(node(2), true, at(0));
        table.tick(at(1999));
        assert!(!table.has_room(node(2)));
        table.tick(at(2000));
        assert!(table.has_room(node(2)));
    }
}
