//! Leases: none ends before its time, none comes back, none is used twice.

use std::collections::BTreeMap;

use super::lease_calls::{LeaseCall, LeaseReply};
use super::{at_least, at_most};
use crate::check::history::{History, Index, Outcome};
use crate::check::value::Value;
use crate::check::verdict::{Counterexample, Verdict};

/// What is promised of leases.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Leases {
    /// By how many percent the clocks may go wrong that count a lease's time. By default 0.
    pub drift_percent: u64,
    /// How much the clocks of two processes may differ, in the history's unit. By default not at all.
    pub slack: u64,
    /// How long after its time a lease may still be there, in the history's unit: what leaders need to agree that it
    /// ended. By default nobody asks.
    pub late: Option<u64>,
}

/// A reply of known outcome about one lease.
#[derive(Clone, Copy)]
struct Fact<'a> {
    index: Index,
    invoked: u64,
    ended: u64,
    call: &'a LeaseCall,
    reply: LeaseReply,
}

/// Whether each lease lived as it should:
///
/// - **never early**: without a revocation it is there until its TTL, less the drift, has gone by since the call of its
///   grant or its last renewal was *made*;
/// - **gone is gone**: no lease that had ended, or was revoked, is renewed or seen after that;
/// - **granted first**: none is renewed, revoked or seen before its grant was called;
/// - **used once**: no two grants have one name;
/// - **not late**, if [`Leases::late`] says so.
///
/// Time grows as *n* log *n*. Deterministic; no clock, no thread.
///
/// ```
/// use bowline::check::intervals::{LeaseCall, LeaseReply, Leases, leases};
/// use bowline::check::Operation;
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
    let mut all: BTreeMap<(&str, &Value), Lease<'_>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        let lease = all
            .entry((&operation.object, operation.call.lease()))
            .or_insert_with(|| Lease::new(rules, operation));
        let (invoked, call) = (operation.invoked.0, &operation.call);
        match operation.outcome {
            Outcome::Failed { .. } => {}
            Outcome::Unknown { .. } => lease.unsure.push((invoked, call)),
            Outcome::Ok { at, reply } => {
                lease.facts.push(Fact { index, invoked, ended: at.0, call, reply });
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

struct Lease<'a> {
    rules: &'a Leases,
    object: &'a str,
    name: &'a Value,
    /// By their calls' moments.
    facts: Vec<Fact<'a>>,
    unsure: Vec<(u64, &'a LeaseCall)>,
}

impl<'a> Lease<'a> {
    fn new(
        rules: &'a Leases,
        operation: &'a crate::check::history::Operation<LeaseCall, LeaseReply>,
    ) -> Self {
        let (object, name) = (&*operation.object, operation.call.lease());
        Self { rules, object, name, facts: Vec::new(), unsure: Vec::new() }
    }

    fn violation(
        &self,
        rule: &'static str,
        operations: impl Into<Vec<Index>>,
        why: &str,
    ) -> Counterexample {
        Counterexample::new(rule, self.object, operations, format!("lease {}: {why}", self.name))
    }

    /// What makes it live: what counts its time from the beginning, and for how long.
    fn life(&self) -> Vec<(Fact<'a>, u64)> {
        let mut granted = None;
        let mut lives = Vec::new();
        let grants = self.facts.iter().filter_map(|fact| match fact.call {
            LeaseCall::Grant { ttl, .. } => Some(*ttl),
            _ => None,
        });
        let unsure = self.unsure.iter().filter_map(|(_, call)| match call {
            LeaseCall::Grant { ttl, .. } => Some(*ttl),
            _ => None,
        });
        let first = grants.chain(unsure).next();
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
        let is_grant = |fact: &&Fact<'_>| matches!(fact.call, LeaseCall::Grant { .. });
        let mut grants = self.facts.iter().filter(is_grant);
        let (first, second) = (grants.next()?.index, grants.next()?.index);
        let why = format!("both #{first} and #{second} granted it");
        Some(self.violation("used once", [first, second], &why))
    }

    /// Whether a moment by one clock lies before one by another.
    fn is_before(&self, one: u64, other: u64) -> bool {
        one.saturating_add(self.rules.slack) < other
    }

    fn granted_first(&self) -> Option<Counterexample> {
        let is_grant = |call: &LeaseCall| matches!(call, LeaseCall::Grant { .. });
        let known = self.facts.iter().find(|fact| is_grant(fact.call)).map(|fact| fact.invoked);
        // If nobody in the history granted it, it was granted before.
        let unsure = self.unsure.iter().filter(|(_, call)| is_grant(call));
        let granted = known.or_else(|| unsure.map(|(invoked, _)| *invoked).min())?;
        let early = self.facts.iter().find(|fact| {
            fact.reply.there && !is_grant(fact.call) && self.is_before(fact.ended, granted)
        })?;
        let grant = self.facts.iter().find(|fact| is_grant(fact.call));
        let operations: Vec<Index> =
            [early.index].into_iter().chain(grant.map(|grant| grant.index)).collect();
        let why = format!("#{} found it there before its grant was called", early.index);
        Some(self.violation("granted first", operations, &why))
    }

    /// Who found it gone when it was surely granted: it had been found there, or nobody in the history granted it.
    fn ends(&self) -> impl Iterator<Item = &Fact<'a>> {
        let is_grant = |call: &LeaseCall| matches!(call, LeaseCall::Grant { .. });
        let mut grants = self.facts.iter().map(|fact| fact.call);
        let mut unsure = self.unsure.iter().map(|(_, call)| *call);
        let is_old = !grants.any(is_grant) && !unsure.any(is_grant);
        let there = self.facts.iter().filter(|fact| fact.reply.there);
        let seen = there.map(|fact| fact.ended).min();
        self.facts.iter().filter(move |fact| {
            let was_seen = seen.is_some_and(|seen| self.is_before(seen, fact.invoked));
            !fact.reply.there && (is_old || was_seen)
        })
    }

    /// The first moment at which somebody may have revoked it.
    fn revoked(&self) -> Option<u64> {
        let is_revoke = |call: &LeaseCall| matches!(call, LeaseCall::Revoke { .. });
        let facts = self.facts.iter().filter(|fact| is_revoke(fact.call) && fact.reply.there);
        let unsure = self.unsure.iter().filter(|(_, call)| is_revoke(call));
        facts.map(|fact| fact.invoked).chain(unsure.map(|(invoked, _)| *invoked)).min()
    }

    fn never_early(&self) -> Option<Counterexample> {
        let Leases { drift_percent, slack, .. } = *self.rules;
        let mut lives = self.life();
        lives.sort_by_key(|(fact, _)| fact.ended);
        let mut lives = lives.into_iter().peekable();
        let mut longest: Option<(u64, Fact<'_>, u64)> = None;
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
                    "#{} gave it {ttl} from {} on, and #{} found it gone at {}, when nobody had revoked it",
                    fact.index, fact.invoked, gone.index, gone.ended
                );
                return Some(self.violation("never early", [fact.index, gone.index], &why));
            }
        }
        None
    }

    /// Also what was renewed while somebody found it gone: it was there then, so it was gone later, and too early.
    fn never_early_at_once(&self) -> Option<Counterexample> {
        let Leases { drift_percent, slack, .. } = *self.rules;
        let until = |(fact, ttl): &(Fact<'a>, u64)| {
            fact.invoked.saturating_add(at_least(*ttl, drift_percent))
        };
        let (fact, ttl) = self.life().into_iter().max_by_key(until)?;
        let until = until(&(fact, ttl));
        let revoked = self.revoked().unwrap_or(u64::MAX);
        let gone = self.ends().find(|gone| {
            gone.ended.saturating_add(slack) < until && self.is_before(gone.ended, revoked)
        })?;
        let why = format!(
            "#{} found it there and gave it {ttl} from {} on, and #{} found it gone at {}, when nobody had revoked it",
            fact.index, fact.invoked, gone.index, gone.ended
        );
        Some(self.violation("never early", [fact.index, gone.index], &why))
    }

    fn gone_is_gone(&self) -> Option<Counterexample> {
        let is_revoke =
            |fact: &&Fact<'_>| matches!(fact.call, LeaseCall::Revoke { .. }) && fact.reply.there;
        let revokes = self.facts.iter().filter(is_revoke);
        let gone = self.ends().chain(revokes).min_by_key(|fact| fact.ended)?;
        let is_life = |fact: &&Fact<'_>| {
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
            "#{} {how}, and #{}, which was called after that, found it there",
            gone.index, lives.index
        );
        let reason = self.violation("gone is gone", [gone.index, lives.index], &why);
        Some(reason.link(gone.index, lives.index, "had ended"))
    }

    fn not_late(&self) -> Option<Counterexample> {
        let late = self.rules.late?;
        let renewal =
            |call: &LeaseCall| matches!(call, LeaseCall::Renew { .. } | LeaseCall::Grant { .. });
        let unsure = self.unsure.iter().filter(|(_, call)| renewal(call));
        let unsure = unsure.map(|(invoked, _)| *invoked).min().unwrap_or(u64::MAX);
        let mut lives = self.life().into_iter().peekable();
        let mut longest: Option<(u64, Fact<'_>, u64)> = None;
        let mut looks: Vec<&Fact<'_>> = self
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
            // One of unknown outcome may have renewed it at any time.
            if look.invoked > due && unsure > look.ended {
                let why = format!(
                    "#{} gave it {ttl} until {} or so, and #{} found it there at {}",
                    fact.index, until, look.index, look.invoked
                );
                return Some(self.violation("not late", [fact.index, look.index], &why));
            }
        }
        None
    }
}
