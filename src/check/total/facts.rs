//! What one call and its reply say of single rows: what was there just before, and what was written.

use crate::check::models::{KvCall, Seen};
use crate::check::value::Value;

/// What was said of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sight<'a> {
    /// It held this (`None`: it was not there), last changed at this revision, if that was said.
    Is(Option<&'a Value>, Option<u64>),
    /// It was there.
    Exists,
    /// It was last changed at this revision; `None`: it was not there.
    At(Option<u64>),
    /// It was not last changed at this revision; `None`: it was there.
    NotAt(Option<u64>),
}

/// A row as it stands: what it holds, and its last change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live<'a> {
    pub(super) value: &'a Value,
    pub(super) modified: u64,
}

impl Sight<'_> {
    /// Whether it can be said of this row.
    pub(super) fn fits(&self, row: Option<Live<'_>>) -> bool {
        let modified = row.map(|row| row.modified);
        match *self {
            Self::Is(value, told) => {
                row.map(|row| row.value) == value && (told.is_none() || modified == told)
            }
            Self::Exists => row.is_some(),
            Self::At(expect) => modified == expect,
            Self::NotAt(expect) => modified != expect,
        }
    }

    /// The revision at which the row was last changed, if it was said.
    pub(super) fn modified(&self) -> Option<u64> {
        match *self {
            Self::Is(_, modified) | Self::At(modified) => modified,
            Self::Exists | Self::NotAt(_) => None,
        }
    }

    /// Whether a write of this to the row would make it true.
    pub(super) fn is_made_by(&self, written: Option<&Value>) -> bool {
        match *self {
            Self::Is(value, _) => value == written,
            Self::Exists | Self::At(Some(_)) | Self::NotAt(None) => written.is_some(),
            Self::At(None) => written.is_none(),
            Self::NotAt(Some(_)) => true,
        }
    }
}

/// Whether a reply says that the store was changed.
pub(super) fn changed(seen: &Seen) -> bool {
    match seen {
        Seen::Written => true,
        Seen::Read { .. } => false,
        Seen::Changed(changed) => *changed,
    }
}

/// What a reply says of the row, as it was just before.
pub(super) fn sight<'a>(call: &KvCall, seen: &'a Seen) -> Option<Sight<'a>> {
    Some(match (call, seen) {
        (_, Seen::Read { value, modified }) => Sight::Is(value.as_ref(), *modified),
        (KvCall::Delete { .. }, Seen::Changed(true)) => Sight::Exists,
        (KvCall::Delete { .. }, Seen::Changed(false)) => Sight::At(None),
        (KvCall::CompareAndSet { expect, .. }, Seen::Changed(true)) => Sight::At(*expect),
        (KvCall::CompareAndSet { expect, .. }, Seen::Changed(false)) => Sight::NotAt(*expect),
        _ => return None,
    })
}

/// What a call writes, if it changes the store: a value, or the row's end. `None`: it only reads.
pub(super) fn written(call: &KvCall) -> Option<Option<&Value>> {
    match call {
        KvCall::Put { value, .. } | KvCall::CompareAndSet { value, .. } => Some(Some(value)),
        KvCall::Delete { .. } => Some(None),
        KvCall::Get { .. } => None,
    }
}

/// What must be true of the row for a call of unknown outcome to change the store; `None`: nothing.
pub(super) fn condition(call: &KvCall) -> Option<Sight<'_>> {
    match call {
        KvCall::Delete { .. } => Some(Sight::Exists),
        KvCall::CompareAndSet { expect, .. } => Some(Sight::At(*expect)),
        KvCall::Put { .. } | KvCall::Get { .. } => None,
    }
}
