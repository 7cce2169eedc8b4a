//! The digest, counted anew from what an image hands out.
//!
//! What the [digest](super::digest) is made of is kept as the state changes. A bit that flips in memory, of a lease, an
//! answer or a member, leaves it as it was: copies of such a state say that they are something that they are not, and
//! no machine can be made of them. Rows have checksums of their own; for the rest it is counted here, on the way into
//! the copy, before anybody lets go of a log because of it.

use std::collections::BTreeMap;

use super::dedup_table::{self, AnswerRow};
use super::digest::{Fingerprint, Parts, configuration};
use super::lease::{Held, attachment};
use super::row::RowRef;
use crate::model::{LifeRow, NodeId, StateHead};

/// What was counted so far.
#[derive(Default)]
pub(super) struct Recount {
    live: u64,
    leases: u64,
    lives: Vec<LifeRow>,
    dedup: BTreeMap<NodeId, u64>,
}

impl Recount {
    /// A row that is live at the revision of the image.
    pub(super) fn row(&mut self, row: RowRef<'_>) {
        self.live = self.live.wrapping_add(row.fingerprint());
        if let Some(lease) = row.meta().lease {
            self.leases = self.leases.wrapping_add(attachment(lease, row.key()));
        }
    }

    pub(super) fn lease(&mut self, lease: &Held) {
        self.leases = self.leases.wrapping_add(lease.fingerprint());
    }

    pub(super) fn life(&mut self, life: &LifeRow) {
        self.lives.push(life.clone());
    }

    pub(super) fn answer(&mut self, AnswerRow { id, outcome, .. }: &AnswerRow) {
        let sum = self.dedup.entry(id.node).or_default();
        *sum = sum.wrapping_add(dedup_table::fingerprint(id.seq, outcome));
    }

    /// What all of it amounts to.
    pub(super) fn digest(&self, head: &StateHead) -> u64 {
        let lives = self.lives.iter().fold(Fingerprint::default(), |print, life| {
            let LifeRow { node, incarnation, window } = life;
            let sum = self.dedup.get(node).copied().unwrap_or_default();
            print.life(*node, *incarnation, sum, (window.frontier, &window.open))
        });
        let parts = Parts {
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
