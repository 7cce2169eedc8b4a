//! A workload of an election: candidates campaign, lead for a while, and resign. While one candidate believes that it
//! is the leader, no other candidate may believe so. Tokens must rise. A query for the leader must return a candidate
//! that may be the leader at that time.
//!
//! The history is checked twice: by the replies to calls and observers ([`linear`]), and by the times during which
//! candidates believed that they were the leader ([`intervals::holds`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline_check::intervals::{self, HoldCall, HoldKind, HoldReply, Holds};
use bowline_check::models::CurrentLeader;
use bowline_check::{
    At, ElectionCall, ElectionModel, ElectionReply, History, Operation, Outcome, Value, linear,
};

use super::lock::{token_number, was_passed_on};
use super::{Client, Exhibit, Kind, Workload, budget};
use crate::caller::{Caller, HOLD_TIME_MAX, Miss, Timed};
use crate::calls::{Call, Reply};
use crate::ledger::Book;
use crate::progress::PASSED_ON;

pub(super) const KIND: Kind = Kind {
    name: "election",
    about: "no two candidates believe that they lead at one time, and observers see a possible leader",
    least: &[("campaign", 60), ("observe", 30)],
    clients: 2,
    control: None,
    make: || Box::new(Elections::default()),
};

/// Number of elections in use at a time. If a crash blocks two of them, one is left for the other clients.
const ELECTIONS: u64 = 3;
/// Number of terms after which new elections are used, because short histories are checked faster.
const TERMS: u64 = 400;
const WAIT_MS: u64 = 2000;
const LEADS_MS: u64 = 12;

/// The workload.
#[derive(Default)]
struct Elections {
    book: Book<ElectionCall, ElectionReply>,
    holds: Book<HoldCall, HoldReply>,
    next: AtomicU64,
}

fn name(number: u64, caller: &mut Caller<'_>) -> String {
    format!("e/{:04}/{}", number / TERMS, caller.dice.below(ELECTIONS))
}

/// Returns the kind under which a campaign is recorded.
fn kind_of(stood: &Result<ElectionReply, Miss>) -> &'static str {
    match stood {
        Ok(ElectionReply::Elected { token: Some(token) }) if was_passed_on(*token) => PASSED_ON,
        _ => "campaign",
    }
}

impl Elections {
    fn observe(&self, caller: &mut Caller<'_>) {
        let name = name(self.next.load(Ordering::Relaxed), caller);
        let call = Call::Leader { name: name.clone() };
        let observe = |caller: &mut Caller<'_>| match caller.call(&call)? {
            Reply::Leader(leader) => {
                // The published value is the name of the candidate.
                let leading = |who: String| {
                    let candidate = Value::from(who.as_str());
                    CurrentLeader { value: candidate.clone(), candidate, token: None }
                };
                Ok(ElectionReply::Leader(leader.map(leading)))
            }
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.book, "observe", &name, ElectionCall::Leader, observe));
    }

    fn lead(&self, caller: &mut Caller<'_>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (name, client) = (name(number, caller), caller.client);
        let slot = format!("{client}.{number}");
        let candidate = || Value::from(slot.as_str());
        let campaign = Call::Campaign {
            slot: slot.clone(),
            name: name.clone(),
            value: slot.clone(),
            wait_ms: WAIT_MS,
        };
        let stand = ElectionCall::Campaign { candidate: candidate(), value: candidate() };
        let mut seen = caller.now();
        let stood = caller.operation_as(&self.book, kind_of, &name, stand, |caller| {
            match caller.call(&campaign)? {
                Reply::Granted { token } => {
                    Ok(ElectionReply::Elected { token: Some(token_number(token)) })
                }
                reply => Err(Miss::nonsense(&reply)),
            }
        });
        let token = match stood {
            Ok(ElectionReply::Elected { token }) => token,
            Err(Miss::Failed(_)) => return,
            Ok(_) | Err(Miss::Unknown(_)) => {
                caller.forget(slot.clone());
                let expire = ElectionCall::Expire { candidate: candidate() };
                self.book.begin(client, &name, seen, expire);
                return;
            }
        };
        let since = caller.now();
        let (looks, begun, mut clings) = (caller.dice.below(3), Instant::now(), None);
        for look in 0.. {
            // Whether to keep the hold longer is decided only at the planned end, because the server may have been
            // paused meanwhile.
            let continues = look < looks || *clings.get_or_insert_with(|| caller.clings());
            if !continues || begun.elapsed() > HOLD_TIME_MAX {
                break;
            }
            thread::sleep(Duration::from_millis(caller.dice.below(LEADS_MS)));
            let look = Call::Look { slot: slot.clone() };
            let said = caller.timed("look", |caller| caller.call(&look)).result;
            // The time at which the state of the hold was read, which may be long after the request was sent.
            let Some(at) = said.ok().and_then(|said| caller.ledger.seen(&said)) else { break };
            seen = seen.max(at);
        }
        let release = Call::Release { slot: slot.clone() };
        let Timed { result, invoked, ended } =
            caller.timed("resign", |caller| caller.call(&release));
        let has_resigned = matches!(result, Ok(Reply::Held { held: true, .. }));
        let at = result.ok().and_then(|said| caller.ledger.seen(&said));
        seen = at.map_or(seen, |at| seen.max(at));
        if has_resigned {
            seen = seen.max(invoked);
            let resign = ElectionCall::Resign { candidate: candidate() };
            let index = self.book.begin(client, &name, seen, resign);
            self.book.end(index, Outcome::Ok { at: At(ended), reply: ElectionReply::Done });
        } else {
            // The leadership was lost at some time after the holder was last seen to lead.
            caller.forget(slot.clone());
            let expire = ElectionCall::Expire { candidate: candidate() };
            self.book.begin(client, &name, seen, expire);
        }
        if seen < since {
            // The leadership may have been lost before the reply arrived.
            return;
        }
        let hold = HoldCall::Hold { owner: candidate(), kind: HoldKind::Write, token };
        let index = self.holds.begin(client, &name, since, hold);
        let reply = HoldReply { lost: !has_resigned };
        self.holds.end(index, Outcome::Ok { at: At(seen), reply });
    }
}

impl Client for &Elections {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(4) == 0 {
            self.observe(caller);
        } else {
            self.lead(caller);
        }
    }
}

impl Workload for Elections {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let model = ElectionModel { is_fenced: true };
        let elections = move |history: &History<_, _>| linear::check(&model, history, budget());
        let leads = |history: &History<_, _>| intervals::holds(&Holds::default(), history);
        let (calls, holds) = (with_those_who_gave_up(self.book.history()), self.holds.history());
        vec![
            Exhibit::new("elections", "--model election --fenced", calls, elections),
            Exhibit::new("leads", "--model holds", holds, leads),
        ]
    }
}

/// A candidate that gives up while it is isolated stays in the queue until its session has ended. Until then, queries
/// may return it as the leader. If a query returned the candidate of a failed campaign, the campaign is therefore
/// recorded as unknown, and its leadership as expired.
fn with_those_who_gave_up(
    mut history: History<ElectionCall, ElectionReply>,
) -> History<ElectionCall, ElectionReply> {
    let seen: BTreeSet<String> = (history.iter())
        .filter_map(|operation| match &operation.outcome {
            Outcome::Ok { reply: ElectionReply::Leader(Some(leading)), .. } => {
                Some(leading.candidate.to_string())
            }
            _ => None,
        })
        .collect();
    let mut expired = Vec::new();
    for operation in &mut history {
        let ElectionCall::Campaign { candidate, .. } = &operation.call else { continue };
        let has_failed = matches!(operation.outcome, Outcome::Failed { .. });
        if has_failed && seen.contains(&candidate.to_string()) {
            let call = ElectionCall::Expire { candidate: candidate.clone() };
            operation.outcome = Outcome::Unknown { at: None };
            expired.push(Operation { call, ..operation.clone() });
        }
    }
    history.extend(expired);
    history
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress;

    #[test]
    fn abandoned_candidate_may_lead_but_a_stranger_may_not() {
        let campaign =
            |who: &str| ElectionCall::Campaign { candidate: who.into(), value: who.into() };
        let leading =
            |who: &str| CurrentLeader { candidate: who.into(), value: who.into(), token: None };
        let sees = |who: &str| {
            let history = vec![
                Operation::failed(1, campaign("a")),
                Operation::ok(
                    5,
                    6,
                    ElectionCall::Leader,
                    ElectionReply::Leader(Some(leading(who))),
                ),
                Operation::ok(7, 8, campaign("b"), ElectionReply::Elected { token: Some(3) }),
            ];
            let model = ElectionModel { is_fenced: true };
            linear::check(&model, &with_those_who_gave_up(history), budget())
        };
        assert!(sees("a").is_ok(), "{}", sees("a"));
        assert!(sees("c").violation().is_some());
    }

    #[test]
    fn leadership_handed_off_locally_is_not_progress() {
        let needs_a_quorum = |handoff| {
            let token = Some(token_number((9, handoff)));
            progress::needs_a_quorum(kind_of(&Ok(ElectionReply::Elected { token })))
        };
        assert!(needs_a_quorum(0) && !needs_a_quorum(1));
    }
}
