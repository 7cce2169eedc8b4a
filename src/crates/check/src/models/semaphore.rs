//! A model of a semaphore whose permits are held by owners.

use std::collections::BTreeMap;

use crate::lines::{FieldError, Fields, Written};
use crate::model::Model;
use crate::value::Value;

/// A semaphore whose permits have owners: an owner can release only the permits that it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SemaphoreModel {
    /// Total number of permits.
    pub permits: u64,
}

/// A call on a semaphore.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `acquire` | `owner`: a value; `permits`: a number, default 1 | `acquired`: true (default) or false |
/// | `release` | `owner`: a value; `permits`: a number, default 1 | `released`: true (default) or false |
///
/// A call that waited for permits and gave up is recorded as `failed`. `acquired: false` is the reply to a call that
/// does not wait.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SemaphoreCall {
    /// Acquires permits, all or none.
    Acquire {
        /// The owner.
        owner: Value,
        /// Number of permits.
        permits: u64,
    },
    /// Releases permits, all or none.
    Release {
        /// The owner.
        owner: Value,
        /// Number of permits.
        permits: u64,
    },
}

/// The reply of a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SemaphoreReply {
    /// The call succeeded.
    Done,
    /// Fewer permits are available, or the owner holds fewer. Nothing was changed.
    Refused,
}

impl Model for SemaphoreModel {
    type Call = SemaphoreCall;
    type Reply = SemaphoreReply;
    /// Number of permits by owner. Owners without permits are absent.
    type State = BTreeMap<Value, u64>;

    fn initial(&self) -> Self::State {
        BTreeMap::new()
    }

    fn step(
        &self,
        state: &Self::State,
        call: &SemaphoreCall,
        reply: Option<&SemaphoreReply>,
        next: &mut Vec<Self::State>,
    ) {
        let held = |owner| state.get(owner).copied().unwrap_or(0);
        let then = match call {
            SemaphoreCall::Acquire { owner, permits } => {
                let taken: u64 = state.values().sum();
                let left = self.permits - taken;
                (*permits <= left).then(|| (owner, held(owner) + permits))
            }
            SemaphoreCall::Release { owner, permits } => {
                held(owner).checked_sub(*permits).map(|left| (owner, left))
            }
        };
        let said = if then.is_some() { SemaphoreReply::Done } else { SemaphoreReply::Refused };
        if reply.is_some_and(|reply| *reply != said) {
            return;
        }
        let mut after = state.clone();
        match then {
            Some((owner, 0)) => drop(after.remove(owner)),
            Some((owner, permits)) => drop(after.insert(owner.clone(), permits)),
            None => {}
        }
        next.push(after);
    }

    fn observes(&self, _call: &SemaphoreCall, reply: Option<&SemaphoreReply>) -> bool {
        reply == Some(&SemaphoreReply::Refused)
    }

    texts_as_written!();
}

impl Written for SemaphoreCall {
    type Reply = SemaphoreReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        if !["acquire", "release"].contains(&name) {
            return Ok(None);
        }
        let owner = fields.value("owner")?;
        let permits = fields.number("permits")?.unwrap_or(1);
        Ok(Some(match name {
            "acquire" => Self::Acquire { owner, permits },
            _ => Self::Release { owner, permits },
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<SemaphoreReply, FieldError> {
        Ok(match fields.flag(flag(self))? {
            Some(true) | None => SemaphoreReply::Done,
            Some(false) => SemaphoreReply::Refused,
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        let (name, owner, permits) = match self {
            Self::Acquire { owner, permits } => ("acquire", owner, permits),
            Self::Release { owner, permits } => ("release", owner, permits),
        };
        fields.put_value("owner", Some(owner));
        fields.put("permits", *permits);
        name
    }

    fn write_reply(&self, reply: &SemaphoreReply, fields: &mut Fields) {
        fields.put(flag(self), *reply == SemaphoreReply::Done);
    }
}

/// Returns the name of the field that reports success.
fn flag(call: &SemaphoreCall) -> &'static str {
    match call {
        SemaphoreCall::Acquire { .. } => "acquired",
        SemaphoreCall::Release { .. } => "released",
    }
}
