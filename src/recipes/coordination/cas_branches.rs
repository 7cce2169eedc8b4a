//! Transactions with several alternatives: the first alternative whose compares hold is applied.
//!
//! A plain compare-and-set expects one state, and fails if another writer was faster. So with
//! several writers, the one with the lowest latency to the leader would win every time. If each
//! change is a step of known size, one transaction can also expect the states that concurrent
//! writers produce, as alternatives in nested failure branches: `5 -> 6, or 6 -> 7, or 7 -> 8,
//! ...`. Several such transactions in one log entry then all succeed, one after the other.
//!
//! The replies contain no rows, so they are small enough to be kept as long as a caller waits.

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, Op, Revision, Txn, TxnReply, TxnResult};

use crate::recipes::call::Until;

/// Maximum number of states that one transaction expects. The limit on the depth of transactions
/// may allow fewer.
const GUESSES_MAX: usize = 8;

/// Maximum number of concurrent attempts of tasks that share a handle. Further attempts wait. With
/// this limit, the attempts of two nodes nearly always match one of the expected states.
pub(crate) const TRIES_MAX: usize = 4;

/// One alternative of a transaction.
pub(crate) struct CasBranch {
    /// The compares. The alternative is chosen if they hold and no earlier alternative was chosen.
    pub(crate) when: Vec<Compare>,
    /// The operations of the alternative.
    pub(crate) then: Vec<Op>,
}

/// Returns the maximum number of alternatives of a transaction.
pub(crate) fn branches_max(client: &Client) -> usize {
    client.shared.settings.limits.txn_depth_max.clamp(1, GUESSES_MAX)
}

/// Builds the transaction that tries the alternatives in order.
pub(crate) fn nest_branches(branches: Vec<CasBranch>) -> Txn {
    let nest = |rest: Option<Txn>, branch: CasBranch| {
        let failure = rest.map(Op::Txn).into_iter().collect();
        Some(Txn { compares: branch.when, success: branch.then, failure })
    };
    branches.into_iter().rev().fold(None, nest).unwrap_or_default()
}

/// Returns the index of the chosen alternative.
pub(crate) fn chosen(reply: &TxnReply) -> Option<usize> {
    if reply.succeeded {
        return Some(0);
    }
    match reply.results.first() {
        Some(TxnResult::Txn(rest)) => chosen(rest).map(|branch| branch + 1),
        _ => None,
    }
}

/// Runs a transaction with several alternatives. Returns the index of the chosen one, if any, and
/// the revision.
///
/// # Errors
/// See [`Error`].
pub(crate) async fn try_branches(
    client: &Client,
    branches: Vec<CasBranch>,
    until: &Until,
) -> Result<(Option<usize>, Revision), Error> {
    let Txn { compares, success, failure } = nest_branches(branches);
    let call = client.txn().deadline(until.left());
    let call = compares.into_iter().fold(call, |call, compare| call.when(compare));
    let call = success.into_iter().fold(call, |call, op| call.then(op));
    let call = failure.into_iter().fold(call, |call, op| call.or_else(op));
    match call.commit().await {
        Ok(reply) => Ok((chosen(&reply), reply.revision)),
        Err(error) => Err(branch_is_unknown(error)),
    }
}

/// Converts a missing reply to an error with an unknown effect: without the reply, the chosen
/// alternative is unknown.
pub(crate) fn branch_is_unknown(error: Error) -> Error {
    match error {
        Error::AnswerLost { .. } => Error::Deadline { effect: Effect::Unknown },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(n: u64) -> CasBranch {
        CasBranch {
            when: vec![Compare::value("k").eq(n.to_string())],
            then: vec![Op::put("k", "v")],
        }
    }

    #[test]
    fn cas_branches_are_tried_in_order() {
        let txn = nest_branches((0..3).map(branch).collect());
        let Op::Txn(second) = &txn.failure[0] else { panic!("the second branch is nested") };
        let Op::Txn(third) = &second.failure[0] else { panic!("the third branch is nested") };
        assert_eq!((&txn.compares, &txn.success), (&branch(0).when, &branch(0).then));
        assert_eq!(third.compares, branch(2).when);
        assert!(third.failure.is_empty());
        assert_eq!(nest_branches(Vec::new()), Txn::default());
    }

    #[test]
    fn reply_depth_names_the_branch_taken() {
        let revision = Revision(9);
        let nest = |results, succeeded| TxnReply { revision, succeeded, results };
        let lost = nest(Vec::new(), false);
        assert_eq!(chosen(&lost), None);
        let won = nest(Vec::new(), true);
        assert_eq!(chosen(&won), Some(0));
        let third = nest(vec![TxnResult::Txn(nest(vec![TxnResult::Txn(won)], false))], false);
        assert_eq!(chosen(&third), Some(2));
        let none = nest(vec![TxnResult::Txn(nest(vec![TxnResult::Txn(lost)], false))], false);
        assert_eq!(chosen(&none), None);
    }
}
