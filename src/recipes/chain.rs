//! Transactions with several alternatives, of which the first whose conditions hold is carried out.
//!
//! A plain compare-and-set guesses one state, and loses whenever another was faster; whoever sits next
//! to the leader is faster all the time. Where the change is a step of known size, the states that
//! others will have made by then can be guessed too: `5 -> 6, or 6 -> 7, or 7 -> 8, ...` as one
//! transaction, nested in the branches for "else". Several such transactions in one log entry all
//! succeed, one after the other.
//!
//! Answers have no rows, so that they are small enough to be kept for as long as somebody waits.

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, Op, Revision, Txn, TxnReply, TxnResult};

use super::call::Until;

/// How many states are guessed at most; the limit on the depth of transactions may want fewer.
const GUESSES_MAX: usize = 8;

/// How many tasks that share a handle try at the same time. The others wait for their turn: together
/// with those of another node, nearly all of them hit one of the guesses.
pub(crate) const TRIES_MAX: usize = 4;

/// One way in which a transaction may go.
pub(crate) struct Way {
    /// If these hold, and no earlier way was taken.
    pub(crate) when: Vec<Compare>,
    /// This is done.
    pub(crate) then: Vec<Op>,
}

/// How many ways a transaction may have.
pub(crate) fn ways_max(client: &Client) -> usize {
    client.shared.settings.limits.txn_depth_max.clamp(1, GUESSES_MAX)
}

/// The transaction that tries one way after the other.
pub(crate) fn chain(ways: Vec<Way>) -> Txn {
    let nest = |rest: Option<Txn>, way: Way| {
        let failure = rest.map(Op::Txn).into_iter().collect();
        Some(Txn { compares: way.when, success: way.then, failure })
    };
    ways.into_iter().rev().fold(None, nest).unwrap_or_default()
}

/// Which way was taken.
pub(crate) fn taken(reply: &TxnReply) -> Option<usize> {
    if reply.succeeded {
        return Some(0);
    }
    match reply.results.first() {
        Some(TxnResult::Txn(rest)) => taken(rest).map(|way| way + 1),
        _ => None,
    }
}

/// Tries one way after the other, and says which was taken, if any, and at which revision.
///
/// # Errors
/// See [`Error`].
pub(crate) async fn try_ways(
    client: &Client,
    ways: Vec<Way>,
    until: &Until,
) -> Result<(Option<usize>, Revision), Error> {
    let Txn { compares, success, failure } = chain(ways);
    let call = client.txn().deadline(until.left());
    let call = compares.into_iter().fold(call, |call, compare| call.when(compare));
    let call = success.into_iter().fold(call, |call, op| call.then(op));
    let call = failure.into_iter().fold(call, |call, op| call.or_else(op));
    match call.commit().await {
        Ok(reply) => Ok((taken(&reply), reply.revision)),
        Err(error) => Err(which_is_unknown(error)),
    }
}

/// An answer that is lost would have said which way was taken: whether that changed anything is not known.
pub(crate) fn which_is_unknown(error: Error) -> Error {
    match error {
        Error::AnswerLost { .. } => Error::Deadline { effect: Effect::Unknown },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(n: u64) -> Way {
        Way { when: vec![Compare::value("k").eq(n.to_string())], then: vec![Op::put("k", "v")] }
    }

    #[test]
    fn one_way_is_tried_after_the_other() {
        let txn = chain((0..3).map(way).collect());
        let Op::Txn(second) = &txn.failure[0] else { panic!("the second way is nested") };
        let Op::Txn(third) = &second.failure[0] else { panic!("the third way is nested") };
        assert_eq!((&txn.compares, &txn.success), (&way(0).when, &way(0).then));
        assert_eq!(third.compares, way(2).when);
        assert!(third.failure.is_empty());
        assert_eq!(chain(Vec::new()), Txn::default());
    }

    #[test]
    fn the_depth_of_the_answer_says_which_way_was_taken() {
        let revision = Revision(9);
        let nest = |results, succeeded| TxnReply { revision, succeeded, results };
        let lost = nest(Vec::new(), false);
        assert_eq!(taken(&lost), None);
        let won = nest(Vec::new(), true);
        assert_eq!(taken(&won), Some(0));
        let third = nest(vec![TxnResult::Txn(nest(vec![TxnResult::Txn(won)], false))], false);
        assert_eq!(taken(&third), Some(2));
        let none = nest(vec![TxnResult::Txn(nest(vec![TxnResult::Txn(lost)], false))], false);
        assert_eq!(taken(&none), None);
    }
}
