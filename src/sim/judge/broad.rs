//! Judges requests about many keys: the whole reply must equal the result of the request when it is applied at its
//! revision in the history.

use super::super::plain::{self, Draft, Path, PlainStep, State};
use super::Judge;
use crate::model::{
    Event, KeyRange, Put, PutLease, Range, RangeReply, Rejection, Revision, Txn, TxnReply,
};

/// Prefix of the keys of these requests.
pub(crate) const BROAD: &str = "broad/";

impl Judge {
    /// Checks the reply of a range read.
    pub(crate) fn read_broadly(
        &mut self,
        floor: Revision,
        local: bool,
        range: &Range,
        reply: &RangeReply,
    ) {
        let state = self.broad_at(plain::asked(range).unwrap_or(reply.revision));
        let expected = plain::read(&state, range, reply.revision);
        let invariant = if range.revision.is_some() { "M-HIST" } else { "X-LIN" };
        self.expect(*reply == expected, invariant, || {
            format!("{range:?} is {expected:?}; a caller was told {reply:?}")
        });
        match local {
            true => {
                let (revision, newest) = (reply.revision, self.truth.newest());
                self.expect(floor <= revision && revision <= newest, "X-RYW", || {
                    format!("a local read shows {revision:?} after {floor:?}; newest is {newest:?}")
                });
                self.done("broad read");
            }
            false => self.changed_nothing("broad read", floor, reply.revision),
        }
    }

    /// Checks the reply of a transaction, or of a request that is equivalent to one.
    pub(crate) fn changed_broadly(
        &mut self,
        what: &'static str,
        floor: Revision,
        txn: &Txn,
        reply: &TxnReply,
    ) {
        let at = reply.revision;
        let before = Revision(at.get().saturating_sub(1));
        let made = self.means(txn, before);
        if let Some((told, events)) = &made
            && told == reply
            && self.truth.are_events(&KeyRange::all(), (before, at), events.iter())
        {
            self.wrote(what, floor, at, &[]);
            if events.len() > 1 {
                self.count("several changes at one revision");
            }
            return;
        }
        let found = self.means(txn, at);
        let is_so = found.as_ref().is_some_and(|(told, none)| told == reply && none.is_empty());
        self.expect(is_so, "M-TXN", || {
            format!(
                "{txn:?} is {made:?} if it made {at:?}, and {found:?} after it; a caller was told \
                 {reply:?}"
            )
        });
        self.changed_nothing(what, floor, at);
    }

    /// Checks that a transaction was rightly rejected as a whole.
    pub(crate) fn refused_broadly(&mut self, floor: Revision, txn: &Txn, why: &Rejection) {
        self.count("broad transaction refused");
        match why {
            Rejection::Compacted { asked, .. } => self.check_past_rejection(*asked, why),
            _ => {
                let mut since = floor.get()..=self.truth.newest().get();
                let is_so = since.any(|at| {
                    let state = self.broad_at(Revision(at));
                    let path = Path::choose(txn, &state);
                    path.flat().iter().any(|step| match (step, why) {
                        (PlainStep::Put(put), Rejection::LeaseNotFound(lease)) => {
                            put.lease == PutLease::Attach(*lease)
                        }
                        (PlainStep::Put(put), Rejection::KeyNotFound) => {
                            keeps_missing_lease(put, &state)
                        }
                        _ => false,
                    })
                });
                self.expect(is_so, "M-TXN", || {
                    format!("{txn:?} is refused, and nothing in it is a reason: {why}")
                });
            }
        }
    }

    /// Applies a transaction to the state at `base` and returns the expected reply and events. Returns `None` if the
    /// transaction must be rejected there.
    fn means(&self, txn: &Txn, base: Revision) -> Option<(TxnReply, Vec<Event>)> {
        let state = self.broad_at(base);
        let path = Path::choose(txn, &state);
        let refused = |step: &&PlainStep<'_>| matches!(step, PlainStep::Put(put) if keeps_missing_lease(put, &state));
        if path.flat().iter().any(refused) {
            return None;
        }
        let mut draft = Draft::new(base, state.clone());
        let reply = draft.txn(&path, &|revision| self.broad_at(revision));
        Some((reply, draft.events))
    }

    fn broad_at(&self, revision: Revision) -> State {
        let rows = self.truth.rows_at(&KeyRange::prefix(BROAD), revision);
        rows.into_iter().map(|row| (row.key.clone(), row.clone())).collect()
    }
}

/// Returns whether a put keeps the lease of a key that does not exist.
fn keeps_missing_lease(put: &Put, state: &State) -> bool {
    put.lease == PutLease::Keep && !state.contains_key(&put.key)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::super::super::clock::Timeline;
    use super::*;
    use crate::model::{Compare, Delete, LeaseId, Op, PutValue, TxnResult};

    fn key(name: &str) -> Bytes {
        format!("{BROAD}{name}").into()
    }

    fn put(name: &str, value: &str) -> Op {
        Op::Put(Put { prev_kv: true, ..Put::new(key(name), value.to_owned()) })
    }

    /// Returns a judge that has seen `a` and `b` put at revisions 2 and 3 and `txn` applied at 4, with the reply.
    fn after(txn: &Txn) -> (Judge, TxnReply) {
        let mut judge = Judge::new(Arc::new(Timeline::default()), 1);
        for (at, name) in [(1, "a"), (2, "b")] {
            let txn = Txn { success: vec![put(name, "#")], ..Txn::default() };
            let (_, events) = judge.means(&txn, Revision(at)).unwrap();
            judge.truth.values_repeat();
            judge.truth.learn(Revision(at + 1), &events).unwrap();
        }
        let (reply, events) = judge.means(txn, Revision(3)).unwrap();
        if !events.is_empty() {
            judge.truth.learn(Revision(4), &events).unwrap();
        }
        (judge, reply)
    }

    /// Returns the invariant that breaks if the caller gets the reply after `change` has altered it.
    fn told(txn: &Txn, change: impl FnOnce(&mut TxnReply)) -> Option<&'static str> {
        let (mut judge, mut reply) = after(txn);
        change(&mut reply);
        judge.changed_broadly("a transaction", Revision(3), txn, &reply);
        judge.verdict().err().map(|violation| violation.invariant)
    }

    fn wide() -> Txn {
        let delete = Delete { range: KeyRange::prefix(BROAD), prev_kv: true };
        let inner = Txn {
            compares: vec![Compare::missing(key("a"))],
            success: vec![put("c", "yes")],
            failure: vec![put("c", "no"), put("d", "no")],
        };
        Txn { success: vec![Op::Delete(delete), Op::Txn(inner)], ..Txn::default() }
    }

    #[test]
    fn every_part_of_a_transaction_reply_is_checked() {
        assert_eq!(told(&wide(), |_| {}), None);
        assert_eq!(told(&wide(), |reply| reply.succeeded = false), Some("M-TXN"));
        assert_eq!(told(&wide(), |reply| reply.revision = Revision(3)), Some("M-TXN"));
        assert_eq!(told(&wide(), |reply| drop(reply.results.pop())), Some("M-TXN"));
        let row_before = |reply: &mut TxnReply| {
            let TxnResult::Delete(deleted) = &mut reply.results[0] else { unreachable!() };
            deleted.prev_kvs[1].version += 1;
        };
        assert_eq!(told(&wide(), row_before), Some("M-TXN"));
        let inner = |reply: &mut TxnReply| {
            let TxnResult::Txn(inner) = &mut reply.results[1] else { unreachable!() };
            inner.succeeded = true;
        };
        assert_eq!(told(&wide(), inner), Some("M-TXN"));
    }

    #[test]
    fn read_only_transaction_is_checked_at_the_current_state() {
        let looks = |limit| {
            let range = Range { limit: Some(limit), ..Range::new(KeyRange::prefix(BROAD)) };
            Txn { success: vec![Op::Range(range)], ..Txn::default() }
        };
        assert_eq!(told(&looks(1), |_| {}), None);
        let more = |reply: &mut TxnReply| {
            let TxnResult::Range(range) = &mut reply.results[0] else { unreachable!() };
            range.more = !range.more;
        };
        assert_eq!(told(&looks(1), more), Some("M-TXN"));
        assert_eq!(told(&looks(2), more), Some("M-TXN"));
    }

    #[test]
    fn revision_belongs_to_one_request() {
        let (mut judge, reply) = after(&wide());
        for _ in 0..2 {
            assert_eq!(judge.verdict(), Ok(()));
            judge.changed_broadly("a transaction", Revision(3), &wide(), &reply);
            judge.callers.floor = Revision(3);
        }
        assert_eq!(judge.verdict().unwrap_err().invariant, "X-LIN");
    }

    #[test]
    fn missing_lease_rejection_is_valid_only_if_the_put_would_run() {
        let leased = Op::Put(Put::new(key("c"), "").lease(LeaseId::new(9).unwrap()));
        let why = Rejection::LeaseNotFound(LeaseId::new(9).unwrap());
        let refused = |compare: Compare| {
            let txn =
                Txn { compares: vec![compare], success: vec![leased.clone()], failure: vec![] };
            let (mut judge, _) = after(&Txn::default());
            judge.refused_broadly(Revision(2), &txn, &why);
            judge.verdict().err().map(|violation| violation.invariant)
        };
        assert_eq!(refused(Compare::exists(key("a"))), None);
        // The key did not exist yet at revision 2.
        assert_eq!(refused(Compare::missing(key("b"))), None);
        assert_eq!(refused(Compare::exists(key("c"))), Some("M-TXN"));
    }

    #[test]
    fn keep_lease_put_of_a_missing_key_must_be_rejected() {
        let keeps = |name| {
            let (key, value) = (key(name), PutValue::Set("#".into()));
            let put = Put { key, value, lease: PutLease::Keep, prev_kv: false };
            Txn { success: vec![Op::Put(put)], ..Txn::default() }
        };
        assert_eq!(told(&keeps("b"), |_| {}), None);
        let refused = |name| {
            let (mut judge, _) = after(&Txn::default());
            judge.refused_broadly(Revision(3), &keeps(name), &Rejection::KeyNotFound);
            judge.verdict().err().map(|violation| violation.invariant)
        };
        assert_eq!((refused("b"), refused("c")), (Some("M-TXN"), None));
        // A reply to a transaction that had to be rejected.
        let (mut judge, reply) = after(&keeps("b"));
        judge.changed_broadly("a transaction", Revision(3), &keeps("c"), &reply);
        assert_eq!(judge.verdict().unwrap_err().invariant, "M-TXN");
    }
}
