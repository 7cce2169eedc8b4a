//! The dedup table, which makes sure that a request that arrives twice is applied once.
//!
//! A node numbers its requests. With each proposal, the node also reports which of its requests are
//! completed: the node has received their reply, or will never send them again. All other requests
//! are open. The table stores the replies to open requests. An arriving request is handled as
//! follows:
//!
//! | | |
//! |---|---|
//! | completed, or of an earlier incarnation of its node | rejected, never executed |
//! | open, with a recorded reply | gets the same reply again |
//! | neither | executed, and its reply recorded |
//!
//! The size of the table is bounded:
//!
//! - The numbers of the open requests of a node span at most [`WINDOW`] numbers. If a request with
//!   a higher number arrives, all requests that fall below the window are treated as completed. A
//!   correct node never reaches this limit, because it uses a smaller window itself.
//! - A reply larger than [`ANSWER_BYTES_MAX`] is stored without its rows. Such a reply states only
//!   that the request was applied, and the revision.
//! - The rows in the stored replies to one node have at most [`NODE_BYTES_MAX`] bytes. Above this
//!   limit, the rows of the oldest replies to this node are dropped.
//! - When a node restarts, all requests of its earlier incarnations count as completed.
//! - If [`NODES_MAX`] nodes are in the table, requests of further nodes are rejected.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::digest::Fingerprint;
use super::range_set::OpenSet;
use crate::model::{
    AckWindow, DeleteReply, Incarnation, KeyValue, LifeRow, NodeId, Outcome, PutReply, RangeReply,
    Rejection, Reply, RequestId, TxnReply, TxnResult,
};

/// Number of request numbers of one node that the table tracks individually, starting at the lowest
/// open one.
pub(super) const WINDOW: u64 = 1 << 16;

/// Maximum size in bytes of a reply that is stored with its rows. The size counts the rows and
/// their overhead.
pub(super) const ANSWER_BYTES_MAX: usize = 1 << 10;

/// Maximum total size of the rows in the replies to one node, in bytes.
pub(super) const NODE_BYTES_MAX: usize = 4 << 20;

/// Maximum number of nodes in the table.
const NODES_MAX: usize = 1 << 10;

/// Maximum length of a key in a recorded rejection.
const REFUSED_KEY_BYTES_MAX: usize = 128;

/// The treatment of an arriving request.
pub(super) enum DedupVerdict {
    Closed,
    Answered(Outcome),
    New,
}

/// The replies to the open requests of every node.
#[derive(Default)]
pub(super) struct DedupTable {
    nodes: BTreeMap<NodeId, IncarnationReplies>,
}

/// A recorded reply in an image.
pub(super) struct AnswerRow {
    pub(super) id: RequestId,
    pub(super) outcome: Outcome,
    /// Size of the rows of the reply in bytes.
    pub(super) bytes: usize,
}

/// The requests of one incarnation of a node.
struct IncarnationReplies {
    incarnation: Incarnation,
    open: OpenSet,
    dedup: BTreeMap<u64, Outcome>,
    /// The replies that contain rows, with the size of the rows in bytes.
    with_rows: BTreeMap<u64, usize>,
    /// Sum of `with_rows`.
    bytes: usize,
    /// Sum of the fingerprints of the replies.
    sum: u64,
}

impl DedupTable {
    /// Records an incarnation of a node and its completed requests.
    pub(super) fn record_window(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        window: &AckWindow,
    ) {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&node) {
            return;
        }
        let life = self.nodes.entry(node).or_insert_with(|| IncarnationReplies::new(incarnation));
        if life.incarnation > incarnation {
            return;
        }
        if life.incarnation < incarnation {
            *life = IncarnationReplies::new(incarnation);
        }
        life.open.merge(&OpenSet::new(window.frontier, &window.open));
        // A faulty node could leave numbers open forever. Closing the numbers below the window
        // therefore also limits the number of open spans.
        life.open.close_below(life.open.frontier().saturating_sub(WINDOW));
        life.forget_closed();
    }

    /// Decides the treatment of a request in a proposal whose window has been recorded.
    pub(super) fn check(&mut self, id: RequestId) -> DedupVerdict {
        let Some(life) = self.nodes.get_mut(&id.node) else { return DedupVerdict::Closed };
        if life.incarnation != id.incarnation || life.open.is_closed(id.seq) {
            return DedupVerdict::Closed;
        }
        if let Some(outcome) = life.dedup.get(&id.seq)
            && !mutant!(B28)
        {
            return DedupVerdict::Answered(outcome.clone());
        }
        if id.seq - life.open.lowest_open() >= WINDOW {
            life.open.close_below(id.seq - (WINDOW - 1));
            life.forget_closed();
        }
        DedupVerdict::New
    }

    pub(super) fn record_reply(&mut self, id: RequestId, outcome: &Outcome) {
        let life = self.nodes.get_mut(&id.node).expect("checked as new");
        assert_eq!(life.incarnation, id.incarnation, "checked as new");
        life.record_reply(id.seq, outcome);
    }

    /// Returns what is known of a request: its reply, that it is completed, or nothing.
    pub(super) fn answer(&self, id: RequestId) -> Option<Outcome> {
        let life = self.nodes.get(&id.node)?;
        if life.incarnation < id.incarnation {
            return None;
        }
        if life.incarnation > id.incarnation || life.open.is_closed(id.seq) {
            return Some(Err(Rejection::Closed));
        }
        life.dedup.get(&id.seq).cloned()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.keys().copied()
    }

    /// Removes a node that will make no more requests.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Copies the whole table into an image.
    pub(super) fn copy(&self) -> (VecDeque<LifeRow>, VecDeque<AnswerRow>) {
        let (mut lives, mut dedup) = (VecDeque::new(), VecDeque::new());
        for (&node, life) in &self.nodes {
            let incarnation = life.incarnation;
            let window =
                AckWindow { frontier: life.open.frontier(), open: life.open.open().to_vec() };
            lives.push_back(LifeRow { node, incarnation, window });
            dedup.extend(life.dedup.iter().map(|(&seq, outcome)| {
                let id = RequestId { node, incarnation, seq };
                let bytes = life.with_rows.get(&seq).copied().unwrap_or_default();
                AnswerRow { id, outcome: outcome.clone(), bytes }
            }));
        }
        (lives, dedup)
    }

    /// Restores the row of a node from another table. Returns false if the row is invalid.
    pub(super) fn revive(&mut self, life: LifeRow) -> bool {
        let LifeRow { node, incarnation, window } = life;
        let open = OpenSet::new(window.frontier, &window.open);
        let life = IncarnationReplies { open, ..IncarnationReplies::new(incarnation) };
        self.nodes.len() < NODES_MAX && self.nodes.insert(node, life).is_none()
    }

    /// Restores a reply from another table. Returns false if the reply is invalid.
    pub(super) fn restore_reply(&mut self, id: RequestId, outcome: &Outcome) -> bool {
        let Some(life) = self.nodes.get_mut(&id.node) else { return false };
        let fits = life.incarnation == id.incarnation
            && !life.open.is_closed(id.seq)
            && (life.dedup.len() as u64) < WINDOW
            && !life.dedup.contains_key(&id.seq);
        if fits {
            life.record_reply(id.seq, outcome);
        }
        fits
    }

    /// Returns the contribution of the table to the digest.
    pub(super) fn fingerprint(&self) -> u64 {
        let begin = Fingerprint::default();
        let lives = self.nodes.iter().fold(begin, |print, (&node, life)| {
            let (incarnation, open) = (life.incarnation, &life.open);
            print.life(node, incarnation, life.sum, (open.frontier(), open.open()))
        });
        lives.finish()
    }
}

impl IncarnationReplies {
    fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            // Request numbers start at 1.
            open: OpenSet::new(1, &[]),
            dedup: BTreeMap::new(),
            with_rows: BTreeMap::new(),
            bytes: 0,
            sum: 0,
        }
    }

    fn record_reply(&mut self, seq: u64, outcome: &Outcome) {
        let bytes = row_bytes(outcome);
        let kept = if bytes > ANSWER_BYTES_MAX { without_rows(outcome) } else { copied(outcome) };
        self.set(seq, kept);
        if bytes > 0 && bytes <= ANSWER_BYTES_MAX {
            self.with_rows.insert(seq, bytes);
            self.bytes += bytes;
        }
        while self.bytes > NODE_BYTES_MAX {
            let (&oldest, _) = self.with_rows.first_key_value().expect("the bytes are somebody's");
            let outcome = without_rows(&self.dedup[&oldest]);
            self.lighten(oldest);
            self.set(oldest, outcome);
        }
        assert!(self.dedup.len() as u64 <= WINDOW, "the window bounds the dedup");
    }

    fn set(&mut self, seq: u64, outcome: Outcome) {
        self.sum = self.sum.wrapping_add(fingerprint(seq, &outcome));
        if let Some(before) = self.dedup.insert(seq, outcome) {
            self.sum = self.sum.wrapping_sub(fingerprint(seq, &before));
        }
    }

    fn lighten(&mut self, seq: u64) {
        if let Some(bytes) = self.with_rows.remove(&seq) {
            self.bytes -= bytes;
        }
    }

    fn forget_closed(&mut self) {
        let mut closed = Vec::new();
        let mut from = 0;
        for span in self.open.open() {
            closed.extend(self.dedup.range(from..span.start).map(|(&seq, _)| seq));
            from = span.end;
        }
        closed.extend(self.dedup.range(from..self.open.frontier()).map(|(&seq, _)| seq));
        for seq in closed {
            let outcome = self.dedup.remove(&seq).expect("it was just seen");
            self.sum = self.sum.wrapping_sub(fingerprint(seq, &outcome));
            self.lighten(seq);
        }
    }
}

/// Returns the contribution of a reply to the sum of its incarnation.
pub(super) fn fingerprint(seq: u64, outcome: &Outcome) -> u64 {
    Fingerprint::default().number(seq).outcome(outcome).finish()
}

/// Number of bytes that each part of a reply adds to its size, in addition to the bytes of keys and
/// values.
const PART_BYTES: usize = 96;

/// Number of bytes that an alarm adds to the size of a reply.
const ALARM_BYTES: usize = 16;

/// Returns the memory that a reply takes beyond a fixed size.
fn row_bytes(outcome: &Outcome) -> usize {
    fn rows<'a>(kvs: impl IntoIterator<Item = &'a KeyValue>) -> usize {
        kvs.into_iter().map(|kv| PART_BYTES + kv.key.len() + kv.value.len()).sum()
    }
    fn txn(reply: &TxnReply) -> usize {
        let result = |result: &TxnResult| match result {
            TxnResult::Range(reply) => rows(&reply.kvs),
            TxnResult::Put(reply) => rows(&reply.prev),
            TxnResult::Delete(reply) => rows(&reply.prev_kvs),
            TxnResult::Txn(reply) => txn(reply),
        };
        reply.results.iter().map(|reply| PART_BYTES + result(reply)).sum()
    }
    match outcome {
        Ok(Reply::Put(reply)) => rows(&reply.prev),
        Ok(Reply::Delete(reply)) => rows(&reply.prev_kvs),
        Ok(Reply::Txn(reply)) => txn(reply),
        Ok(
            Reply::Compacted { .. }
            | Reply::Grant(_)
            | Reply::Revoke(_)
            | Reply::Noted { .. }
            | Reply::AppliedBefore { .. },
        )
        | Err(_) => 0,
        Ok(Reply::Alarms { alarms, .. }) => alarms.len() * ALARM_BYTES,
    }
}

/// Returns a reply without its rows: only that it was applied, and the revision.
pub(super) fn without_rows(outcome: &Outcome) -> Outcome {
    outcome.as_ref().map_err(Rejection::clone).map(|reply| {
        let revision = reply.revision();
        Reply::AppliedBefore { revision }
    })
}

/// Copies a reply into allocations of its own, so that its rows do not keep larger buffers in
/// memory.
fn copied(outcome: &Outcome) -> Outcome {
    fn row(kv: &KeyValue) -> KeyValue {
        let key = Bytes::copy_from_slice(&kv.key);
        let value = Bytes::copy_from_slice(&kv.value);
        KeyValue { key, value, ..*kv }
    }
    fn rows(kvs: &[KeyValue]) -> Vec<KeyValue> {
        kvs.iter().map(row).collect()
    }
    fn put(reply: &PutReply) -> PutReply {
        PutReply { revision: reply.revision, prev: reply.prev.as_ref().map(row) }
    }
    fn delete(reply: &DeleteReply) -> DeleteReply {
        DeleteReply { prev_kvs: rows(&reply.prev_kvs), ..*reply }
    }
    fn txn(reply: &TxnReply) -> TxnReply {
        let result = |result: &TxnResult| match result {
            TxnResult::Range(reply) => {
                TxnResult::Range(RangeReply { kvs: rows(&reply.kvs), ..*reply })
            }
            TxnResult::Put(reply) => TxnResult::Put(put(reply)),
            TxnResult::Delete(reply) => TxnResult::Delete(delete(reply)),
            TxnResult::Txn(reply) => TxnResult::Txn(txn(reply)),
        };
        TxnReply { results: reply.results.iter().map(result).collect(), ..*reply }
    }
    match outcome {
        Ok(Reply::Put(reply)) => Ok(Reply::Put(put(reply))),
        Ok(Reply::Delete(reply)) => Ok(Reply::Delete(delete(reply))),
        Ok(Reply::Txn(reply)) => Ok(Reply::Txn(txn(reply))),
        Err(Rejection::DuplicateKey(key)) => {
            let shown = &key[..key.len().min(REFUSED_KEY_BYTES_MAX)];
            Err(Rejection::DuplicateKey(Bytes::copy_from_slice(shown)))
        }
        Ok(
            Reply::Compacted { .. }
            | Reply::Grant(_)
            | Reply::Revoke(_)
            | Reply::Noted { .. }
            | Reply::Alarms { .. }
            | Reply::AppliedBefore { .. },
        )
        | Err(_) => outcome.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one open span is meant")]
mod tests {
    use super::*;
    use crate::model::Revision;

    fn node() -> NodeId {
        NodeId::new(1).unwrap()
    }

    fn id(life: u64, seq: u64) -> RequestId {
        RequestId { node: node(), incarnation: Incarnation(life), seq }
    }

    fn put(revision: u64, prev_bytes: usize) -> Outcome {
        let prev = (prev_bytes > 0).then(|| KeyValue {
            key: Bytes::from_static(b"k"),
            value: vec![0; prev_bytes].into(),
            create_revision: Revision(1),
            mod_revision: Revision(1),
            version: 1,
            lease: None,
        });
        Ok(Reply::Put(PutReply { revision: Revision(revision), prev }))
    }

    fn record_window(
        dedup: &mut DedupTable,
        life: u64,
        frontier: u64,
        open: &[std::ops::Range<u64>],
    ) {
        let window = AckWindow { frontier, open: open.to_vec() };
        dedup.record_window(node(), Incarnation(life), &window);
    }

    fn is_new(dedup: &mut DedupTable, id: RequestId) -> bool {
        matches!(dedup.check(id), DedupVerdict::New)
    }

    #[test]
    fn open_request_repeats_its_reply_until_completed() {
        let mut dedup = DedupTable::default();
        record_window(&mut dedup, 1, 1, &[]);
        for seq in 1..=4 {
            assert!(is_new(&mut dedup, id(1, seq)));
            dedup.record_reply(id(1, seq), &put(seq + 1, 0));
        }
        assert!(
            matches!(dedup.check(id(1, 2)), DedupVerdict::Answered(again) if again == put(3, 0))
        );
        record_window(&mut dedup, 1, 4, &[2..3]);
        assert!(matches!(dedup.check(id(1, 1)), DedupVerdict::Closed));
        assert!(matches!(dedup.check(id(1, 2)), DedupVerdict::Answered(_)));
        assert!(matches!(dedup.check(id(1, 3)), DedupVerdict::Closed));
        assert!(matches!(dedup.check(id(1, 4)), DedupVerdict::Answered(_)));
        assert_eq!(dedup.nodes[&node()].dedup.len(), 2);
        // An older window that arrives late opens no request again.
        record_window(&mut dedup, 1, 2, &[1..2]);
        assert!(matches!(dedup.check(id(1, 1)), DedupVerdict::Closed));
        assert_eq!(dedup.answer(id(1, 1)), Some(Err(Rejection::Closed)));
        assert_eq!(dedup.answer(id(1, 2)), Some(put(3, 0)));
        assert_eq!(dedup.answer(id(1, 9)), None);
        assert!(matches!(dedup.check(id(1, 0)), DedupVerdict::Closed));
    }

    #[test]
    fn new_incarnation_completes_the_requests_of_the_old_one() {
        let mut dedup = DedupTable::default();
        record_window(&mut dedup, 1, 1, &[]);
        dedup.record_reply(id(1, 1), &put(2, 0));
        record_window(&mut dedup, 2, 1, &[]);
        assert!(matches!(dedup.check(id(1, 1)), DedupVerdict::Closed));
        assert!(is_new(&mut dedup, id(2, 1)));
        record_window(&mut dedup, 1, 1, &[]);
        assert!(matches!(dedup.check(id(1, 5)), DedupVerdict::Closed));
        assert_eq!(dedup.answer(id(1, 1)), Some(Err(Rejection::Closed)));
        assert_eq!(dedup.answer(id(3, 1)), None);
    }

    #[test]
    fn request_far_ahead_completes_those_outside_the_window() {
        let mut dedup = DedupTable::default();
        record_window(&mut dedup, 1, 1, &[]);
        for seq in [1, 2, WINDOW] {
            assert!(is_new(&mut dedup, id(1, seq)));
            dedup.record_reply(id(1, seq), &put(seq + 1, 0));
        }
        assert!(matches!(dedup.check(id(1, 1)), DedupVerdict::Answered(_)));
        assert!(is_new(&mut dedup, id(1, WINDOW + 1)));
        dedup.record_reply(id(1, WINDOW + 1), &put(9, 0));
        assert!(matches!(dedup.check(id(1, 1)), DedupVerdict::Closed));
        assert!(matches!(dedup.check(id(1, 2)), DedupVerdict::Answered(_)));
        assert!(is_new(&mut dedup, id(1, u64::MAX)));
        dedup.record_reply(id(1, u64::MAX), &put(9, 0));
        assert_eq!(dedup.nodes[&node()].dedup.len(), 1);
        record_window(&mut dedup, 1, u64::MAX, &[]);
        assert!(matches!(dedup.check(id(1, u64::MAX)), DedupVerdict::Answered(_)));
    }

    #[test]
    fn abandoned_gaps_are_completed() {
        let mut dedup = DedupTable::default();
        for round in 1..=10 {
            let open: Vec<_> = (0..round * WINDOW / 20).map(|n| 10 * n + 1..10 * n + 2).collect();
            record_window(&mut dedup, 1, round * WINDOW / 2, &open);
            let life = &dedup.nodes[&node()];
            assert!(life.open.open().len() as u64 <= WINDOW / 10 + 1);
            assert!(life.open.frontier() - life.open.lowest_open() <= WINDOW);
        }
    }

    #[test]
    fn large_replies_are_dropped_before_small_ones() {
        let mut dedup = DedupTable::default();
        record_window(&mut dedup, 1, 1, &[]);
        dedup.record_reply(id(1, 1), &put(2, ANSWER_BYTES_MAX));
        let before = Some(Ok(Reply::AppliedBefore { revision: Revision(2) }));
        assert_eq!(dedup.answer(id(1, 1)), before);
        let mut seq = 2;
        while dedup.answer(id(1, 2)) == Some(put(3, 500)) || seq == 2 {
            dedup.record_reply(id(1, seq), &put(seq + 1, 500));
            seq += 1;
        }
        let kept = seq - 3;
        assert_eq!(kept as usize, NODE_BYTES_MAX / (500 + 1 + PART_BYTES));
        let before = Some(Ok(Reply::AppliedBefore { revision: Revision(3) }));
        assert_eq!(dedup.answer(id(1, 2)), before);
        assert_eq!(dedup.answer(id(1, 3)), Some(put(4, 500)));
        record_window(&mut dedup, 1, seq, &[]);
        let life = &dedup.nodes[&node()];
        assert_eq!((life.bytes, life.with_rows.len(), life.dedup.len(), life.sum), (0, 0, 0, 0));
    }

    #[test]
    fn stored_reply_does_not_keep_the_buffer_of_its_rows() {
        let mut dedup = DedupTable::default();
        record_window(&mut dedup, 1, 1, &[]);
        let buffer = Bytes::from(vec![0; 100_000]);
        let mut outcome = put(2, 10);
        let Ok(Reply::Put(PutReply { prev: Some(kv), .. })) = &mut outcome else { panic!("a put") };
        kv.value = buffer.slice(..10);
        kv.key = buffer.slice(..3);
        dedup.record_reply(id(1, 1), &outcome);
        drop(outcome);
        assert!(buffer.is_unique());
    }

    #[test]
    fn excess_nodes_are_rejected() {
        let mut dedup = DedupTable::default();
        for number in 1..=NODES_MAX as u64 + 1 {
            let node = NodeId::new(number).unwrap();
            dedup.record_window(node, Incarnation(1), &AckWindow::default());
            let id = RequestId { node, incarnation: Incarnation(1), seq: 1 };
            let closed = matches!(dedup.check(id), DedupVerdict::Closed);
            assert_eq!(closed, number > NODES_MAX as u64);
        }
    }
}
