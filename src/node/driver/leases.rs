//! The leases as counted by the leader: answers renewals and questions, and proposes expiries.

use std::time::Duration;

use super::Driver;
use super::leader::LeaderState;
use crate::machine::LeaseChange;
use crate::metrics;
use crate::model::{Command, Incarnation, Item, LeaseId, LeaseLife, Moment, PeerMessage};
use crate::node::lease_calls::LeaseQuestion;
use crate::node::lessor::{Lessor, Renewal};
use crate::node::reads::ReadOrigin;

/// Maximum number of leases that one entry ends.
const LEASES_AN_ENTRY: usize = 1_000;

/// Maximum number of lease expiries that are proposed and not applied. Further expiries wait, so
/// that they do not displace writes.
const LEASES_ENDING_MAX: usize = 4_000;

impl Driver {
    /// Processes an applied change of a lease.
    pub(super) fn follow_lease(&mut self, change: LeaseChange) {
        match &change {
            LeaseChange::Granted { .. } => self.shared.meters.lease_grants_total.one(),
            LeaseChange::Ended { .. } => self.shared.meters.lease_ends_total.one(),
        }
        let lessor = self.leader.as_mut().and_then(|leading| leading.lessor.as_mut());
        match change {
            LeaseChange::Granted { id, ttl, session } => {
                if let Some(lessor) = lessor {
                    lessor.granted(id, ttl);
                }
                // A late entry of an earlier incarnation granted the lease of that incarnation's own session.
                if let Some((node, incarnation, info)) = session
                    && info.own
                    && node == self.shared.settings.node
                    && incarnation < self.identity.incarnation()
                {
                    self.insist(Command::Revoke(id));
                }
            }
            LeaseChange::Ended { id } => {
                if let Some(lessor) = lessor {
                    lessor.ended(id);
                }
                self.lease_ended(id);
            }
        }
    }

    /// Processes the confirmed renewals whose index is applied. At this index, this replica
    /// contains every lease that the senders of the renewals know.
    pub(super) fn judge_renewals(&mut self) {
        let applied = self.machine.applied();
        let Some(leading) = &mut self.leader else { return };
        let Some(lessor) = &mut leading.lessor else { return };
        let (mut answers, mut looks) = (Vec::new(), Vec::new());
        while let Some(entry) = leading.renewals.first_entry() {
            if *entry.key() > applied {
                break;
            }
            for asker in entry.remove() {
                if let ReadOrigin::Leases { node, incarnation, question } = asker {
                    let margins = &self.shared.meters.lease_margin_seconds;
                    let message = lessor_says(lessor, incarnation, &question, margins);
                    looks.push((node, question.round, message));
                    continue;
                }
                let ReadOrigin::Renewal { node, incarnation, round, leases } = asker else {
                    continue;
                };
                let (mut renewed, mut gone) = (Vec::new(), Vec::new());
                for lease in leases {
                    match renew(lessor, lease, &self.shared.meters.lease_margin_seconds) {
                        Renewal::Renewed => renewed.push(lease),
                        Renewal::Gone => gone.push(lease),
                        Renewal::Expiring => {}
                    }
                }
                answers.push((node, incarnation, round, renewed, gone));
            }
        }
        for (node, round, message) in looks {
            match message {
                PeerMessage::LeaseAnswer { living, gone, .. }
                    if node == self.shared.settings.node =>
                {
                    self.to_leader.lease_calls.answered(round, &living, &gone);
                }
                message => self.send(node, message),
            }
        }
        for (node, incarnation, round, renewed, gone) in answers {
            if node == self.shared.settings.node {
                self.renewed(round, &renewed, &gone);
            } else {
                self.send(node, PeerMessage::Renewed { round, incarnation, renewed, gone });
            }
        }
    }

    /// As the leader: proposes the expiry of leases.
    pub(super) fn end_leases(&mut self, now: Moment) {
        let (term, applied) = (self.contact.term(), self.machine.applied());
        loop {
            let Some(LeaderState { lessor: Some(lessor), revoked, .. }) = &mut self.leader else {
                return;
            };
            lessor.advance(now);
            revoked.retain(|_, index| *index > applied);
            let room = LEASES_ENDING_MAX - lessor.expiring().min(LEASES_ENDING_MAX);
            let leases = lessor.due(room.min(LEASES_AN_ENTRY), |id| !revoked.contains_key(&id));
            if leases.is_empty() {
                return;
            }
            let count = leases.len() as u64;
            let item = Item::Expire { term, leases };
            if self.propose_items(std::slice::from_ref(&item)).is_err() {
                let Item::Expire { leases, .. } = item else { unreachable!("it was just made") };
                if let Some(lessor) = self.leader.as_mut().and_then(|l| l.lessor.as_mut())
                    && !mutant!(B41)
                {
                    lessor.not_proposed(&leases);
                }
                return;
            }
            self.shared.meters.lease_expiries_total.add(count);
        }
    }
}

/// Renews a lease, and records the time that it had left.
fn renew(lessor: &mut Lessor, lease: LeaseId, margins: &metrics::Seconds) -> Renewal {
    let (_, left) = lessor.look(lease);
    let renewal = lessor.renew(lease);
    if renewal == Renewal::Renewed {
        margins.add(left);
    }
    renewal
}

/// Returns the answer to a question about leases.
fn lessor_says(
    lessor: &mut Lessor,
    incarnation: Incarnation,
    question: &LeaseQuestion,
    margins: &metrics::Seconds,
) -> PeerMessage {
    let (mut living, mut gone) = (Vec::new(), Vec::new());
    for lease in &question.renew {
        renew(lessor, *lease, margins);
    }
    for &lease in question.renew.iter().chain(&question.look) {
        match lessor.look(lease) {
            (Renewal::Renewed, left) => {
                // Messages contain whole milliseconds, so round down.
                let left = left - Duration::from_nanos((left.as_nanos() % 1_000_000) as u64);
                living.push(LeaseLife { lease, left });
            }
            (Renewal::Gone, _) => gone.push(lease),
            (Renewal::Expiring, _) => {}
        }
    }
    PeerMessage::LeaseAnswer { round: question.round, incarnation, living, gone }
}
