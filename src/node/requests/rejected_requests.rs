//! Requests that this leader has rejected recently. A rejected request must stay rejected: its
//! origin may already have reported that nothing was applied, so a duplicate of the message must
//! not be proposed. The transport does not duplicate messages, but this guarantee does not depend
//! on the transport. Entries expire after a while, because a duplicate does not stay in the network
//! forever, and the origin may propose the request again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::{Moment, ProposeRejection, RequestId};

/// Maximum number of entries. The oldest are discarded first.
const KEPT: usize = 16_384;

/// The recently rejected requests, in order of time.
#[derive(Debug)]
pub(crate) struct RejectedRequests {
    why: BTreeMap<RequestId, ProposeRejection>,
    order: VecDeque<(Moment, RequestId)>,
    remember: Duration,
}

impl RejectedRequests {
    /// Returns an empty set that keeps each entry for `remember`.
    pub(crate) fn new(remember: Duration) -> Self {
        Self { why: BTreeMap::new(), order: VecDeque::new(), remember }
    }

    pub(crate) fn add(&mut self, id: RequestId, why: ProposeRejection, now: Moment) {
        if self.why.insert(id, why).is_none() {
            self.order.push_back((now, id));
        }
        self.forget(now);
    }

    /// If a request was recently rejected, returns the reason.
    pub(crate) fn why(&self, id: RequestId) -> Option<ProposeRejection> {
        self.why.get(&id).copied()
    }

    /// Discards the entries that have expired.
    pub(crate) fn forget(&mut self, now: Moment) {
        while let Some((at, id)) = self.order.front()
            && (self.order.len() > KEPT || now.since(*at) >= self.remember)
        {
            self.why.remove(id);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Incarnation, NodeId};

    #[test]
    fn rejected_requests_are_remembered_for_a_bounded_time_and_number() {
        let mut rejected_requests = RejectedRequests::new(Duration::from_secs(1));
        let (node, incarnation) = (NodeId::new(1).unwrap(), Incarnation(1));
        let id = |seq| RequestId { node, incarnation, seq };
        let at = |ms| Moment::since_boot(Duration::from_millis(ms));
        rejected_requests.add(id(0), ProposeRejection::NoSpace, at(0));
        rejected_requests.add(id(0), ProposeRejection::NoSpace, at(900));
        rejected_requests.forget(at(999));
        assert_eq!(rejected_requests.why(id(0)), Some(ProposeRejection::NoSpace));
        rejected_requests.forget(at(1000));
        assert_eq!(rejected_requests.why(id(0)), None, "the first time counts");
        for seq in 0..2 * KEPT as u64 {
            rejected_requests.add(id(seq), ProposeRejection::NoSpace, at(2000));
        }
        assert_eq!(rejected_requests.why.len(), KEPT);
        assert_eq!(rejected_requests.order.len(), KEPT);
        assert_eq!(rejected_requests.why(id(2 * KEPT as u64 - 1)), Some(ProposeRejection::NoSpace));
    }
}
