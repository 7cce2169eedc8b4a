//! Tracks the snapshots of this node. Decides when a snapshot is due, how far the log may be
//! truncated at its front, and which parts to fetch from a peer.
//!
//! Invariant: touches no files and sends no messages; the driver does both.

pub(super) mod backups;
pub(super) mod news;
pub(super) mod offline;
pub(super) mod restored_from;
pub(super) mod snapshot_worker;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{LogIndex, Members, Moment, NodeId, SnapshotId};

/// Number of parts that are requested ahead.
const WINDOW_PARTS: u64 = 4;

/// Delay before a failed snapshot is tried again. While the disk has no space for a snapshot, the
/// delay doubles up to the maximum, because each attempt temporarily takes all the free space.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(64);

/// Maximum delay before a snapshot that could not be received is fetched again. The delay doubles with each attempt.
const FETCH_RETRY_DELAY_MAX: Duration = Duration::from_secs(64);

/// The size up to which the log is kept for a lagging or fetching member, as a multiple of the size
/// that makes a snapshot due. Above this size, the log is truncated and the member is sent a newer
/// snapshot.
const HELD_LOG_FACTOR: u64 = 4;

/// A size of the log that makes any snapshot due.
pub(crate) const LOG_BYTES_OVERDUE: u64 = 1 << 60;

/// The state of this node's snapshots.
pub(crate) struct Snapshots {
    /// Bytes of applied entries after which a snapshot is due. If half the size of the state is
    /// larger, that size is used instead.
    log_bytes_min: u64,
    /// Number of bytes to request at a time.
    part_bytes: u64,
    /// Time after which an unanswered request is repeated.
    patience: Duration,
    newest: Option<(SnapshotId, Members)>,
    is_taking: bool,
    not_before: Moment,
    /// Delay after the next failure for lack of space.
    no_room_pause: Duration,
    /// Bytes of the entries applied since the newest snapshot.
    log_bytes: u64,
    /// Bytes of the entries applied since the current snapshot was started.
    log_bytes_while_taking: u64,
    fetch: Option<Fetch>,
    /// A snapshot whose fetch was abandoned, and which may have left a partial file.
    left: Option<SnapshotId>,
    /// A snapshot that could not be received: the number of failures in a row, and the time of the next attempt.
    failed: Option<(SnapshotId, u32, Moment)>,
    /// Peers that are fetching a snapshot from this node. Each entry expires at the given time.
    serving: BTreeMap<NodeId, (SnapshotId, Moment)>,
}

/// A snapshot that is being fetched.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    from: NodeId,
    id: SnapshotId,
    /// Bytes that are on this node's disk.
    received: u64,
    /// Offset up to which the snapshot was requested.
    asked: u64,
    /// Time of the last progress or repeated request.
    active_at: Moment,
    /// Time at which the last bytes of the snapshot reached this node's disk.
    grew_at: Moment,
}

impl Snapshots {
    /// Returns the state of a node that has `newest`, has applied `log_bytes` of entries since, and
    /// has a partial file of `left`. The node requests `part_bytes` at a time.
    pub(crate) fn new(
        log_bytes_min: u64,
        part_bytes: u64,
        patience: Duration,
        newest: Option<(SnapshotId, Members)>,
        left: Option<SnapshotId>,
        log_bytes: u64,
        now: Moment,
    ) -> Self {
        Self {
            log_bytes_min,
            part_bytes,
            patience,
            newest,
            is_taking: false,
            not_before: now,
            no_room_pause: RETRY_DELAY,
            log_bytes,
            log_bytes_while_taking: 0,
            fetch: None,
            left,
            failed: None,
            serving: BTreeMap::new(),
        }
    }

    // ---- taking -----------------------------------------------------------------------------------

    pub(crate) fn newest(&self) -> Option<&(SnapshotId, Members)> {
        self.newest.as_ref()
    }

    /// Counts an entry that was applied.
    pub(crate) fn applied(&mut self, bytes: usize) {
        self.log_bytes += bytes as u64;
        self.log_bytes_while_taking += bytes as u64;
    }

    fn due_bytes(&self, state_bytes: u64) -> u64 {
        self.log_bytes_min.max(state_bytes / 2)
    }

    /// Returns whether a snapshot should be taken now. `state_bytes` is called only if the size of the state matters.
    /// `wanted` is set if a peer needs a newer snapshot than the newest one.
    pub(crate) fn is_due(
        &self,
        state_bytes: impl FnOnce() -> u64,
        wanted: bool,
        now: Moment,
    ) -> bool {
        let grown = || {
            self.log_bytes >= self.log_bytes_min && self.log_bytes >= self.due_bytes(state_bytes())
        };
        !self.is_taking && now >= self.not_before && (wanted || grown())
    }

    /// Records that a snapshot was started.
    pub(crate) fn begun(&mut self) {
        self.is_taking = true;
        self.log_bytes_while_taking = 0;
    }

    /// Records that the snapshot is durable.
    pub(crate) fn taken(&mut self, id: SnapshotId, members: Members) {
        self.is_taking = false;
        self.log_bytes = self.log_bytes_while_taking;
        self.no_room_pause = RETRY_DELAY;
        self.has(id, members);
    }

    /// Records that the snapshot has failed. `for_want_of_room` is set if the disk had no space for
    /// the snapshot.
    pub(crate) fn not_taken(&mut self, for_want_of_room: bool, now: Moment) {
        self.is_taking = false;
        self.not_before = now + RETRY_DELAY;
        if for_want_of_room {
            self.not_before = now + self.no_room_pause;
            self.no_room_pause = (self.no_room_pause * 2).min(RETRY_DELAY_MAX);
        }
    }

    /// Records a sound and durable snapshot.
    fn has(&mut self, id: SnapshotId, members: Members) {
        if self.newest.as_ref().is_none_or(|(newest, _)| newest.index < id.index) {
            self.newest = Some((id, members));
        }
    }

    /// Records that a snapshot is damaged. Returns whether the damaged snapshot was the newest. If
    /// so, another snapshot is due at once.
    pub(crate) fn lost(&mut self, id: SnapshotId) -> bool {
        let was_newest = self.newest.take_if(|(newest, _)| *newest == id).is_some();
        if was_newest {
            self.log_bytes = LOG_BYTES_OVERDUE;
        }
        was_newest
    }

    // ---- truncating the log
    // --------------------------------------------------------------------------

    /// Returns the index up to which the log may be truncated at its front, if any. `slowest` is the last entry that
    /// the slowest active member is known to have. `log_bytes` is the size of the log.
    pub(crate) fn cut(
        &self,
        slowest: Option<LogIndex>,
        log_bytes: u64,
        state_bytes: u64,
        now: Moment,
    ) -> Option<LogIndex> {
        let (newest, _) = self.newest.as_ref()?;
        // The log must not grow without a limit, even if peers need its entries.
        if log_bytes > HELD_LOG_FACTOR * self.due_bytes(state_bytes) {
            return Some(newest.index);
        }
        mutant!(
            M45,
            if slowest.is_some() {
                return slowest;
            }
        );
        let fetching = self.served(now).into_iter().map(|id| id.index);
        fetching.chain(slowest).chain([newest.index]).min()
    }

    /// Records that a peer requests a part of a snapshot.
    pub(crate) fn serve(&mut self, to: NodeId, id: SnapshotId, now: Moment) {
        self.serving.insert(to, (id, now + self.patience * 4));
    }

    /// Returns the snapshots that peers are still fetching.
    pub(crate) fn served(&self, now: Moment) -> Vec<SnapshotId> {
        let served = self.serving.values().filter(|(_, until)| *until > now);
        served.map(|(id, _)| *id).collect()
    }

    /// Forgets the peers that have stopped asking. Returns whether there were any.
    pub(crate) fn end_serving(&mut self, now: Moment) -> bool {
        let before = self.serving.len();
        self.serving.retain(|_, (_, until)| *until > now);
        self.serving.len() < before
    }

    // ---- fetching ---------------------------------------------------------------------------------

    /// Returns whether a snapshot may be fetched, which is false for a while after a failed
    /// attempt.
    pub(crate) fn may_fetch(&self, id: SnapshotId, now: Moment) -> bool {
        self.failed.is_none_or(|(failed, _, until)| failed != id || now >= until)
    }

    /// Starts to fetch a snapshot that a peer has and this node needs. Returns false if the
    /// snapshot is already being fetched.
    pub(crate) fn fetch(&mut self, from: NodeId, id: SnapshotId, now: Moment) -> bool {
        if let Some(fetch) = &mut self.fetch
            && fetch.id == id
        {
            fetch.from = from;
            return false;
        }
        self.fetch =
            Some(Fetch { from, id, received: 0, asked: u64::MAX, active_at: now, grew_at: now });
        // The worker removes partial files of other snapshots when it receives this one.
        self.left = None;
        true
    }

    /// Returns the snapshot that is being fetched, and its source.
    pub(crate) fn fetching(&self) -> Option<(NodeId, SnapshotId)> {
        self.fetch.map(|fetch| (fetch.from, fetch.id))
    }

    /// Records that `bytes` of the snapshot are on this node's disk.
    pub(crate) fn received(&mut self, id: SnapshotId, bytes: u64, now: Moment) {
        if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.id == id) {
            // The first report of the worker contains the size of the partial file. Bytes that are
            // already on the disk are not requested again.
            fetch.asked = if fetch.asked == u64::MAX { bytes } else { fetch.asked.max(bytes) };
            fetch.received = bytes;
            fetch.active_at = now;
            fetch.grew_at = now;
        }
    }

    /// Returns the next part to request, and from which peer.
    pub(crate) fn ask(&mut self) -> Option<(NodeId, SnapshotId, u64)> {
        let fetch = self.fetch.as_mut()?;
        let is_open = fetch.asked < fetch.id.bytes
            && fetch.asked < fetch.received + WINDOW_PARTS * self.part_bytes;
        if !is_open {
            return None;
        }
        let offset = fetch.asked;
        fetch.asked += self.part_bytes;
        Some((fetch.from, fetch.id, offset))
    }

    /// Requests lost parts again after a while. If a snapshot is complete but not installed yet,
    /// returns it, and the driver requests the end of the file. The request shows the offering peer
    /// that this node is still working on the snapshot.
    pub(crate) fn tick(&mut self, now: Moment) -> Option<(NodeId, SnapshotId)> {
        let fetch = self.fetch.as_mut()?;
        if fetch.asked == u64::MAX || now.since(fetch.active_at) <= self.patience {
            return None;
        }
        fetch.active_at = now;
        if fetch.received == fetch.id.bytes {
            return Some((fetch.from, fetch.id));
        }
        fetch.asked = fetch.received;
        None
    }

    /// Returns whether the snapshot is complete on this node's disk, and is being checked or loaded.
    pub(crate) fn has_whole(&self) -> bool {
        self.fetch.is_some_and(|fetch| fetch.received == fetch.id.bytes)
    }

    /// Abandons a fetch that has made no progress for a long time, because its source may have
    /// ended.
    pub(crate) fn abandon_stalled(&mut self, now: Moment) {
        let (patience, whole) = (self.patience, self.has_whole());
        let stalled = |fetch: &mut Fetch| !whole && now.since(fetch.grew_at) > patience * 4;
        if let Some(fetch) = self.fetch.take_if(stalled) {
            self.left = Some(fetch.id);
        }
    }

    /// If the replica has overtaken the snapshot that is being fetched, abandons the fetch. Returns
    /// that snapshot, or an earlier snapshot with a partial file. The caller discards the partial
    /// file.
    pub(crate) fn abandon_overtaken(&mut self, applied: LogIndex) -> Option<SnapshotId> {
        let whole = self.has_whole();
        let overtaken = self.fetch.take_if(|fetch| !whole && fetch.id.index <= applied);
        let left = self.left.take_if(|left| left.index <= applied);
        overtaken.map(|fetch| fetch.id).or(left)
    }

    /// Ends a fetch because its source does not have the snapshot. The partial file stays, since another peer may
    /// have the rest.
    pub(crate) fn end_fetch(&mut self, id: SnapshotId) {
        if self.fetch.take_if(|fetch| fetch.id == id).is_some() {
            self.left = Some(id);
        }
    }

    /// Records that a snapshot cannot be received or used.
    pub(crate) fn not_received(&mut self, id: SnapshotId, now: Moment) {
        self.end_fetch(id);
        let before = self.failed.filter(|(failed, ..)| *failed == id);
        let times = before.map_or(1, |(_, times, _)| times.saturating_add(1));
        let pause = self.patience.saturating_mul(1 << times.min(16)).min(FETCH_RETRY_DELAY_MAX);
        self.failed = Some((id, times, now + pause));
    }

    /// Ends a fetch whose snapshot is complete and in memory.
    pub(crate) fn fetched(&mut self, id: SnapshotId) {
        self.fetch.take_if(|fetch| fetch.id == id);
    }

    /// Records that a fetched snapshot was installed, and is this node's newest one.
    pub(crate) fn installed(&mut self, id: SnapshotId, members: Members) {
        self.log_bytes = 0;
        self.has(id, members);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Term;
    use crate::model::samples::{at, node};

    fn id(index: u64) -> SnapshotId {
        SnapshotId { index: LogIndex(index), term: Term(2), bytes: 3 << 20, checksum: index }
    }

    /// Number of bytes that these tests request at a time.
    const PART: u64 = 16 << 10;

    fn snapshots() -> Snapshots {
        Snapshots::new(1000, PART, Duration::from_millis(500), None, None, 0, at(0))
    }

    #[test]
    fn snapshot_is_due_in_proportion_to_the_state_size() {
        let mut snapshots = snapshots();
        snapshots.applied(999);
        assert!(!snapshots.is_due(|| 0, false, at(0)) && snapshots.is_due(|| 0, true, at(0)));
        snapshots.applied(1);
        assert!(
            snapshots.is_due(|| 2001, false, at(0)) && !snapshots.is_due(|| 2002, false, at(0))
        );
        snapshots.begun();
        snapshots.applied(5000);
        assert!(!snapshots.is_due(|| 0, true, at(0)));
        snapshots.not_taken(false, at(0));
        assert!(!snapshots.is_due(|| 0, true, at(999)) && snapshots.is_due(|| 0, false, at(1000)));
        snapshots.begun();
        snapshots.applied(1000);
        snapshots.taken(id(7), Members::default());
        assert!(snapshots.is_due(|| 0, false, at(1000)), "what was applied meanwhile counts");
        assert_eq!(snapshots.newest().unwrap().0, id(7));
    }

    #[test]
    fn snapshot_without_space_is_retried_with_backoff() {
        let mut snapshots = snapshots();
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..9 {
            snapshots.begun();
            snapshots.not_taken(true, at(now));
            let due = (now..).step_by(500).find(|ms| snapshots.is_due(|| 0, true, at(*ms)));
            pauses.push((due.unwrap() - now) / 1000);
            now = due.unwrap();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        snapshots.taken(id(7), Members::default());
        snapshots.not_taken(true, at(now));
        assert!(snapshots.is_due(|| 0, true, at(now + 1000)));
    }

    #[test]
    fn failed_fetch_is_retried_with_backoff() {
        let mut snapshots = snapshots();
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..8 {
            assert!(snapshots.fetch(node(2), id(9), at(now)));
            snapshots.not_received(id(9), at(now));
            assert!(snapshots.fetching().is_none() && snapshots.may_fetch(id(10), at(now)));
            let due = (now..).step_by(500).find(|ms| snapshots.may_fetch(id(9), at(*ms)));
            pauses.push((due.unwrap() - now) / 1000);
            now = due.unwrap();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn lost_snapshot_is_replaced_at_once_and_no_log_is_truncated() {
        let mut snapshots = snapshots();
        snapshots.taken(id(7), Members::default());
        snapshots.taken(id(9), Members::default());
        assert!(!snapshots.lost(id(7)) && !snapshots.is_due(|| 0, false, at(0)));
        assert!(snapshots.lost(id(9)) && snapshots.is_due(|| 1 << 40, false, at(0)));
        assert!(!snapshots.lost(id(9)), "it is reported once");
        assert_eq!(snapshots.cut(None, 100, 0, at(0)), None);
        snapshots.begun();
        snapshots.taken(id(9), Members::default());
        assert!(!snapshots.is_due(|| 0, false, at(0)));
        assert_eq!(snapshots.newest().unwrap().0, id(9), "of the same entry");
    }

    #[test]
    fn log_is_kept_for_lagging_members_within_limits() {
        let mut snapshots = snapshots();
        assert_eq!(snapshots.cut(None, 100, 0, at(0)), None);
        snapshots.taken(id(50_000), Members::default());
        assert_eq!(snapshots.cut(None, 100, 0, at(0)), Some(LogIndex(50_000)));
        let slow = Some(LogIndex(123));
        assert_eq!(snapshots.cut(slow, 100, 0, at(0)), Some(LogIndex(123)));
        assert_eq!(snapshots.cut(slow, 4001, 0, at(0)), Some(LogIndex(50_000)));
        let quick = Some(LogIndex(60_000));
        assert_eq!(
            snapshots.cut(quick, 100, 0, at(0)),
            Some(LogIndex(50_000)),
            "no snapshot has more"
        );
        snapshots.serve(node(3), id(30_000), at(0));
        assert_eq!(snapshots.cut(quick, 100, 0, at(0)), Some(LogIndex(30_000)));
        assert_eq!(snapshots.cut(None, 100, 0, at(1999)), Some(LogIndex(30_000)));
        assert_eq!(
            (snapshots.served(at(1999)), snapshots.served(at(2000))),
            (vec![id(30_000)], vec![])
        );
        assert!(!snapshots.end_serving(at(1999)));
        assert_eq!(snapshots.cut(None, 100, 0, at(2000)), Some(LogIndex(50_000)));
    }

    #[test]
    fn fetch_resumes_at_the_disk_offset_and_requests_lost_parts_again() {
        let mut snapshots = snapshots();
        assert!(snapshots.fetch(node(2), id(9), at(0)) && !snapshots.fetch(node(3), id(9), at(0)));
        assert_eq!(snapshots.ask(), None, "the size of the partial file is not known");
        snapshots.received(id(9), 100, at(0));
        let offsets = |snapshots: &mut Snapshots| -> Vec<u64> {
            std::iter::from_fn(|| snapshots.ask().map(|(_, _, offset)| offset)).collect()
        };
        let expected: Vec<u64> = (0..4).map(|n| 100 + n * PART).collect();
        assert_eq!(offsets(&mut snapshots), expected);
        snapshots.received(id(9), 100 + PART, at(10));
        assert_eq!(snapshots.ask().unwrap(), (node(3), id(9), 100 + 4 * PART));
        snapshots.tick(at(510));
        assert_eq!(snapshots.ask(), None);
        snapshots.tick(at(511));
        assert_eq!(offsets(&mut snapshots)[0], 100 + PART);
        snapshots.received(id(9), id(9).bytes, at(600));
        assert_eq!((snapshots.ask(), snapshots.tick(at(1100))), (None, None));
        assert_eq!(snapshots.tick(at(1101)), Some((node(3), id(9))), "it is being worked on");
        snapshots.abandon_stalled(at(10_000));
        assert!(snapshots.has_whole());
        snapshots.end_fetch(id(9));
        assert_eq!(snapshots.fetching(), None);
        snapshots.fetch(node(2), id(10), at(0));
        snapshots.abandon_stalled(at(2000));
        assert!(snapshots.fetching().is_some());
        snapshots.abandon_stalled(at(2001));
        assert_eq!(snapshots.fetching(), None);
    }
}
