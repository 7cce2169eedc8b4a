//! A number of permits, of which each owner holds some.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `acquire` | `owner`: a value; `permits`: a number, 1 if it is missing | `acquired`: true (if it is missing) or false |
//! | `release` | `owner`: a value; `permits`: a number, 1 if it is missing | `released`: true (if it is missing) or false |
//!
//! A call that waited and gave up is `failed`; `acquired: false` is the answer of one that does not wait.

use std::collections::BTreeMap;

use crate::check::lines::{FieldError, Fields, Written};
use crate::check::model::Model;
use crate::check::value::Value;

/// A semaphore that knows who holds its permits: what one did not take, one cannot give back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Semaphore {
    /// How many permits there are.
    pub permits: u64,
}

/// What a semaphore is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SemaphoreCall {
    /// Let me hold so many more, all or none.
    Acquire {
        /// Who.
        owner: Value,
        /// How many.
        permits: u64,
    },
    /// I hold so many less, all or none.
    Release {
        /// Who.
        owner: Value,
        /// How many.
        permits: u64,
    },
}

/// What a semaphore says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SemaphoreReply {
    /// It was done.
    Done,
    /// There are fewer permits left; or the owner holds fewer. Nothing was done.
    Refused,
}

impl Model for Semaphore {
    type Call = SemaphoreCall;
    type Reply = SemaphoreReply;
    /// Who holds how many; nobody holds none.
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

/// The field that says whether it was done.
fn flag(call: &SemaphoreCall) -> &'static str {
    match call {
        SemaphoreCall::Acquire { .. } => "acquired",
        SemaphoreCall::Release { .. } => "released",
    }
}
