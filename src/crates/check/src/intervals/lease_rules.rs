//! Rules for leases: no lease expires early, no ended lease exists again, and no name is reused.

use std::collections::BTreeMap;

use super::lease_calls::{LeaseCall, LeaseReply};
use super::{at_least, at_most};
use crate::history::{History, Index, Outcome};
use crate::value::Value;
use crate::verdict::{Counterexample, Verdict};

/// The promises that a history of leases is checked against.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Leases {
    /// Maximum rate error of the clocks that measure the TTL, in percent. Default 0.
    pub drift_percent: u64,
    /// Maximum difference between the clocks of two processes, in the unit of the history. Default 0.
    pub slack: u64,
    /// Maximum time for which a lease may outlive its TTL, in the unit of the history. Leaders need this time to
    /// agree on the expiry. Default: not checked.
    pub late: Option<u64>,
}

/// A reply of known outcome about one lease.
#[derive(Clone, Copy)]
struct LeaseFact<'a> {
    index: Index,
    invoked: u64,
    ended: u64,
    call: &'a LeaseCall,
    reply: LeaseReply,
}

/// Checks the lifetime of each lease:
///
/// - **never early**: an unrevoked lease exists until its TTL, minus the drift, has passed since the call of its
///   grant or last renewal was *made*;
/// - **no return**: a lease that has expired or was revoked is never renewed or seen again;
/// - **granted first**: no lease is renewed, revoked or seen before the call of its grant;
/// - **used once**: no two grants use the same name;
/// - **not late**: checked if [`Leases::late`] is set.
///
/// Takes *n* log *n* time. Deterministic; uses no clock and no thread.
///
/// ```
/// use bowline_check::intervals::{LeaseCall, LeaseReply, Leases, leases};
/// use bowline_check::Operation;
///
/// let (there, gone) = (LeaseReply { there: true, ttl: None }, LeaseReply { there: false, ttl: None });
/// let history = vec![
///     Operation::ok(0, 1, LeaseCall::Grant { lease: 7.into(), ttl: 100 }, there),
///     Operation::ok(50, 51, LeaseCall::Renew { lease: 7.into() }, there),
///     Operation::ok(140, 141, LeaseCall::Look { lease: 7.into() }, gone),
/// ];
/// let verdict = leases(&Leases::default(), &history);
/// assert_eq!(verdict.violation().unwrap().operations, [1, 2]);
/// assert!(leases(&Leases { drift_percent: 10, ..Leases::default() }, &history).is_ok());
/// ```
pub fn leases(rules: &Leases, history: &History<LeaseCall, LeaseReply>) -> Verdict {
    by_lease(rules, history).showing(history)
}

fn by_lease(rules: &Leases, history: &History<LeaseCall, LeaseReply>) -> Verdict {
    let mut all: BTreeMap<(&str, &Value), CheckedLease<'_>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        let lease = all
            .entry((&operation.object, operation.call.lease()))
            .or_insert_with(|| CheckedLease::new(rules, operation));
        let (invoked, call) = (operation.invoked.0, &operation.call);
        match operation.outcome {
            Outcome::Failed { .. } => {}
            Outcome::Unknown { .. } => lease.uncertain.push((invoked, call)),
            Outcome::Ok { at, reply } => {
                lease.facts.push(LeaseFact { index, invoked, ended: at.0, call, reply });
            }
        }
    }
    for lease in all.values_mut() {
        lease.facts.sort_by_key(|fact| (fact.invoked, fact.index));
        if let Some(reason) = lease.broken() {
            return reason.into();
        }
    }
    Verdict::Ok
}

struct CheckedLease<'a> {
    rules: &'a Leases,
    object: &'a str,
    name: &'a Value,
    /// Sorted by the time of the call.
    facts: Vec<LeaseFact<'a>>,
    uncertain: Vec<(u64, &'a LeaseCall)>,
}

impl<'a> CheckedLease<'a> {
    fn new(
        rules: &'a Leases,
        operation: &'a crate::history::Operation<LeaseCall, LeaseReply>,
    ) -> Self {
        let (object, name) = (&*operation.object, operation.call.lease());
        Self { rules, object, name, facts: Vec::new(), uncertain: Vec::new() }
    }

    fn violation(
        &self,
        rule: &'static str,
        operations: impl Into<Vec<Index>>,
        why: &str,
    ) -> Counterexample {
        Counterexample::new(rule, self.object, operations, format!("lease {}: {why}", self.name))
    }

    /// Returns the grants and renewals, each with the TTL that counts from then on.
    fn life(&self) -> Vec<(LeaseFact<'a>, u64)> {
        let mut granted = None;
        let mut lives = Vec::new();
        let grants = self.facts.iter().filter_map(|fact| match fact.call {
            LeaseCall::Grant { ttl, .. } => Some(*ttl),
            _ => None,
        });
        let uncertain = self.uncertain.iter().filter_map(|(_, call)| match call {
            LeaseCall::Grant { ttl, .. } => Some(*ttl),
            _ => None,
        });
        let first = grants.chain(uncertain).next();
        for fact in &self.facts {
            match fact.call {
                LeaseCall::Grant { ttl, .. } => {
                    granted = Some(*ttl);
                    lives.push((*fact, *ttl));
                }
                LeaseCall::Renew { .. } if fact.reply.there => {
                    granted = fact.reply.ttl.or(granted).or(first);
                    lives.extend(granted.map(|ttl| (*fact, ttl)));
                }
                _ => {}
            }
        }
        lives
    }

    fn broken(&self) -> Option<Counterexample> {
        self.used_once()
            .or_else(|| self.granted_first())
            .or_else(|| self.never_early())
            .or_else(|| self.gone_is_gone())
            .or_else(|| self.never_early_at_once())
            .or_else(|| self.not_late())
    }

    fn used_once(&self) -> Option<Counterexample> {
        let is_grant = |fact: &&LeaseFact<'_>| matches!(fact.call, LeaseCall::Grant { .. });
        let mut grants = self.facts.iter().filter(is_grant);
        let (first, second) = (grants.next()?.index, grants.next()?.index);
        let why = format!("granted by both #{first} and #{second}");
        Some(self.violation("used once", [first, second], &why))
    }

    /// Returns whether a moment by one clock is certainly before a moment by another.
    fn is_before(&self, one: u64, other: u64) -> bool {
        one.saturating_add(self.rules.slack) < other
    }

    fn granted_first(&self) -> Option<Counterexample> {
        let is_grant = |call: &LeaseCall| matches!(call, LeaseCall::Grant { .. });
        let known = self.facts.iter().find(|fact| is_grant(fact.call)).map(|fact| fact.invoked);
        // If the history has no grant of the lease, the lease was granted before the history began.
        let uncertain = self.uncertain.iter().filter(|(_, call)| is_grant(call));
        let granted = known.or_else(|| uncertain.map(|(invoked, _)| *invoked).min())?;
        let early = self.facts.iter().find(|fact| {
            fact.reply.there && !is_grant(fact.call) && self.is_before(fact.ended, granted)
        })?;
        let grant = self.facts.iter().find(|fact| is_grant(fact.call));
        let operations: Vec<Index> =
            [early.index].into_iter().chain(grant.map(|grant| grant.index)).collect();
        let why = format!("#{} found it before its grant was called", early.index);
        Some(self.violation("granted first", operations, &why))
    }

    /// Returns the replies that found the lease gone after it was certainly granted: it had been seen before, or the
    /// history has no grant of it.
    fn ends(&self) -> impl Iterator<Item = &LeaseFact<'a>> {
        let is_grant = |call: &LeaseCall| matches!(call, LeaseCall::Grant { .. });
        let mut grants = self.facts.iter().map(|fact| fact.call);
        let mut uncertain = self.uncertain.iter().map(|(_, call)| *call);
        let is_old = !grants.any(is_grant) && !uncertain.any(is_grant);
        let there = self.facts.iter().filter(|fact| fact.reply.there);
        let seen = there.map(|fact| fact.ended).min();
        self.facts.iter().filter(move |fact| {
            let was_seen = seen.is_some_and(|seen| self.is_before(seen, fact.invoked));
            !fact.reply.there && (is_old || was_seen)
        })
    }

    /// Returns the first moment at which the lease may have been revoked.
    fn revoked(&self) -> Option<u64> {
        let is_revoke = |call: &LeaseCall| matches!(call, LeaseCall::Revoke { .. });
        let facts = self.facts.iter().filter(|fact| is_revoke(fact.call) && fact.reply.there);
        let uncertain = self.uncertain.iter().filter(|(_, call)| is_revoke(call));
        facts.map(|fact| fact.invoked).chain(uncertain.map(|(invoked, _)| *invoked)).min()
    }

    fn never_early(&self) -> Option<Counterexample> {
        let Leases { drift_percent, slack, .. } = *self.rules;
        let mut lives = self.life();
        lives.sort_by_key(|(fact, _)| fact.ended);
        let mut lives = lives.into_iter().peekable();
        let mut longest: Option<(u64, LeaseFact<'_>, u64)> = None;
        let revoked = self.revoked().unwrap_or(u64::MAX);
        for gone in self.facts.iter().filter(|fact| !fact.reply.there) {
            while let Some((fact, ttl)) =
                lives.next_if(|(fact, _)| self.is_before(fact.ended, gone.invoked))
            {
                let until = fact.invoked.saturating_add(at_least(ttl, drift_percent));
                if longest.is_none_or(|(before, ..)| before < until) {
                    longest = Some((until, fact, ttl));
                }
            }
            let Some((until, fact, ttl)) = longest else { continue };
            if gone.ended.saturating_add(slack) < until && self.is_before(gone.ended, revoked) {
                let why = format!(
                    "#{} gave it a TTL of {ttl} from {} on, but #{} found it gone at {} without a revocation",
                    fact.index, fact.invoked, gone.index, gone.ended
                );
                return Some(self.violation("never early", [fact.index, gone.index], &why));
            }
        }
        None
    }

    /// Checks "never early" for a renewal that was concurrent with a reply that found the lease gone. The renewal
    /// succeeded, so the lease ended after the renewal, which was too early.
    fn never_early_at_once(&self) -> Option<Counterexample> {
        let Leases { drift_percent, slack, .. } = *self.rules;
        let until = |(fact, ttl): &(LeaseFact<'a>, u64)| {
            fact.invoked.saturating_add(at_least(*ttl, drift_percent))
        };
        let (fact, ttl) = self.life().into_iter().max_by_key(until)?;
        let until = until(&(fact, ttl));
        let revoked = self.revoked().unwrap_or(u64::MAX);
        let gone = self.ends().find(|gone| {
            gone.ended.saturating_add(slack) < until && self.is_before(gone.ended, revoked)
        })?;
        let why = format!(
            "#{} found it and gave it a TTL of {ttl} from {} on, but #{} found it gone at {} without a revocation",
            fact.index, fact.invoked, gone.index, gone.ended
        );
        Some(self.violation("never early", [fact.index, gone.index], &why))
    }

    fn gone_is_gone(&self) -> Option<Counterexample> {
        let is_revoke = |fact: &&LeaseFact<'_>| {
            matches!(fact.call, LeaseCall::Revoke { .. }) && fact.reply.there
        };
        let revokes = self.facts.iter().filter(is_revoke);
        let gone = self.ends().chain(revokes).min_by_key(|fact| fact.ended)?;
        let is_life = |fact: &&LeaseFact<'_>| {
            fact.reply.there
                && !matches!(fact.call, LeaseCall::Grant { .. })
                && self.is_before(gone.ended, fact.invoked)
        };
        let lives = self.facts.iter().find(is_life)?;
        let how = match gone.call {
            LeaseCall::Revoke { .. } if gone.reply.there => "revoked it",
            _ => "found it gone",
        };
        let why = format!(
            "#{} {how}, but #{}, which was called after that, found it",
            gone.index, lives.index
        );
        let reason = self.violation("gone is gone", [gone.index, lives.index], &why);
        Some(reason.link(gone.index, lives.index, "had ended"))
    }

    fn not_late(&self) -> Option<Counterexample> {
        let late = self.rules.late?;
        let renewal =
            |call: &LeaseCall| matches!(call, LeaseCall::Renew { .. } | LeaseCall::Grant { .. });
        let uncertain = self.uncertain.iter().filter(|(_, call)| renewal(call));
        let uncertain = uncertain.map(|(invoked, _)| *invoked).min().unwrap_or(u64::MAX);
        let mut lives = self.life().into_iter().peekable();
        let mut longest: Option<(u64, LeaseFact<'_>, u64)> = None;
        let mut looks: Vec<&LeaseFact<'_>> = self
            .facts
            .iter()
            .filter(|fact| matches!(fact.call, LeaseCall::Look { .. }) && fact.reply.there)
            .collect();
        looks.sort_by_key(|look| (look.ended, look.index));
        for look in looks {
            while let Some((fact, ttl)) =
                lives.next_if(|(fact, _)| !self.is_before(look.ended, fact.invoked))
            {
                let until = fact.ended.saturating_add(at_most(ttl, self.rules.drift_percent));
                if longest.is_none_or(|(before, ..)| before < until) {
                    longest = Some((until, fact, ttl));
                }
            }
            let Some((until, fact, ttl)) = longest else { continue };
            let due = until.saturating_add(late).saturating_add(self.rules.slack);
            // A renewal of unknown outcome may have taken effect at any time.
            if look.invoked > due && uncertain > look.ended {
                let why = format!(
                    "#{} gave it a TTL of {ttl}, until about {}, but #{} still found it at {}",
                    fact.index, until, look.index, look.invoked
                );
                return Some(self.violation("not late", [fact.index, look.index], &why));
            }
        }
        None
    }
}
