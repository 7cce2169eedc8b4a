//! The leases: which exist, how long each lives without renewal, and which keys it holds.
//!
//! A lease ends only by a command or an expiry in the log. This table knows no deadlines, no clock
//! and no store: `Machine` deletes the keys of an ended lease, the leader's driver counts the time.
//!
//! Ids that the table mints are small numbers counted upwards. An id that a client chose, in reach
//! of the counter, pushes the counter beyond it, so that a minted id was never used before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::digest::Fingerprint;
use crate::model::{Incarnation, LeaseId, LeaseRow, NodeId, SessionInfo};
use crate::mutant::{self, Mutant};

/// How far above the counter an id chosen by a client pushes it. Further up lies what the counter
/// will not reach: so many grants are never made.
const MINT_REACH: u64 = 1 << 32;

/// The greatest id that is minted: etcd's clients read ids as signed numbers.
const MINT_MAX: u64 = i64::MAX as u64;

/// What a lease counts for beside its label, in bytes; a bound on what it takes, here and where its time is counted.
pub const LEASE_BYTES: u64 = 256;

/// What a key that is bound to a lease counts for beside its bytes, which the table has once more.
pub const BOUND_KEY_BYTES: u64 = 64;

/// What can be known of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseInfo {
    /// How long it lives without renewal.
    pub ttl: Duration,
    /// Its keys, in order.
    pub keys: Vec<Bytes>,
    /// Whose session it is, if it is one.
    pub session: Option<(NodeId, Incarnation, SessionInfo)>,
}

/// What can be known of a lease without its keys, of which there may be many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseHead {
    /// How long it lives without renewal.
    pub ttl: Duration,
    /// Whose session it is, if it is one.
    pub session: Option<SessionOf>,
}

/// The keys of a lease that ended, in order.
pub(super) type Ended = BTreeSet<Box<[u8]>>;

/// Whose session a lease is.
pub type SessionOf = (NodeId, Incarnation, SessionInfo);

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    /// Shared with images, which copy all leases at once.
    session: Option<Arc<SessionOf>>,
    keys: BTreeSet<Box<[u8]>>,
}

impl Lease {
    /// What it counts for without its keys.
    fn bytes(&self) -> u64 {
        let label = self.session.as_deref().map_or(0, |(_, _, info)| info.label.len());
        LEASE_BYTES + label as u64
    }

    fn fingerprint(&self, id: LeaseId) -> u64 {
        fingerprint(id, self.ttl, self.session.as_deref())
    }
}

/// What a key counts for that is bound to a lease.
fn bound(key: &[u8]) -> u64 {
    BOUND_KEY_BYTES + key.len() as u64
}

/// A lease as an image holds it, without its keys.
pub(super) struct Held {
    id: LeaseId,
    ttl: Duration,
    session: Option<Arc<SessionOf>>,
}

impl Held {
    /// What it adds to the digest, without its keys.
    pub(super) fn fingerprint(&self) -> u64 {
        fingerprint(self.id, self.ttl, self.session.as_deref())
    }

    pub(super) fn into_row(self) -> LeaseRow {
        let session = self.session.map(|session| SessionOf::clone(&session));
        LeaseRow { id: self.id, ttl: self.ttl, session }
    }
}

/// Every lease that has not ended.
#[derive(Debug)]
pub(super) struct LeaseTable {
    leases: BTreeMap<LeaseId, Lease>,
    /// The nodes' own sessions.
    own: BTreeSet<(NodeId, Incarnation, LeaseId)>,
    /// The next number to try for a minted id.
    next: u64,
    /// The sum of the fingerprints of all leases and attachments.
    sum: u64,
    /// What all of it counts for.
    bytes: u64,
    /// How many keys were copied for readers.
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
    /// An empty table whose next minted id is at least `next`, if there can be such a one.
    pub(super) fn counting_from(next: u64) -> Option<Self> {
        (1..=MINT_MAX).contains(&next).then(|| Self { next, ..Self::default() })
    }

    /// The next number to try for a minted id.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// All leases, by id, to be read later.
    pub(super) fn copy(&self) -> VecDeque<Held> {
        let held = |(&id, lease): (&LeaseId, &Lease)| {
            let session = lease.session.as_ref().map(Arc::clone);
            Held { id, ttl: lease.ttl, session }
        };
        self.leases.iter().map(held).collect()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// What all of them count for, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// An id that no lease has or had.
    pub(super) fn mint(&mut self) -> LeaseId {
        loop {
            let id = LeaseId::new(self.next).expect("the counter starts at 1");
            self.next = if self.next >= MINT_MAX { 1 } else { self.next + 1 };
            // Taken only by an id that was chosen when it was out of reach.
            if !self.contains(id) {
                return id;
            }
        }
    }

    /// Takes note that a client chose this id.
    pub(super) fn choose(&mut self, id: LeaseId) {
        let id = id.get();
        if id >= self.next && id - self.next < MINT_REACH && id < MINT_MAX {
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

    /// The own sessions that lives of `node` before `incarnation` have left behind.
    pub(super) fn left_behind(&self, node: NodeId, incarnation: Incarnation) -> Vec<LeaseId> {
        let first = LeaseId::new(1).expect("not 0");
        let lives = (node, Incarnation(0), first)..(node, incarnation, first);
        self.own.range(lives).map(|&(_, _, id)| id).collect()
    }

    /// Ends a lease, if it exists.
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

    /// Binds a key that was bound to `before` to `now` instead.
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
            let lease = self.leases.get_mut(&id).expect("judged before the put");
            if lease.keys.insert(key.into()) {
                self.sum = self.sum.wrapping_add(attachment(id, key));
                self.bytes += bound(key);
            }
        }
    }

    /// The keys of a lease, in order; none if there is no such lease.
    pub(super) fn keys(&self, id: LeaseId) -> impl Iterator<Item = &[u8]> {
        self.leases.get(&id).into_iter().flat_map(|lease| &lease.keys).map(|key| &key[..])
    }

    /// How many those are.
    pub(super) fn keys_of(&self, id: LeaseId) -> usize {
        self.leases.get(&id).map_or(0, |lease| lease.keys.len())
    }

    pub(super) fn head(&self, id: LeaseId) -> Option<LeaseHead> {
        let lease = self.leases.get(&id)?;
        Some(LeaseHead { ttl: lease.ttl, session: lease.session.as_deref().cloned() })
    }

    /// How many keys were copied for readers.
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

    pub(super) fn ids(&self) -> impl Iterator<Item = (LeaseId, Duration)> {
        let forgotten = |lease: &Lease| mutant::is(Mutant::B37) && lease.keys.is_empty();
        let all = self.leases.iter();
        all.map(move |(&id, lease)| (id, if forgotten(lease) { Duration::ZERO } else { lease.ttl }))
    }

    /// What the table adds to the digest.
    pub(super) fn fingerprint(&self) -> [u64; 2] {
        [self.sum, self.next]
    }

    /// Flips a bit of a lease. True if there is one.
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

/// What a key that is bound to a lease adds to the digest.
pub(super) fn attachment(id: LeaseId, key: &[u8]) -> u64 {
    Fingerprint::default().number(id.get()).bytes(key).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn id(id: u64) -> LeaseId {
        LeaseId::new(id).unwrap()
    }

    fn node(id: u64) -> NodeId {
        NodeId::new(id).unwrap()
    }

    #[test]
    fn a_minted_id_was_never_used() {
        let mut table = LeaseTable::default();
        assert_eq!(table.mint(), id(1));
        table.choose(id(2));
        table.choose(id(7));
        table.choose(id(3));
        // Chosen, granted and ended long ago: still not minted.
        assert_eq!(table.mint(), id(8));
        // Out of reach: the counter stays where it is.
        table.choose(id(u64::MAX));
        table.choose(id(MINT_MAX));
        assert_eq!(table.mint(), id(9));
        // A neighbour that lives is passed over.
        table.grant(id(10), TTL, None);
        assert_eq!(table.mint(), id(11));
    }

    #[test]
    fn the_counter_survives_its_end() {
        let mut table = LeaseTable { next: MINT_MAX, ..LeaseTable::default() };
        table.choose(id(MINT_MAX));
        assert_eq!(table.mint(), id(MINT_MAX));
        assert_eq!(table.mint(), id(1));
    }

    #[test]
    fn only_own_sessions_of_earlier_lives_are_left_behind() {
        let mut table = LeaseTable::default();
        let session = |n, life, own| {
            Some((node(n), Incarnation(life), SessionInfo { label: String::new(), own }))
        };
        table.grant(id(1), TTL, session(1, 1, true));
        table.grant(id(2), TTL, session(1, 1, false));
        table.grant(id(3), TTL, session(2, 1, true));
        table.grant(id(4), TTL, session(1, 2, true));
        table.grant(id(5), TTL, session(1, 3, true));
        assert_eq!(table.left_behind(node(1), Incarnation(3)), [id(1), id(4)]);
        table.end(id(1));
        assert_eq!(table.left_behind(node(1), Incarnation(3)), [id(4)]);
    }

    #[test]
    fn an_empty_table_has_the_digest_of_an_empty_table_and_counts_for_nothing() {
        let mut table = LeaseTable::default();
        let empty = table.sum;
        table.grant(id(1), TTL, None);
        let labelled = SessionInfo { label: "label".to_owned(), own: false };
        table.grant(id(2), TTL, Some((node(1), Incarnation(1), labelled)));
        assert_eq!(table.bytes(), 2 * LEASE_BYTES + 5);
        table.attach(b"k", None, Some(id(1)));
        table.attach(b"k", Some(id(1)), Some(id(2)));
        table.attach(b"long", None, Some(id(1)));
        assert_eq!(table.bytes(), 2 * (LEASE_BYTES + BOUND_KEY_BYTES + 5));
        assert_eq!(table.end(id(1)).unwrap().len(), 1);
        table.attach(b"k", Some(id(2)), None);
        assert!(table.end(id(2)).unwrap().is_empty());
        assert!(table.end(id(2)).is_none());
        assert_eq!((table.sum, table.bytes()), (empty, 0));
    }
}
