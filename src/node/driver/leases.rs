//! The leader's handling of leases: answers renewals and TTL queries, and proposes expiries.

use std::time::Duration;

use super::Driver;
use crate::machine::LeaseChange;
use crate::metrics;
use crate::model::{Command, Item, LeaseId, LeaseLife, LogIndex, Moment};
use crate::node::leader::lessor::{DirectRenewal, Lessor, Renewal};
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
        self.shared.lessor.with(|lessor| match &change {
            LeaseChange::Granted { id, ttl, .. } => lessor.granted(*id, *ttl, self.shared.now()),
            LeaseChange::Ended { id } => lessor.ended(*id),
        });
        match change {
            LeaseChange::Granted { id, ttl: _, session } => {
                // An entry of an earlier incarnation was applied late and granted a lease for its
                // own session, so revoke that lease.
                if let Some((node, incarnation, info)) = session
                    && info.own
                    && node == self.shared.settings.node
                    && incarnation < self.identity.incarnation()
                {
                    self.propose_until_applied(Command::Revoke(id));
                }
            }
            LeaseChange::Ended { id } => self.lease_ended(id),
        }
    }

    /// Processes the confirmed renewals whose index is applied. At this index, this replica
    /// contains every lease that the senders of the renewals know.
    pub(super) fn evaluate_renewals(&mut self) {
        let (applied, now) = (self.machine.applied(), self.shared.now());
        let Some(leading) = &mut self.leader else { return };
        let first = leading.renewals.first_key_value();
        if first.is_none_or(|(index, _)| *index > applied) || !self.shared.lessor.is_counting() {
            return;
        }
        let later = leading.renewals.split_off(&LogIndex(applied.get() + 1));
        let due = std::mem::replace(&mut leading.renewals, later).into_values().flatten();
        let margins = &self.shared.meters.lease_margin_seconds;
        let (mut looked, mut renewed) = (Vec::new(), Vec::new());
        self.shared.lessor.with(|lessor| {
            for LeaderQuery { origin, question } in due {
                match question {
                    Question::Leases(question) => {
                        looked.push((origin, look(lessor, &question, now, margins)));
                    }
                    Question::Renew(leases) => {
                        renewed.push((origin, renew_all(lessor, leases, now, margins)));
                    }
                    Question::Read => {}
                }
            }
        });
        for (origin, answer) in looked.into_iter().chain(renewed) {
            self.reply(origin, answer);
        }
    }

    /// As the leader: renews all of these leases without a round, and returns the answer. Returns `None` if a round is
    /// needed.
    pub(super) fn renew_at_once(&self, question: &Question) -> Option<Answer> {
        // Read the clock after the question has arrived, because the leader lease must be valid
        // after that.
        let now = self.shared.now();
        let margins = &self.shared.meters.lease_margin_seconds;
        let renew = |lessor: &mut Lessor, leases: &[LeaseId]| -> Option<Vec<LeaseLife>> {
            let renew = |lease: &LeaseId| {
                let DirectRenewal { margin, ttl } = lessor.renew_at_once(*lease, now)?;
                margins.add(margin);
                Some(LeaseLife { lease: *lease, left: ttl })
            };
            leases.iter().map(renew).collect()
        };
        let gone = Vec::new();
        self.shared.lessor.with(|lessor| match question {
            Question::Renew(leases) => {
                let renewed = renew(lessor, leases)?.into_iter().map(|life| life.lease).collect();
                Some(Answer::Renewed { renewed, gone })
            }
            Question::Leases(LeaseQuestion { renew: leases, look }) if look.is_empty() => {
                Some(Answer::Leases { living: renew(lessor, leases)?, gone })
            }
            Question::Leases(_) | Question::Read => None,
        })?
    }

    /// As the leader: proposes the expiry of leases.
    pub(super) fn end_leases(&mut self, now: Moment) {
        let (term, applied) = (self.contact.term(), self.machine.applied());
        loop {
            let leases = self.shared.lessor.with(|lessor| {
                lessor.advance(now);
                lessor.applied(applied);
                let room = LEASES_ENDING_MAX - lessor.expiring().min(LEASES_ENDING_MAX);
                lessor.due(room.min(LEASES_AN_ENTRY))
            });
            let leases = leases.unwrap_or_default();
            if leases.is_empty() {
                return;
            }
            let count = leases.len() as u64;
            let item = Item::Expire { term, leases };
            if self.propose_items(std::slice::from_ref(&item)).is_err() {
                let Item::Expire { leases, .. } = item else { unreachable!("it was just made") };
                if !mutant!(B41) {
                    self.shared.lessor.with(|lessor| lessor.not_proposed(&leases));
                }
                return;
            }
            self.shared.meters.lease_expiries_total.add(count);
        }
    }
}

/// Renews a lease, and records its remaining TTL before the renewal.
fn renew(lessor: &mut Lessor, lease: LeaseId, now: Moment, margins: &metrics::Seconds) -> Renewal {
    let (_, left) = lessor.look(lease);
    let renewal = lessor.renew(lease, now);
    if renewal == Renewal::Renewed {
        margins.add(left);
    }
    renewal
}

/// Renews the leases of a node's sessions, and returns the answer.
fn renew_all(
    lessor: &mut Lessor,
    leases: Vec<LeaseId>,
    now: Moment,
    margins: &metrics::Seconds,
) -> Answer {
    let (mut renewed, mut gone) = (Vec::new(), Vec::new());
    for lease in leases {
        match renew(lessor, lease, now, margins) {
            Renewal::Renewed => renewed.push(lease),
            Renewal::Gone => gone.push(lease),
            Renewal::Expiring => {}
        }
    }
    Answer::Renewed { renewed, gone }
}

/// Returns the answer to a question about leases.
fn look(
    lessor: &mut Lessor,
    question: &LeaseQuestion,
    now: Moment,
    margins: &metrics::Seconds,
) -> Answer {
    let (mut living, mut gone) = (Vec::new(), Vec::new());
    for lease in &question.renew {
        renew(lessor, *lease, now, margins);
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
