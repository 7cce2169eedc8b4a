//! The public view of a lock queue's entries, for operators and for errors of waiters.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::Error;
use crate::lock_format::{
    EntryMetadata, LockKind, LockQueue, QueuePosition, admin_request_target, is_entry, prefix_of,
};
use crate::model::{KeyRange, KeyValue, LeaseId, NodeId, Range, Revision, SortOrder, SortTarget};
use crate::node::Shared;

/// One entry of a lock queue, as known to the local replica.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockEntry {
    /// Key of the entry.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::serialize"))]
    pub key: Bytes,
    /// Create revision of the key, which decides the position in the queue.
    pub since: Revision,
    /// Whether the entry holds the lock.
    pub holds: bool,
    /// Kind of lock that the entry requests.
    pub kind: LockKind,
    /// Lease of the key.
    pub lease: LeaseId,
    /// Label of the session, if the lease belongs to a session.
    pub label: Option<String>,
    /// Node that opened the session, if the lease belongs to a session.
    pub node: Option<NodeId>,
    /// Source location and task of the request. Empty if the entry was not created by Bowline. If
    /// tasks of one process share the entry, this is the location of the first one.
    pub site: String,
    /// Name of the [owner](crate::Owner), or empty.
    pub owner: String,
    /// Reason given with the request. For an election, or an entry not created by Bowline, this is
    /// the complete value of the key.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::serialize"))]
    pub reason: Bytes,
}

impl std::fmt::Display for LockEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.label {
            Some(label) => f.write_str(label)?,
            None => write!(f, "lease {}", self.lease)?,
        }
        if !self.owner.is_empty() {
            write!(f, " ({})", self.owner)?;
        }
        if !self.site.is_empty() {
            write!(f, ", {}", self.site)?;
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason.escape_ascii())?;
        }
        Ok(())
    }
}

/// Returns the rows of a lock queue in queue order.
pub(crate) fn rows(shared: &Shared, prefix: &Bytes) -> Vec<KeyValue> {
    let mut range = Range::new(KeyRange::prefix(prefix.clone()));
    range.sort.target = SortTarget::Create;
    range.sort.order = SortOrder::Ascend;
    // A name that is too long for a key has no rows.
    let rows = shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
    rows.into_iter().filter(|row| is_entry(row, prefix)).collect()
}

/// Returns the entry at a queue position, if it still exists.
pub(crate) fn at(
    shared: &Shared,
    queue: &LockQueue,
    position: &QueuePosition,
) -> Option<LockEntry> {
    let (row, _) = shared.reader.get(&position.key);
    entry_of(shared, queue, row.filter(|row| row.create_revision == position.since)?)
}

/// Returns the lock queue of `name` in order.
pub(crate) fn list(shared: &Arc<Shared>, name: &Bytes) -> Result<Vec<LockEntry>, Error> {
    let prefix = prefix_of(name);
    let range = Range::new(KeyRange::prefix(prefix.clone()));
    shared.settings.limits.check_range(&range)?;
    Ok(entries_of(shared, rows(shared, &prefix)))
}

pub(crate) fn entries_of(shared: &Shared, rows: Vec<KeyValue>) -> Vec<LockEntry> {
    let queue = LockQueue::of(&rows);
    rows.into_iter().filter_map(|row| entry_of(shared, &queue, row)).collect()
}

/// Builds the public entry for a row of the queue.
fn entry_of(shared: &Shared, queue: &LockQueue, row: KeyValue) -> Option<LockEntry> {
    let lease = row.lease?;
    let session = shared.reader.lease_head(lease).and_then(|info| info.session);
    let (node, label) = session.map(|(node, _, session)| (node, session.label)).unzip();
    let position = QueuePosition::new(row.create_revision, row.key.clone());
    let kind = queue.mode(&position)?.kind();
    let holds = queue.may_hold(&position);
    let (site, owner, reason) = match EntryMetadata::parse(&row.key, &row.value) {
        Some(metadata) => (metadata.site, metadata.owner_name, metadata.reason),
        None => (String::new(), String::new(), row.value),
    };
    let QueuePosition { since, key } = position;
    Some(LockEntry { key, since, holds, kind, lease, label, node, site, owner, reason })
}

/// Returns the rows below a lock's prefix whose keys are those of admin requests.
pub(crate) fn request_rows(shared: &Shared, prefix: &Bytes) -> Vec<KeyValue> {
    let range = Range::new(KeyRange::prefix(prefix.clone()));
    let rows = shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
    rows.into_iter().filter(|row| admin_request_target(&row.key).is_some()).collect()
}
