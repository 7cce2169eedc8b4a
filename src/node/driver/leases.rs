//! The leases as counted by the leader: answers renewals and questions, and proposes expiries.

use std::time::Duration;

use super::Driver;
use super::leader::LeaderState;
use crate::machine::LeaseChange;
use crate::metrics;
use crate::model::{Command, Item, LeaseId, LeaseLife, Moment};
use crate::node::leader::lessor::{Lessor, Renewal};
use crate::node::leader_queries::rounds::{Answer, LeaderQuery, LeaseQuestion, Question};

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
                    self.propose_until_applied(Command::Revoke(id));
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
        let margins = &self.shared.meters.lease_margin_seconds;
        let (mut looked, mut renewed) = (Vec::new(), Vec::new());
        while let Some(entry) = leading.renewals.first_entry()
            && *entry.key() <= applied
        {
            for LeaderQuery { origin, question } in entry.remove() {
                match question {
                    Question::Leases(question) => {
                        looked.push((origin, look(lessor, &question, margins)));
                    }
                    Question::Renew(leases) => {
                        renewed.push((origin, renew_all(lessor, leases, margins)));
                    }
                    Question::Read => {}
                }
            }
        }
        for (origin, answer) in looked.into_iter().chain(renewed) {
            self.reply(origin, answer);
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

/// Renews the leases of a node's sessions, and returns the answer.
fn renew_all(lessor: &mut Lessor, leases: Vec<LeaseId>, margins: &metrics::Seconds) -> Answer {
    let (mut renewed, mut gone) = (Vec::new(), Vec::new());
    for lease in leases {
        match renew(lessor, lease, margins) {
            Renewal::Renewed => renewed.push(lease),
            Renewal::Gone => gone.push(lease),
            Renewal::Expiring => {}
        }
    }
    Answer::Renewed { renewed, gone }
}

/// Returns the answer to a question about leases.
fn look(lessor: &mut Lessor, question: &LeaseQuestion, margins: &metrics::Seconds) -> Answer {
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
    Answer::Leases { living, gone }
}
