//! Who leads an election, for those who do not stand in it: now, and at every change.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use crate::api::{Client, Error};
use crate::model::{EventKind, KeyValue, LeaseId, Revision};

use super::following::{Following, News};
use super::line::is_place;

/// Who leads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// Its key.
    pub key: Bytes,
    /// What it wants to be known by.
    pub value: Bytes,
    /// The revision that made its key: tells two terms of one candidate apart. Who was [handed](crate::Guard::transfer)
    /// the lead, or has taken it up [again](crate::Election::resume), has the key and the revision of whoever led before,
    /// with another lease.
    pub since: Revision,
    /// The lease that it lives with.
    pub lease: LeaseId,
}

/// What an observer sees: who stands first among the candidates, as the cluster knows it.
///
/// That is not the same as who works. A leader that has crashed, or is cut off, stands until its session's
/// lease has ended; if others stand behind it, the first of them is the next thing that is told, and
/// [`LeaderEvent::Vacant`] is not told in between. Whether anybody works shows in what the work leaves
/// behind: let the leader write a row with each of its steps ([`Hold::txn`](crate::lock::Hold::txn)), and watch
/// that for getting old. The leader itself knows from
/// [`Hold::valid_until`](crate::lock::Hold::valid_until) until when it surely leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaderEvent {
    /// Somebody leads, or says something new.
    Leads(Leader),
    /// Nobody leads, and nobody stands for it.
    Vacant,
}

/// Follows an election; see [`Election::observe`](crate::Election::observe). Also a [`Stream`](futures_core::Stream).
///
/// It reads and follows this node's replica: while that is cut off there is no news, and after that all of
/// it. If it falls behind what the store still remembers, it looks again and tells what is the case.
pub struct Observe {
    prefix: Bytes,
    following: Following,
    /// By the revision of their candidacy: what they say, and the lease that they live with.
    candidates: BTreeMap<(Revision, Bytes), (Bytes, LeaseId)>,
    told: Option<LeaderEvent>,
    to_tell: VecDeque<LeaderEvent>,
}

impl Observe {
    pub(super) fn new(client: Client, prefix: Bytes) -> Self {
        let following = Following::new(client, prefix.clone());
        let (candidates, to_tell) = (BTreeMap::new(), VecDeque::new());
        Observe { prefix, following, candidates, told: None, to_tell }
    }

    /// The next thing to know. `None` after the node has stopped and that was told. Cancel-safe.
    ///
    /// # Errors
    /// If the node has stopped, or cannot say what is the case; then it may be asked again.
    pub async fn next(&mut self) -> Option<Result<LeaderEvent, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Takes what is the case for a new beginning.
    fn begin(&mut self, rows: Vec<KeyValue>) {
        self.candidates = candidates(rows, &self.prefix)
            .into_iter()
            .map(|Candidate(Leader { key, value, since, lease })| ((since, key), (value, lease)))
            .collect();
        self.tell();
    }

    fn follow(&mut self, kind: EventKind, row: KeyValue, prev: Option<KeyValue>) {
        match prev {
            Some(prev) => drop(self.candidates.remove(&(prev.create_revision, prev.key))),
            // History that begins at what is compacted does not know what was there before.
            None if kind == EventKind::Delete || row.version > 1 => {
                self.candidates.retain(|(_, key), _| *key != row.key);
            }
            None => {}
        }
        if kind == EventKind::Put
            && let Some(lease) = row.lease.filter(|_| is_place(&row, &self.prefix))
        {
            self.candidates.insert((row.create_revision, row.key), (row.value, lease));
        }
    }

    fn tell(&mut self) {
        let now = match self.candidates.first_key_value() {
            Some(((since, key), (value, lease))) => LeaderEvent::Leads(Leader {
                key: key.clone(),
                value: value.clone(),
                since: *since,
                lease: *lease,
            }),
            None => LeaderEvent::Vacant,
        };
        if self.told.as_ref() != Some(&now) {
            self.told = Some(now.clone());
            self.to_tell.push_back(now);
        }
    }
}

impl Stream for Observe {
    type Item = Result<LeaderEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.to_tell.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(Pin::new(&mut self.following).poll_next(context)) {
                Some(Ok(News::Anew(rows))) => self.begin(rows),
                // Revision by revision: however many come at once, each change is told.
                Some(Ok(News::Changes(events))) => {
                    for change in events.chunk_by(|a, b| a.revision() == b.revision()) {
                        for event in change.iter().cloned() {
                            self.follow(event.kind, event.kv, event.prev);
                        }
                        self.tell();
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
        f.debug_struct("Observe").field("told", &self.told).finish_non_exhaustive()
    }
}

/// Who would lead if it were the first.
pub(super) struct Candidate(Leader);

impl Candidate {
    pub(super) fn into_leader(self) -> Leader {
        self.0
    }
}

/// The candidates among the rows below an election's prefix, the leader first.
pub(super) fn candidates(rows: Vec<KeyValue>, prefix: &[u8]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = rows
        .into_iter()
        .filter(|row| is_place(row, prefix))
        .filter_map(|row| {
            let (key, value, since, lease) = (row.key, row.value, row.create_revision, row.lease?);
            Some(Candidate(Leader { key, value, since, lease }))
        })
        .collect();
    candidates.sort_by(|Candidate(a), Candidate(b)| (a.since, &a.key).cmp(&(b.since, &b.key)));
    candidates
}
