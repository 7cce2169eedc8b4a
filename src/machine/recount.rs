//! Recomputes the digest from the contents of an image.
//!
//! The sums of the [digest](super::digest) are updated as the state changes. If a bit of a lease, a
//! reply or a member flips in memory, the sums do not change. A snapshot of such a state would
//! contain a digest that does not match its contents, so it could not be loaded. Therefore, while a
//! snapshot is written, the sums are computed again from its contents and compared with the digest.
//! Only then may the log be truncated. In addition, each row has a checksum of its own.

use std::collections::BTreeMap;

use super::dedup_table::{self, AnswerRow};
use super::digest::{DigestParts, Fingerprint, configuration};
use super::lease::{LeaseRecord, attachment};
use super::row::RowRef;
use crate::model::{LifeRow, NodeId, StateHead};

/// The sums so far.
#[derive(Default)]
pub(super) struct Recount {
    live: u64,
    leases: u64,
    lives: Vec<LifeRow>,
    dedup: BTreeMap<NodeId, u64>,
}

impl Recount {
    /// Adds a row that is live at the revision of the image.
    pub(super) fn row(&mut self, row: RowRef<'_>) {
        self.live = self.live.wrapping_add(row.fingerprint());
        if let Some(lease) = row.meta().lease {
            self.leases = self.leases.wrapping_add(attachment(lease, row.key()));
        }
    }

    pub(super) fn lease(&mut self, lease: &LeaseRecord) {
        self.leases = self.leases.wrapping_add(lease.fingerprint());
    }

    pub(super) fn life(&mut self, life: &LifeRow) {
        self.lives.push(life.clone());
    }

    pub(super) fn answer(&mut self, AnswerRow { id, outcome, .. }: &AnswerRow) {
        let sum = self.dedup.entry(id.node).or_default();
        *sum = sum.wrapping_add(dedup_table::fingerprint(id.seq, outcome));
    }

    /// Returns the digest of everything counted.
    pub(super) fn digest(&self, head: &StateHead) -> u64 {
        let lives = self.lives.iter().fold(Fingerprint::default(), |print, life| {
            let LifeRow { node, incarnation, window } = life;
            let sum = self.dedup.get(node).copied().unwrap_or_default();
            print.life(*node, *incarnation, sum, (window.frontier, &window.open))
        });
        let parts = DigestParts {
            applied: head.index,
            rows: [self.live, head.past],
            revision: head.revision,
            compacted: head.compacted,
            leases: [self.leases, head.next_lease],
            dedup: lives.finish(),
            configuration: configuration(&head.members, &head.access, &head.alarms, head.version),
        };
        parts.digest()
    }
}
