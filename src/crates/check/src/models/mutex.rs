//! A model of a lock that one owner holds at a time, optionally re-entrant and with rising tokens.
//!
//! This model does not support holds that expire, as with a lease, because they end without a call.

use crate::lines::{FieldError, Fields, Written};
use crate::model::Model;
use crate::value::Value;

/// A lock that is held by at most one owner. By default the lock is not re-entrant and has no tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MutexModel {
    /// Maximum number of times that the owner may hold the lock at once, from 1. Further calls of the owner are
    /// rejected.
    pub holds_max: u32,
    /// Whether each hold has a token higher than all earlier ones. An owner that acquires the lock again gets the
    /// same token. A reply without a token is then a violation. If false, tokens in replies are ignored.
    pub is_fenced: bool,
}

/// A call on a lock.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `acquire` | `owner`: a value | `acquired`: true (default) or false; `token`: a number, required if there are tokens |
/// | `release` | `owner`: a value | `released`: true (default) or false |
///
/// A call that waited and gave up is `failed`. `acquired: false` is the reply to a call that does not wait, and
/// `released: false` the reply to a caller that does not hold the lock. Both replies are observations of the
/// current holder.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MutexCall {
    /// Acquires the lock.
    Acquire {
        /// The owner.
        owner: Value,
    },
    /// Releases the lock once.
    Release {
        /// The owner.
        owner: Value,
    },
}

/// The reply of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MutexReply {
    /// The caller holds the lock.
    Acquired {
        /// The token of the hold, if there are tokens.
        token: Option<u64>,
    },
    /// The lock was released once.
    Released,
    /// Another owner holds the lock, this owner holds it too often, or the caller of `release` does not hold it.
    Refused,
}

/// The current hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    /// The owner.
    pub owner: Value,
    /// Number of times that the owner holds the lock.
    pub times: u32,
    /// The token, if any reply has contained it.
    pub token: Option<u64>,
}

/// The state of a lock between two calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MutexState {
    /// The current hold, or `None` if the lock is free.
    pub held: Option<Held>,
    /// A lower bound for the highest token of past holds. It is not exact because some tokens may never have been
    /// reported.
    pub token_before: Option<u64>,
}

impl Default for MutexModel {
    fn default() -> Self {
        Self { holds_max: 1, is_fenced: false }
    }
}

impl MutexModel {
    /// Returns the state in which `owner` holds the lock once more, or `None` if that is rejected.
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

    /// Returns the state in which `owner` holds the lock once less, or `None` if that is rejected.
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

/// Returns the lowest possible token of a hold that ended: its reported token, or else the next one after `before`.
pub(super) fn ended(token: Option<u64>, before: Option<u64>) -> u64 {
    token.unwrap_or(before.map_or(0, |before| before.saturating_add(1)))
}

impl Model for MutexModel {
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
        // The next state if the call is granted. An acquisition can only be rejected because of existing holds,
        // whatever its token.
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

    fn state_text(&self, state: &MutexState) -> String {
        match &state.held {
            None => "no owner".to_owned(),
            Some(Held { owner, times: 1, token: None }) => format!("owner {owner}"),
            Some(Held { owner, times, token: None }) => format!("owner {owner}, {times} times"),
            Some(Held { owner, times, token: Some(token) }) => {
                format!("owner {owner}, {times} times, token {token}")
            }
        }
    }

    texts_as_written!();
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
