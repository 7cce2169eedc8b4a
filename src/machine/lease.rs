//! The lease table: the existing leases with their TTLs and attached keys.
//!
//! A lease ends only when the log contains a command or an expiry that ends it. This table has no
//! deadlines and no clock: the driver of the leader measures the time. The table does not contain
//! the rows either: `Machine` deletes the keys of an ended lease.
//!
//! The ids that the table assigns are small ascending numbers. If a client chooses an id close to
//! the counter, the counter is moved past that id, so that every assigned id is new.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::digest::Fingerprint;
use crate::model::{Incarnation, LeaseId, LeaseRow, NodeId, SessionInfo};

/// If a client chooses an id that is at most this far above the counter, the counter moves past the
/// id. The counter never reaches ids that are further away, because that would take billions of
/// grants.
const MINT_DISTANCE_MAX: u64 = 1 << 32;

/// The highest id that is assigned, because etcd's clients treat ids as signed numbers.
const MINT_MAX: u64 = i64::MAX as u64;

/// Number of bytes that a lease adds to the size of the state, in addition to its label. The number
/// is an upper bound of the memory that a lease needs in this table and in the leader's timers.
pub const LEASE_BYTES: u64 = 256;

/// Number of bytes that an attached key adds to the size of the state, in addition to its own
/// bytes. The table stores its own copy of each attached key.
pub const BOUND_KEY_BYTES: u64 = 64;

/// The information about a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseInfo {
    /// TTL of the lease.
    pub ttl: Duration,
    /// The attached keys in order.
    pub keys: Vec<Bytes>,
    /// The session that the lease belongs to, if any.
    pub session: Option<(NodeId, Incarnation, SessionInfo)>,
}

/// The information about a lease without its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseHead {
    /// TTL of the lease.
    pub ttl: Duration,
    /// The session that the lease belongs to, if any.
    pub session: Option<SessionOf>,
}

/// The keys of an ended lease, in order.
pub(super) type Ended = BTreeSet<Box<[u8]>>;

/// The session that a lease belongs to.
pub type SessionOf = (NodeId, Incarnation, SessionInfo);

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    /// Shared with images, so that copying all leases into an image is cheap.
    session: Option<Arc<SessionOf>>,
    keys: BTreeSet<Box<[u8]>>,
}

impl Lease {
    /// Returns the size accounted for the lease without its keys.
    fn bytes(&self) -> u64 {
        let label = self.session.as_deref().map_or(0, |(_, _, info)| info.label.len());
        LEASE_BYTES + label as u64
    }

    fn fingerprint(&self, id: LeaseId) -> u64 {
        fingerprint(id, self.ttl, self.session.as_deref())
    }
}

/// Returns the size accounted for an attached key.
fn bound(key: &[u8]) -> u64 {
    BOUND_KEY_BYTES + key.len() as u64
}

/// A lease in an image, without its keys.
pub(super) struct LeaseRecord {
    id: LeaseId,
    ttl: Duration,
    session: Option<Arc<SessionOf>>,
}

impl LeaseRecord {
    /// Returns the contribution of the lease to the digest, without its keys.
    pub(super) fn fingerprint(&self) -> u64 {
        fingerprint(self.id, self.ttl, self.session.as_deref())
    }

    pub(super) fn into_row(self) -> LeaseRow {
        let session = self.session.map(|session| SessionOf::clone(&session));
        LeaseRow { id: self.id, ttl: self.ttl, session }
    }
}

/// All active leases.
#[derive(Debug)]
pub(super) struct LeaseTable {
    leases: BTreeMap<LeaseId, Lease>,
    /// The leases of the nodes' own sessions.
    own: BTreeSet<(NodeId, Incarnation, LeaseId)>,
    /// The next number to try as an id.
    next: u64,
    /// Sum of the fingerprints of all leases and attachments.
    sum: u64,
    /// Total accounted size.
    bytes: u64,
    /// Number of keys copied for readers.
    #[cfg(test)]
    copied: AtomicUsize,
}

impl Default for LeaseTable {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            own: BTreeSet::new(),
            next: 1,
            sum: 0,
            bytes: 0,
            #[cfg(test)]
            copied: AtomicUsize::new(0),
        }
    }
}

impl LeaseTable {
    /// Creates an empty table whose next id is at least `next`. Returns `None` if `next` is out of
    /// range.
    pub(super) fn counting_from(next: u64) -> Option<Self> {
        (1..=MINT_MAX).contains(&next).then(|| Self { next, ..Self::default() })
    }

    /// Returns the next number to try as an id.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Copies all leases, in the order of their ids, into an image.
    pub(super) fn copy(&self) -> VecDeque<LeaseRecord> {
        let held = |(&id, lease): (&LeaseId, &Lease)| {
            let session = lease.session.as_ref().map(Arc::clone);
            LeaseRecord { id, ttl: lease.ttl, session }
        };
        self.leases.iter().map(held).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the total accounted size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Returns an id that no lease has or ever had.
    pub(super) fn mint(&mut self) -> LeaseId {
        loop {
            let id = LeaseId::new(self.next).expect("the counter starts at 1");
            self.next = if self.next >= MINT_MAX { 1 } else { self.next + 1 };
            // The id may be in use if a client chose it when it was too far above the counter to
            // move the counter.
            if !self.contains(id) {
                return id;
            }
        }
    }

    /// Records that a client chose this id.
    pub(super) fn choose(&mut self, id: LeaseId) {
        let id = id.get();
        if id >= self.next && id - self.next < MINT_DISTANCE_MAX && id < MINT_MAX {
            self.next = id + 1;
        }
    }

    pub(super) fn grant(
        &mut self,
        id: LeaseId,
        ttl: Duration,
        session: Option<(NodeId, Incarnation, SessionInfo)>,
    ) {
        if let Some((node, incarnation, SessionInfo { own: true, .. })) = session {
            self.own.insert((node, incarnation, id));
        }
        let lease = Lease { ttl, session: session.map(Arc::new), keys: BTreeSet::new() };
        self.sum = self.sum.wrapping_add(lease.fingerprint(id));
        self.bytes += lease.bytes();
        let before = self.leases.insert(id, lease);
        assert!(before.is_none(), "lease {id} granted twice");
    }

    /// Returns the node sessions that earlier incarnations of `node` than `incarnation` have left
    /// behind.
    pub(super) fn left_behind(&self, node: NodeId, incarnation: Incarnation) -> Vec<LeaseId> {
        let first = LeaseId::new(1).expect("not 0");
        let lives = (node, Incarnation(0), first)..(node, incarnation, first);
        self.own.range(lives).map(|&(_, _, id)| id).collect()
    }

    /// Ends a lease if it exists.
    pub(super) fn end(&mut self, id: LeaseId) -> Option<Ended> {
        let lease = self.leases.remove(&id)?;
        if let Some((node, incarnation, SessionInfo { own: true, .. })) = lease.session.as_deref() {
            self.own.remove(&(*node, *incarnation, id));
        }
        self.sum = self.sum.wrapping_sub(lease.fingerprint(id));
        self.bytes -= lease.bytes();
        for key in &lease.keys {
            self.sum = self.sum.wrapping_sub(attachment(id, key));
            self.bytes -= bound(key);
        }
        Some(lease.keys)
    }

    /// Detaches a key from `before` and attaches it to `now`.
    pub(super) fn attach(&mut self, key: &[u8], before: Option<LeaseId>, now: Option<LeaseId>) {
        if before == now {
            return;
        }
        if let Some(id) = before
            && let Some(lease) = self.leases.get_mut(&id)
            && lease.keys.remove(key)
        {
            self.sum = self.sum.wrapping_sub(attachment(id, key));
            self.bytes -= bound(key);
        }
        if let Some(id) = now {
            let lease = self.leases.get_mut(&id).expect("checked before the put");
            if lease.keys.insert(key.into()) {
                self.sum = self.sum.wrapping_add(attachment(id, key));
                self.bytes += bound(key);
            }
        }
    }

    /// Returns the keys of a lease in order, or none if there is no such lease.
    pub(super) fn keys(&self, id: LeaseId) -> impl Iterator<Item = &[u8]> {
        self.leases.get(&id).into_iter().flat_map(|lease| &lease.keys).map(|key| &key[..])
    }

    pub(super) fn keys_of(&self, id: LeaseId) -> usize {
        self.leases.get(&id).map_or(0, |lease| lease.keys.len())
    }

    pub(super) fn head(&self, id: LeaseId) -> Option<LeaseHead> {
        let lease = self.leases.get(&id)?;
        Some(LeaseHead { ttl: lease.ttl, session: lease.session.as_deref().cloned() })
    }

    /// Returns the number of keys copied for readers.
    #[cfg(test)]
    pub(super) fn copied(&self) -> usize {
        self.copied.load(Ordering::Relaxed)
    }

    pub(super) fn info(&self, id: LeaseId) -> Option<LeaseInfo> {
        let lease = self.leases.get(&id)?;
        #[cfg(test)]
        self.copied.fetch_add(lease.keys.len(), Ordering::Relaxed);
        Some(LeaseInfo {
            ttl: lease.ttl,
            keys: lease.keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
            session: lease.session.as_deref().cloned(),
        })
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = (LeaseId, Duration, SessionOf)> {
        self.leases.iter().filter_map(|(&id, lease)| {
            let session = lease.session.as_deref()?;
            Some((id, lease.ttl, session.clone()))
        })
    }

    pub(super) fn session_node(&self, id: LeaseId) -> Option<NodeId> {
        let (node, ..) = self.leases.get(&id)?.session.as_deref()?;
        Some(*node)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = (LeaseId, Duration)> {
        let forgotten = |lease: &Lease| mutant!(B37) && lease.keys.is_empty();
        let all = self.leases.iter();
        all.map(move |(&id, lease)| (id, if forgotten(lease) { Duration::ZERO } else { lease.ttl }))
    }

    /// Returns the contribution of the table to the digest.
    pub(super) fn fingerprint(&self) -> [u64; 2] {
        [self.sum, self.next]
    }

    /// Corrupts a lease. Returns true if there is one.
    #[cfg(test)]
    pub(super) fn rot(&mut self) -> bool {
        let lease = self.leases.values_mut().next();
        lease.map(|lease| lease.ttl += Duration::from_secs(1 << 10)).is_some()
    }
}

fn fingerprint(id: LeaseId, ttl: Duration, session: Option<&SessionOf>) -> u64 {
    let print = Fingerprint::default()
        .number(id.get())
        .number(ttl.as_secs())
        .number(u64::from(ttl.subsec_nanos()));
    match session {
        None => print,
        Some((node, incarnation, info)) => print
            .number(node.get())
            .number(incarnation.get())
            .bytes(info.label.as_bytes())
            .number(u64::from(info.own)),
    }
    .finish()
}

/// Returns the contribution of an attached key to the digest.
pub(super) fn attachment(id: LeaseId, key: &[u8]) -> u64 {
    Fingerprint::default().number(id.get()).bytes(key).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::{lease, node};

    const TTL: Duration = Duration::from_secs(5);

    #[test]
    fn a_minted_id_was_never_used() {
        let mut table = LeaseTable::default();
        assert_eq!(table.mint(), lease(1));
        table.choose(lease(2));
        table.choose(lease(7));
        table.choose(lease(3));
        // An id that was chosen, granted and ended long ago is still not assigned.
        assert_eq!(table.mint(), lease(8));
        // These ids are too far from the counter to move it.
        table.choose(lease(u64::MAX));
        table.choose(lease(MINT_MAX));
        assert_eq!(table.mint(), lease(9));
        // The id of an active lease is skipped.
        table.grant(lease(10), TTL, None);
        assert_eq!(table.mint(), lease(11));
    }

    #[test]
    fn lease_id_counter_wraps_around() {
        let mut table = LeaseTable { next: MINT_MAX, ..LeaseTable::default() };
        table.choose(lease(MINT_MAX));
        assert_eq!(table.mint(), lease(MINT_MAX));
        assert_eq!(table.mint(), lease(1));
    }

    #[test]
    fn only_own_sessions_of_earlier_incarnations_are_left_over() {
        let mut table = LeaseTable::default();
        let session = |n, life, own| {
            Some((node(n), Incarnation(life), SessionInfo { label: String::new(), own }))
        };
        table.grant(lease(1), TTL, session(1, 1, true));
        table.grant(lease(2), TTL, session(1, 1, false));
        table.grant(lease(3), TTL, session(2, 1, true));
        table.grant(lease(4), TTL, session(1, 2, true));
        table.grant(lease(5), TTL, session(1, 3, true));
        assert_eq!(table.left_behind(node(1), Incarnation(3)), [lease(1), lease(4)]);
        table.end(lease(1));
        assert_eq!(table.left_behind(node(1), Incarnation(3)), [lease(4)]);
    }

    #[test]
    fn emptied_lease_table_has_the_digest_of_an_empty_one() {
        let mut table = LeaseTable::default();
        let empty = table.sum;
        table.grant(lease(1), TTL, None);
        let labelled = SessionInfo { label: "label".to_owned(), own: false };
        table.grant(lease(2), TTL, Some((node(1), Incarnation(1), labelled)));
        assert_eq!(table.bytes(), 2 * LEASE_BYTES + 5);
        table.attach(b"k", None, Some(lease(1)));
        table.attach(b"k", Some(lease(1)), Some(lease(2)));
        table.attach(b"long", None, Some(lease(1)));
        assert_eq!(table.bytes(), 2 * (LEASE_BYTES + BOUND_KEY_BYTES + 5));
        assert_eq!(table.end(lease(1)).unwrap().len(), 1);
        table.attach(b"k", Some(lease(2)), None);
        assert!(table.end(lease(2)).unwrap().is_empty());
        assert!(table.end(lease(2)).is_none());
        assert_eq!((table.sum, table.bytes()), (empty, 0));
    }
}
