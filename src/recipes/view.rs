//! Who stands in a line, for people and for those who wait.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::Error;
use crate::model::{KeyRange, KeyValue, LeaseId, NodeId, Range, Revision, SortOrder, SortTarget};
use crate::node::Shared;

use super::line::{is_place, prefix_of};
use super::operate::LockAdminError;
use super::rule::{LockKind, Queue, Rank};
use super::stance::Stance;

/// One place in a line, as the replica has it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LockEntry {
    /// Its key.
    pub key: Bytes,
    /// Since which revision it stands in line.
    pub since: Revision,
    /// Whether it holds.
    pub holds: bool,
    /// What it wants.
    pub kind: LockKind,
    /// The lease that it lives with.
    pub lease: LeaseId,
    /// The label of the session, if the lease is a session's.
    pub label: Option<String>,
    /// The node that keeps the session alive.
    pub node: Option<NodeId>,
    /// Where in the program it was asked for, and by which task; empty if it was not put there by
    /// Bowline. While tasks of one process share the place, it is the first one's.
    pub site: String,
    /// The name of its owner, if it has one.
    pub owner: String,
    /// Why it was asked for; for an election, and whatever Bowline has not put there, the whole value.
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

/// The rows that are places of this line, in order.
pub(crate) fn rows(shared: &Shared, prefix: &Bytes) -> Vec<KeyValue> {
    let mut range = Range::new(KeyRange::prefix(prefix.clone()));
    range.sort.target = SortTarget::Create;
    range.sort.order = SortOrder::Ascend;
    // A name that is too long for a key has no rows.
    let rows = shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
    rows.into_iter().filter(|row| is_place(row, prefix)).collect()
}

/// Who stands at this rank of a line, if it still does.
pub(crate) fn at(shared: &Shared, queue: &Queue, rank: &Rank) -> Option<LockEntry> {
    let (row, _) = shared.reader.get(&rank.1);
    contender(shared, queue, row.filter(|row| row.create_revision == rank.0)?)
}

/// The line of `name`, in order.
pub(crate) fn line_of(shared: &Arc<Shared>, name: &Bytes) -> Result<Vec<LockEntry>, Error> {
    let prefix = prefix_of(name);
    let range = Range::new(KeyRange::prefix(prefix.clone()));
    shared.settings.limits.check_range(&range)?;
    Ok(contenders(shared, rows(shared, &prefix)))
}

fn contenders(shared: &Shared, rows: Vec<KeyValue>) -> Vec<LockEntry> {
    let mut queue = Queue::default();
    for row in &rows {
        let rule = Stance::rule_in_line(&row.key, &row.value);
        queue.insert((row.create_revision, row.key.clone()), rule);
    }
    rows.into_iter().filter_map(|row| contender(shared, &queue, row)).collect()
}

/// Whose a row of this line is.
fn contender(shared: &Shared, queue: &Queue, row: KeyValue) -> Option<LockEntry> {
    let lease = row.lease?;
    let session = shared.reader.lease_head(lease).and_then(|info| info.session);
    let (node, label) = session.map(|(node, _, session)| (node, session.label)).unzip();
    let rank = (row.create_revision, row.key.clone());
    let kind = queue.rule(&rank)?.kind();
    let holds = queue.may_hold(&rank);
    let (site, owner, reason) = match Stance::parse(&row.key, &row.value) {
        Some(stance) => (stance.site, stance.owner_name, stance.why),
        None => (String::new(), String::new(), row.value),
    };
    let (since, key) = rank;
    Some(LockEntry { key, since, holds, kind, lease, label, node, site, owner, reason })
}

/// Whether nobody but Bowline's sessions stands in a line.
///
/// # Errors
/// [`LockAdminError::Foreign`] names who does.
pub(crate) fn is_for_ours_alone(shared: &Shared, prefix: &Bytes) -> Result<(), LockAdminError> {
    let line = contenders(shared, rows(shared, prefix));
    match line.into_iter().find(|place| place.node.is_none()) {
        Some(foreign) => Err(LockAdminError::Foreign { key: foreign.key }),
        None => Ok(()),
    }
}

/// Whether a hold of this lease may be handed to that one: it waits, with another lease. Within
/// one lease nobody could tell the holds apart.
///
/// # Errors
/// [`LockAdminError::NoSuccessor`].
pub(crate) fn may_be_handed(successor: &LockEntry, lease: LeaseId) -> Result<(), LockAdminError> {
    let waits = !successor.holds && successor.lease != lease;
    if waits {
        Ok(())
    } else {
        Err(LockAdminError::NoSuccessor { successor: successor.key.clone() })
    }
}
