//! Facts about single rows that one call and its reply state: the row just before, and the value written.

use crate::models::{KvCall, Seen};
use crate::value::Value;

/// A fact about a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum TotalObservation<'a> {
    /// The row had this value (`None`: it did not exist), last changed at this revision, if the reply states it.
    Is(Option<&'a Value>, Option<u64>),
    /// The row existed.
    Exists,
    /// The row was last changed at this revision, or did not exist if `None`.
    At(Option<u64>),
    /// The row was not last changed at this revision, or existed if `None`.
    NotAt(Option<u64>),
}

/// The current state of a row: its value and the revision of its last change.
#[derive(Clone, Copy, Debug)]
pub(super) struct TotalLive<'a> {
    pub(super) value: &'a Value,
    pub(super) modified: u64,
}

impl TotalObservation<'_> {
    /// Returns whether the fact is true of this row.
    pub(super) fn fits(&self, row: Option<TotalLive<'_>>) -> bool {
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

    /// Returns the revision at which the row was last changed, if the fact states it.
    pub(super) fn modified(&self) -> Option<u64> {
        match *self {
            Self::Is(_, modified) | Self::At(modified) => modified,
            Self::Exists | Self::NotAt(_) => None,
        }
    }

    /// Returns whether writing this value to the row would make the fact true.
    pub(super) fn is_satisfied_by(&self, written: Option<&Value>) -> bool {
        match *self {
            Self::Is(value, _) => value == written,
            Self::Exists | Self::At(Some(_)) | Self::NotAt(None) => written.is_some(),
            Self::At(None) => written.is_none(),
            Self::NotAt(Some(_)) => true,
        }
    }
}

/// Returns whether a reply states that the store was changed.
pub(super) fn changed(seen: &Seen) -> bool {
    match seen {
        Seen::Written => true,
        Seen::Read { .. } => false,
        Seen::Changed(changed) => *changed,
    }
}

/// Returns the fact that a reply states about the row just before the call.
pub(super) fn observation<'a>(call: &KvCall, seen: &'a Seen) -> Option<TotalObservation<'a>> {
    Some(match (call, seen) {
        (_, Seen::Read { value, modified }) => TotalObservation::Is(value.as_ref(), *modified),
        (KvCall::Delete { .. }, Seen::Changed(true)) => TotalObservation::Exists,
        (KvCall::Delete { .. }, Seen::Changed(false)) => TotalObservation::At(None),
        (KvCall::CompareAndSet { expect, .. }, Seen::Changed(true)) => {
            TotalObservation::At(*expect)
        }
        (KvCall::CompareAndSet { expect, .. }, Seen::Changed(false)) => {
            TotalObservation::NotAt(*expect)
        }
        _ => return None,
    })
}

/// Returns the value that a call writes if it changes the store (the inner `None` is a deletion), or `None` if it
/// only reads.
pub(super) fn written(call: &KvCall) -> Option<Option<&Value>> {
    match call {
        KvCall::Put { value, .. } | KvCall::CompareAndSet { value, .. } => Some(Some(value)),
        KvCall::Delete { .. } => Some(None),
        KvCall::Get { .. } => None,
    }
}

/// Returns the fact that must be true for a call of unknown outcome to change the store, or `None` if there is no
/// condition.
pub(super) fn condition(call: &KvCall) -> Option<TotalObservation<'_>> {
    match call {
        KvCall::Delete { .. } => Some(TotalObservation::Exists),
        KvCall::CompareAndSet { expect, .. } => Some(TotalObservation::At(*expect)),
        KvCall::Put { .. } | KvCall::Get { .. } => None,
    }
}
