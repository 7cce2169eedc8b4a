//! Who leads an election, for those who do not stand in it: now, and at every change.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::api::{Client, Error, Watch};
use crate::model::{EventKind, KeyRange, KeyValue, Revision};
use crate::watch::WatchError;

use super::line::is_place;

/// Who leads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// Its key.
    pub key: Bytes,
    /// What it wants to be known by.
    pub value: Bytes,
    /// The revision of its candidacy: tells two terms of one leader apart.
    pub since: Revision,
}

/// What an observer sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaderEvent {
    /// Somebody leads, or says something new.
    Leads(Leader),
    /// Nobody leads.
    Vacant,
}

/// Follows an election; see [`Election::observe`].
#[derive(Debug)]
pub struct Observe {
    client: Client,
    prefix: Bytes,
    watch: Option<Watch>,
    /// By the revision of their candidacy.
    candidates: BTreeMap<(Revision, Bytes), Bytes>,
    told: Option<LeaderEvent>,
    to_tell: VecDeque<LeaderEvent>,
}

impl Observe {
    pub(super) fn new(client: Client, prefix: Bytes) -> Self {
        let (watch, told) = (None, None);
        let (candidates, to_tell) = (BTreeMap::new(), VecDeque::new());
        Observe { client, prefix, watch, candidates, told, to_tell }
    }

    /// The next thing to know. Cancel-safe.
    ///
    /// # Errors
    /// If the node has stopped, or cannot say what is the case; it may be asked again.
    pub async fn next(&mut self) -> Result<LeaderEvent, Error> {
        loop {
            if let Some(event) = self.to_tell.pop_front() {
                return Ok(event);
            }
            let Some(watch) = &mut self.watch else {
                self.look().await?;
                continue;
            };
            match watch.next().await {
                Some(Ok(batch)) => {
                    // Revision by revision: however many come at once, each change is told.
                    for change in batch.events.chunk_by(|a, b| a.revision() == b.revision()) {
                        for event in change.iter().cloned() {
                            self.follow(event.kind, event.kv, event.prev);
                        }
                        self.tell();
                    }
                }
                // Compacted, or the node has stopped: look again, and hear which.
                Some(Err(WatchError::Compacted { .. })) | None => self.watch = None,
                Some(Err(_)) => self.watch = None,
            }
        }
    }

    /// Reads what is the case, and watches from there.
    async fn look(&mut self) -> Result<(), Error> {
        let range = KeyRange::prefix(self.prefix.clone());
        let reply = self.client.range(range.clone()).await?;
        let next = Revision(reply.revision.get() + 1);
        let watch = self.client.watch(range).from(next).prev_kv().await?;
        self.candidates = candidates(reply.kvs, &self.prefix)
            .into_iter()
            .map(|candidate| ((candidate.since, candidate.key), candidate.value))
            .collect();
        self.watch = Some(watch);
        self.tell();
        Ok(())
    }

    fn follow(&mut self, kind: EventKind, row: KeyValue, prev: Option<KeyValue>) {
        if let Some(prev) = prev {
            self.candidates.remove(&(prev.create_revision, prev.key));
        }
        if kind == EventKind::Put && is_place(&row, &self.prefix) {
            self.candidates.insert((row.create_revision, row.key), row.value);
        }
    }

    fn tell(&mut self) {
        let now = match self.candidates.first_key_value() {
            Some(((since, key), value)) => {
                LeaderEvent::Leads(Leader { key: key.clone(), value: value.clone(), since: *since })
            }
            None => LeaderEvent::Vacant,
        };
        if self.told.as_ref() != Some(&now) {
            self.told = Some(now.clone());
            self.to_tell.push_back(now);
        }
    }
}

pub(super) struct Candidate {
    since: Revision,
    key: Bytes,
    value: Bytes,
}

impl Candidate {
    pub(super) fn into_leader(self) -> Leader {
        Leader { key: self.key, value: self.value, since: self.since }
    }
}

/// The candidates among the rows below an election's prefix, the leader first.
pub(super) fn candidates(rows: Vec<KeyValue>, prefix: &[u8]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = rows
        .into_iter()
        .filter(|row| is_place(row, prefix))
        .map(|row| Candidate { since: row.create_revision, key: row.key, value: row.value })
        .collect();
    candidates.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
    candidates
}
