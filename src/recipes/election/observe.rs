//! Observes the leader of an election without being a candidate: the current leader, and every
//! change.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use crate::api::{Client, Error};
use crate::lock_format::{QueuePosition, is_entry};
use crate::model::{EventKind, KeyValue, LeaseId, Revision, readable};

use crate::recipes::coordination::prefix_watch::{PrefixUpdate, PrefixWatch};

/// A leader of an election.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Leader {
    /// Key of the leader.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::serialize"))]
    pub key: Bytes,
    /// Value of the leader.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::serialize"))]
    pub value: Bytes,
    /// Create revision of the key, which distinguishes the terms of one candidate. After a
    /// [transfer](crate::Guard::transfer) or a [resume](crate::Election::resume), the new leader
    /// has the key and create revision of the previous leader, with another lease.
    pub since: Revision,
    /// Lease of the key.
    pub lease: LeaseId,
}

impl Leader {
    readable!(key, value);
}

/// A change of the leader, which is the first candidate in the queue of the election.
///
/// A reported leader need not be alive: a leader that has crashed or is partitioned remains the
/// first candidate until the lease of its session has expired. If there are other candidates, the
/// next event then reports the first of them, without a [`LeaderEvent::Vacant`] in between. To
/// observe whether the leader makes progress, let it write a row with each step
/// ([`Hold::txn`](crate::lock::Hold::txn)), and watch the age of that row. The leader itself learns
/// from [`Hold::valid_until`](crate::lock::Hold::valid_until) until when it is guaranteed to lead.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LeaderEvent {
    /// There is a leader, or the leader has published a new value.
    Leads(Leader),
    /// There is no leader and no candidate.
    Vacant,
}

impl LeaderEvent {
    /// Returns the leader after this change, or `None` if there is none.
    pub fn leader(&self) -> Option<&Leader> {
        match self {
            LeaderEvent::Leads(leader) => Some(leader),
            LeaderEvent::Vacant => None,
        }
    }
}

/// A stream of the changes of an election; see [`Election::observe`](crate::Election::observe) and
/// [`ElectionView::observe`](crate::election::ElectionView::observe). Also a
/// [`Stream`](futures_core::Stream).
///
/// The stream reads the local replica. While this node is partitioned, no events are delivered.
/// After the partition, the stream delivers all events that it has missed. If changes were
/// compacted before the stream has read them, the stream reads and reports the current state
/// instead.
pub struct Observe {
    prefix: Bytes,
    following: PrefixWatch,
    /// Candidates by create revision and key, with their value and lease.
    candidates: BTreeMap<QueuePosition, (Bytes, LeaseId)>,
    reported: Option<LeaderEvent>,
    to_report: VecDeque<LeaderEvent>,
}

impl Observe {
    pub(crate) fn new(client: Client, prefix: Bytes) -> Self {
        Self::following(PrefixWatch::new(client, prefix.clone()), prefix)
    }

    /// Creates a stream that begins with the state of the local replica.
    pub(crate) fn local(client: Client, prefix: Bytes) -> Self {
        Self::following(PrefixWatch::new(client, prefix.clone()).local(), prefix)
    }

    fn following(following: PrefixWatch, prefix: Bytes) -> Self {
        let (candidates, to_report) = (BTreeMap::new(), VecDeque::new());
        Observe { prefix, following, candidates, reported: None, to_report }
    }

    /// Waits for the next event. Returns `None` after the error of a stopped node has been
    /// returned. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the node has stopped or cannot read the state. If the state could not be
    /// read, the call can be repeated.
    pub async fn next(&mut self) -> Option<Result<LeaderEvent, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Replaces the candidates by a snapshot.
    fn begin(&mut self, rows: Vec<KeyValue>) {
        self.candidates = candidates(rows, &self.prefix)
            .into_iter()
            .map(|Candidate(Leader { key, value, since, lease })| {
                (QueuePosition::new(since, key), (value, lease))
            })
            .collect();
        self.report();
    }

    fn follow(&mut self, kind: EventKind, row: KeyValue, prev: Option<KeyValue>) {
        match prev {
            Some(prev) => drop(self.candidates.remove(&QueuePosition::of(&prev))),
            // After a compaction the previous row of a change may not be available.
            None if kind == EventKind::Delete || row.version > 1 => {
                self.candidates.retain(|position, _| position.key != row.key);
            }
            None => {}
        }
        if kind == EventKind::Put
            && let Some(lease) = row.lease.filter(|_| is_entry(&row, &self.prefix))
        {
            self.candidates.insert(QueuePosition::of(&row), (row.value, lease));
        }
    }

    fn report(&mut self) {
        let now = match self.candidates.first_key_value() {
            Some((QueuePosition { since, key }, (value, lease))) => LeaderEvent::Leads(Leader {
                key: key.clone(),
                value: value.clone(),
                since: *since,
                lease: *lease,
            }),
            None => LeaderEvent::Vacant,
        };
        if self.reported.as_ref() != Some(&now) {
            self.reported = Some(now.clone());
            self.to_report.push_back(now);
        }
    }
}

impl Stream for Observe {
    type Item = Result<LeaderEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.to_report.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(Pin::new(&mut self.following).poll_next(context)) {
                Some(Ok(PrefixUpdate::Reset(rows))) => self.begin(rows),
                // Process the events by revision, so that each change is reported even if many
                // arrive at once.
                Some(Ok(PrefixUpdate::Changes(events))) => {
                    for change in events.chunk_by(|a, b| a.revision() == b.revision()) {
                        for event in change.iter().cloned() {
                            self.follow(event.kind, event.kv, event.prev);
                        }
                        self.report();
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl std::fmt::Debug for Observe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observe").field("reported", &self.reported).finish_non_exhaustive()
    }
}

/// A candidate, in the form in which it is reported once it is the leader.
pub(crate) struct Candidate(Leader);

impl Candidate {
    pub(crate) fn into_leader(self) -> Leader {
        self.0
    }
}

/// Returns the candidates among the rows below an election's prefix, the leader first.
pub(crate) fn candidates(rows: Vec<KeyValue>, prefix: &[u8]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = rows
        .into_iter()
        .filter(|row| is_entry(row, prefix))
        .filter_map(|row| {
            let (key, value, since, lease) = (row.key, row.value, row.create_revision, row.lease?);
            Some(Candidate(Leader { key, value, since, lease }))
        })
        .collect();
    candidates.sort_by(|Candidate(a), Candidate(b)| (a.since, &a.key).cmp(&(b.since, &b.key)));
    candidates
}
