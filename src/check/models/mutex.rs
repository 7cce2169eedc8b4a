//! A lock that one owner holds at a time, perhaps several times over, with tokens that rise.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `acquire` | `owner`: a value | `acquired`: true (if it is missing) or false; `token`: a number, which must be there if there are tokens |
//! | `release` | `owner`: a value | `released`: true (if it is missing) or false |
//!
//! A call that waited and gave up is `failed`. `acquired: false` is the answer of a call that does not wait, and
//! `released: false` that of one who does not hold: both say something of who held the lock at that moment.
//!
//! A hold that ends by itself, as with a lease, is nobody's call: such histories are not for this model.

use crate::check::lines::{FieldError, Fields, Written};
use crate::check::model::Model;
use crate::check::value::Value;

/// A lock that knows its owner. By default it is not re-entrant and has no tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutex {
    /// How often its owner may hold it at once, from 1. What is more is refused.
    pub holds_max: u32,
    /// Whether each hold has a token, above those of all holds before it. An owner who comes again is told the
    /// token that it has; to be told none is a violation. Without tokens, those that are told say nothing.
    pub is_fenced: bool,
}

/// What a lock is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MutexCall {
    /// Let me hold it.
    Acquire {
        /// Who.
        owner: Value,
    },
    /// I hold it once less.
    Release {
        /// Who.
        owner: Value,
    },
}

/// What a lock says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MutexReply {
    /// It is held.
    Acquired {
        /// By this token, where there are tokens.
        token: Option<u64>,
    },
    /// It is held once less, or free.
    Released,
    /// Somebody else holds it, or this owner too often; or the one who would release does not hold it.
    Refused,
}

/// The hold there is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    /// By whom.
    pub owner: Value,
    /// How often.
    pub times: u32,
    /// Its token, if anybody was told.
    pub token: Option<u64>,
}

/// What a lock is like between two calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MutexState {
    /// Its hold, if it is not free.
    pub held: Option<Held>,
    /// What the highest token of the holds that were is at least: nobody may have been told those of some.
    pub token_before: Option<u64>,
}

impl Default for Mutex {
    fn default() -> Self {
        Self { holds_max: 1, is_fenced: false }
    }
}

impl Mutex {
    /// The state in which `owner` holds it once more; `None` if that is refused.
    fn acquired(&self, state: &MutexState, owner: &Value, told: Option<u64>) -> Option<MutexState> {
        let mut held = match &state.held {
            Some(held) if held.owner == *owner && held.times < self.holds_max => held.clone(),
            Some(_) => return None,
            None => Held { owner: owner.clone(), times: 0, token: None },
        };
        held.times += 1;
        if self.is_fenced && told.is_some() {
            let fits = match held.token {
                Some(token) => Some(token) == told,
                None => told > state.token_before,
            };
            if !fits {
                return None;
            }
            held.token = told;
        }
        Some(MutexState { held: Some(held), token_before: state.token_before })
    }

    /// The state in which `owner` holds it once less; `None` if that is refused.
    fn released(&self, state: &MutexState, owner: &Value) -> Option<MutexState> {
        let held = state.held.as_ref().filter(|held| held.owner == *owner)?;
        Some(if held.times > 1 {
            let held = Held { times: held.times - 1, ..held.clone() };
            MutexState { held: Some(held), token_before: state.token_before }
        } else {
            let token = self.is_fenced.then(|| ended(held.token, state.token_before));
            MutexState { held: None, token_before: token }
        })
    }
}

/// The lowest token that one may have had whose hold ended: its own, or else the next one.
pub(super) fn ended(token: Option<u64>, before: Option<u64>) -> u64 {
    token.unwrap_or(before.map_or(0, |before| before.saturating_add(1)))
}

impl Model for Mutex {
    type Call = MutexCall;
    type Reply = MutexReply;
    type State = MutexState;

    fn initial(&self) -> MutexState {
        assert!(self.holds_max > 0, "a lock can be held");
        MutexState { held: None, token_before: None }
    }

    fn step(
        &self,
        state: &MutexState,
        call: &MutexCall,
        reply: Option<&MutexReply>,
        next: &mut Vec<MutexState>,
    ) {
        let told = match reply {
            Some(MutexReply::Acquired { token }) => *token,
            _ => None,
        };
        // What happens if it is granted; without a token, it is refused by nothing but other holds.
        let (granted, is_refused) = match call {
            MutexCall::Acquire { owner } => {
                (self.acquired(state, owner, told), self.acquired(state, owner, None).is_none())
            }
            MutexCall::Release { owner } => {
                (self.released(state, owner), self.released(state, owner).is_none())
            }
        };
        let fits = match (call, reply) {
            (_, None) => true,
            (_, Some(MutexReply::Refused)) => is_refused,
            (MutexCall::Acquire { .. }, Some(MutexReply::Acquired { token })) => {
                !is_refused && (token.is_some() || !self.is_fenced)
            }
            (MutexCall::Release { .. }, Some(MutexReply::Released)) => !is_refused,
            (_, Some(_)) => false,
        };
        if fits && is_refused {
            next.push(state.clone());
        } else if fits {
            next.extend(granted);
        }
    }

    fn observes(&self, _call: &MutexCall, reply: Option<&MutexReply>) -> bool {
        reply == Some(&MutexReply::Refused)
    }
}

impl Written for MutexCall {
    type Reply = MutexReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        Ok(Some(match name {
            "acquire" => Self::Acquire { owner: fields.value("owner")? },
            "release" => Self::Release { owner: fields.value("owner")? },
            _ => return Ok(None),
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<MutexReply, FieldError> {
        Ok(match self {
            Self::Acquire { .. } => match fields.flag("acquired")? {
                Some(false) => MutexReply::Refused,
                Some(true) | None => MutexReply::Acquired { token: fields.number("token")? },
            },
            Self::Release { .. } => match fields.flag("released")? {
                Some(false) => MutexReply::Refused,
                Some(true) | None => MutexReply::Released,
            },
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        let (name, owner) = match self {
            Self::Acquire { owner } => ("acquire", owner),
            Self::Release { owner } => ("release", owner),
        };
        fields.put_value("owner", Some(owner));
        name
    }

    fn write_reply(&self, reply: &MutexReply, fields: &mut Fields) {
        let flag = match self {
            Self::Acquire { .. } => "acquired",
            Self::Release { .. } => "released",
        };
        fields.put(flag, *reply != MutexReply::Refused);
        if let MutexReply::Acquired { token: Some(token) } = reply {
            fields.put("token", *token);
        }
    }
}
