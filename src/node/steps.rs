//! Changes of the members that callers on this node want, until the leader has made them.
//!
//! A wish is put to whoever leads, again and again until it is answered. That is safe, since a wish
//! that has come true already is answered as one that has just been granted. The caller hears of it
//! when this node's own replica has applied it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{LogIndex, MemberAnswer, MemberWish, Moment, NodeId};

use super::answer::{CallError, ReplyTo, StopReason};

/// How many wishes of one node may be open: more than an operator has, and less than a storm of
/// joining processes could heap up.
const OPEN_MAX: usize = 256;

/// See the module.
pub(crate) struct Steps {
    next_round: u64,
    open: BTreeMap<u64, Wanted>,
    ask_again_after: Duration,
}

struct Wanted {
    wish: MemberWish,
    deadline: Moment,
    reply: ReplyTo<NodeId>,
    ask_at: Moment,
    /// The leader has made it, there.
    done: Option<(NodeId, LogIndex)>,
}

impl Steps {
    /// Nobody wants anything.
    pub(crate) fn new(ask_again_after: Duration) -> Self {
        Self { next_round: 1, open: BTreeMap::new(), ask_again_after }
    }

    /// Takes a wish.
    pub(crate) fn add(
        &mut self,
        wish: MemberWish,
        deadline: Moment,
        reply: ReplyTo<NodeId>,
        now: Moment,
    ) {
        if self.open.len() >= OPEN_MAX {
            return reply.send(Err(CallError::Busy));
        }
        let wanted = Wanted { wish, deadline, reply, ask_at: now, done: None };
        self.open.insert(self.next_round, wanted);
        self.next_round += 1;
    }

    /// The next one to put to the leader.
    pub(crate) fn ask(&mut self, now: Moment) -> Option<(u64, MemberWish)> {
        let due = |wanted: &Wanted| wanted.done.is_none() && wanted.ask_at <= now;
        let (round, wanted) = self.open.iter_mut().find(|(_, wanted)| due(wanted))?;
        wanted.ask_at = now + self.ask_again_after;
        Some((*round, wanted.wish.clone()))
    }

    /// The leader has answered.
    pub(crate) fn answered(&mut self, round: u64, answer: MemberAnswer) {
        match answer {
            MemberAnswer::Done { id, index } => {
                if let Some(wanted) = self.open.get_mut(&round) {
                    wanted.done = Some((id, index));
                }
            }
            // It is asked again.
            MemberAnswer::NotLeader(_) => {}
            MemberAnswer::Refused(refusal) => {
                if let Some(wanted) = self.open.remove(&round) {
                    wanted.reply.send(Err(CallError::Members(refusal)));
                }
            }
        }
    }

    /// This replica has applied everything up to `index`.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        for (wanted, id) in self.take(|wanted| wanted.done.filter(|(_, at)| *at <= index)) {
            wanted.reply.send(Ok(id.0));
        }
    }

    /// Another leader: asks at once.
    pub(crate) fn leader_changed(&mut self, now: Moment) {
        for wanted in self.open.values_mut() {
            wanted.ask_at = now;
        }
    }

    /// Gives up those whose time is up: they may have come true, or may still.
    pub(crate) fn expire(&mut self, now: Moment) {
        let over =
            |wanted: &Wanted| (wanted.deadline <= now || wanted.reply.is_gone()).then_some(());
        for (wanted, ()) in self.take(over) {
            wanted.reply.send(Err(CallError::Deadline { maybe_applied: true }));
        }
    }

    /// Takes those out of which `what` says something.
    fn take<T>(&mut self, what: impl Fn(&Wanted) -> Option<T>) -> Vec<(Wanted, T)> {
        let found: Vec<(u64, T)> =
            self.open.iter().filter_map(|(round, wanted)| Some((*round, what(wanted)?))).collect();
        let mut take = |(round, said)| Some((self.open.remove(&round)?, said));
        found.into_iter().filter_map(&mut take).collect()
    }

    /// The node stops.
    pub(crate) fn stop(&mut self, reason: &StopReason) {
        for wanted in std::mem::take(&mut self.open).into_values() {
            let reason = reason.clone();
            wanted.reply.send(Err(CallError::Stopped { reason, maybe_applied: true }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MemberRefusal;
    use std::sync::{Arc, Mutex};

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    #[test]
    fn a_wish_is_asked_for_until_it_is_answered_and_told_when_it_is_applied_here() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let reply = || {
            let told = told.clone();
            ReplyTo::Call(Box::new(move |result| told.lock().unwrap().push(result)))
        };
        let id = NodeId::new(4).unwrap();
        let mut steps = Steps::new(Duration::from_millis(100));
        steps.add(MemberWish::Promote(id), at(1000), reply(), at(0));
        steps.add(MemberWish::Remove(id), at(1000), reply(), at(0));
        assert_eq!(steps.ask(at(0)), Some((1, MemberWish::Promote(id))));
        assert_eq!(steps.ask(at(0)), Some((2, MemberWish::Remove(id))));
        assert_eq!(steps.ask(at(99)), None);
        steps.answered(1, MemberAnswer::NotLeader(None));
        assert_eq!(steps.ask(at(100)), Some((1, MemberWish::Promote(id))));
        steps.answered(1, MemberAnswer::Done { id, index: LogIndex(9) });
        steps.answered(2, MemberAnswer::Refused(MemberRefusal::Pending));
        steps.applied(LogIndex(8));
        assert_eq!(told.lock().unwrap().len(), 1);
        steps.applied(LogIndex(9));
        steps.add(MemberWish::Remove(id), at(1000), reply(), at(200));
        steps.expire(at(1000));
        let expected = [
            Err(CallError::Members(MemberRefusal::Pending)),
            Ok(id),
            Err(CallError::Deadline { maybe_applied: true }),
        ];
        assert_eq!(*told.lock().unwrap(), expected);
    }
}
