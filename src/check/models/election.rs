//! An election: one leads at a time, with a value that all can see.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `campaign` | `candidate` and `value`: values | `elected`: true (if it is missing) or false: another one leads; `token`: a number, which must be there if there are tokens |
//! | `proclaim` | `candidate`, `value` | `leads`: true (if it is missing) or false: the candidate does not lead |
//! | `resign` | `candidate` | `leads`: as above |
//! | `expire` | `candidate` | |
//! | `leader` | | `candidate`: a value, or null: nobody leads; `value`; `token` |
//!
//! A `campaign` that waited and gave up is `failed`. Who leads and campaigns again has proclaimed.
//!
//! A lead that ends by itself is nobody's call, and yet somebody else leads after it. So whoever takes down a history
//! adds an `expire` of unknown outcome for a candidate, invoked at the last moment at which it surely led: from then
//! on it may have ended. That is why an election is an object here: what `leader` says and what a campaign is told
//! have one order with it. Whether two *believed* to lead at one time is a question of moments, for
//! [`intervals::holds`](crate::check::intervals::holds).

use super::mutex;
use crate::check::lines::{FieldError, Fields, Written};
use crate::check::model::Model;
use crate::check::value::Value;

/// An election in which nobody leads at first. By default there are no tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Election {
    /// Whether each lead has a token, above those of all before it; to be told none is a violation. Without tokens,
    /// those that are told say nothing.
    pub is_fenced: bool,
}

/// What an election is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ElectionCall {
    /// Let me lead.
    Campaign {
        /// Who.
        candidate: Value,
        /// What all shall see.
        value: Value,
    },
    /// Let all see this.
    Proclaim {
        /// Who leads.
        candidate: Value,
        /// What they shall see.
        value: Value,
    },
    /// Let somebody else lead.
    Resign {
        /// Who led.
        candidate: Value,
    },
    /// It leads no longer, if it did, and nobody called for it.
    Expire {
        /// Who led.
        candidate: Value,
    },
    /// Who leads?
    Leader,
}

/// What an election says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ElectionReply {
    /// The candidate leads.
    Elected {
        /// By this token, where there are tokens.
        token: Option<u64>,
    },
    /// It was done.
    Done,
    /// Another one leads; or the one who would proclaim or resign does not.
    Refused,
    /// This one leads.
    Leader(Option<CurrentLeader>),
}

/// A lead.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CurrentLeader {
    /// Who.
    pub candidate: Value,
    /// What all can see.
    pub value: Value,
    /// Its token, if anybody was told.
    pub token: Option<u64>,
}

/// What an election is like between two calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElectionState {
    /// Who leads.
    pub leading: Option<CurrentLeader>,
    /// What the highest token of the leads that were is at least: nobody may have been told those of some.
    pub token_before: Option<u64>,
}

impl ElectionState {
    fn leads(&self, candidate: &Value) -> Option<&CurrentLeader> {
        self.leading.as_ref().filter(|leading| leading.candidate == *candidate)
    }

    /// The state in which it leads by this token; `None` if it cannot be that one.
    fn with_token(&self, mut leading: CurrentLeader, told: Option<u64>) -> Option<Self> {
        if told.is_some() {
            let fits = match leading.token {
                Some(token) => Some(token) == told,
                None => told > self.token_before,
            };
            if !fits {
                return None;
            }
            leading.token = told;
        }
        Some(Self { leading: Some(leading), token_before: self.token_before })
    }
}

impl Election {
    /// The states after a call that was granted.
    fn campaign(
        &self,
        state: &ElectionState,
        candidate: &Value,
        value: &Value,
        told: Option<u64>,
    ) -> Option<ElectionState> {
        let token = match &state.leading {
            Some(leading) if leading.candidate != *candidate => return None,
            Some(leading) => leading.token,
            None => None,
        };
        let (candidate, value) = (candidate.clone(), value.clone());
        state.with_token(CurrentLeader { candidate, value, token }, told)
    }

    /// The state in which it leads no longer.
    fn ended(&self, leading: &CurrentLeader, state: &ElectionState) -> ElectionState {
        let token = self.is_fenced.then(|| mutex::ended(leading.token, state.token_before));
        ElectionState { leading: None, token_before: token }
    }
}

impl Model for Election {
    type Call = ElectionCall;
    type Reply = ElectionReply;
    type State = ElectionState;

    fn initial(&self) -> ElectionState {
        ElectionState { leading: None, token_before: None }
    }

    fn step(
        &self,
        state: &ElectionState,
        call: &ElectionCall,
        reply: Option<&ElectionReply>,
        next: &mut Vec<ElectionState>,
    ) {
        let refused = reply == Some(&ElectionReply::Refused);
        match call {
            ElectionCall::Campaign { candidate, value } => {
                let told = match reply {
                    Some(ElectionReply::Elected { token: None }) if self.is_fenced => return,
                    Some(ElectionReply::Elected { token }) => token.filter(|_| self.is_fenced),
                    None | Some(ElectionReply::Refused) => None,
                    Some(_) => return,
                };
                let is_free = self.campaign(state, candidate, value, None).is_some();
                match self.campaign(state, candidate, value, told) {
                    Some(after) if !refused => next.push(after),
                    None if !is_free && reply.is_none_or(|_| refused) => next.push(state.clone()),
                    _ => {}
                }
            }
            ElectionCall::Proclaim { candidate, value } => match (state.leads(candidate), reply) {
                (Some(leading), None | Some(ElectionReply::Done)) => {
                    let leading = CurrentLeader { value: value.clone(), ..leading.clone() };
                    next.push(ElectionState { leading: Some(leading), ..state.clone() });
                }
                (None, None | Some(ElectionReply::Refused)) => next.push(state.clone()),
                _ => {}
            },
            ElectionCall::Resign { candidate } => match (state.leads(candidate), reply) {
                (Some(leading), None | Some(ElectionReply::Done)) => {
                    next.push(self.ended(leading, state));
                }
                (None, None | Some(ElectionReply::Refused)) => next.push(state.clone()),
                _ => {}
            },
            ElectionCall::Expire { candidate } => match (state.leads(candidate), reply) {
                (Some(leading), None | Some(ElectionReply::Done)) => {
                    next.push(self.ended(leading, state));
                }
                (None, None) => next.push(state.clone()),
                _ => {}
            },
            ElectionCall::Leader => match (&state.leading, reply) {
                (None, None | Some(ElectionReply::Leader(None))) => next.push(state.clone()),
                (Some(leading), Some(ElectionReply::Leader(Some(seen))))
                    if leading.candidate == seen.candidate && leading.value == seen.value =>
                {
                    let told = seen.token.filter(|_| self.is_fenced);
                    next.extend(state.with_token(leading.clone(), told));
                }
                (Some(_), None) => next.push(state.clone()),
                _ => {}
            },
        }
    }

    fn observes(&self, call: &ElectionCall, reply: Option<&ElectionReply>) -> bool {
        // A token that is seen is remembered.
        let is_leader = *call == ElectionCall::Leader;
        reply == Some(&ElectionReply::Refused) || is_leader && (!self.is_fenced || reply.is_none())
    }
}

impl Written for ElectionCall {
    type Reply = ElectionReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        Ok(Some(match name {
            "campaign" => Self::Campaign {
                candidate: fields.value("candidate")?,
                value: fields.value("value")?,
            },
            "proclaim" => Self::Proclaim {
                candidate: fields.value("candidate")?,
                value: fields.value("value")?,
            },
            "resign" => Self::Resign { candidate: fields.value("candidate")? },
            "expire" => Self::Expire { candidate: fields.value("candidate")? },
            "leader" => Self::Leader,
            _ => return Ok(None),
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<ElectionReply, FieldError> {
        let leads = |done, flag: Option<bool>| match flag {
            Some(false) => ElectionReply::Refused,
            Some(true) | None => done,
        };
        Ok(match self {
            Self::Campaign { .. } => match fields.flag("elected")? {
                Some(false) => ElectionReply::Refused,
                Some(true) | None => ElectionReply::Elected { token: fields.number("token")? },
            },
            Self::Proclaim { .. } | Self::Resign { .. } => {
                leads(ElectionReply::Done, fields.flag("leads")?)
            }
            Self::Expire { .. } => ElectionReply::Done,
            Self::Leader => match fields.value_or_null("candidate")? {
                None => ElectionReply::Leader(None),
                Some(candidate) => {
                    let (value, token) = (fields.value("value")?, fields.number("token")?);
                    ElectionReply::Leader(Some(CurrentLeader { candidate, value, token }))
                }
            },
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        let (name, candidate, value) = match self {
            Self::Campaign { candidate, value } => ("campaign", Some(candidate), Some(value)),
            Self::Proclaim { candidate, value } => ("proclaim", Some(candidate), Some(value)),
            Self::Resign { candidate } => ("resign", Some(candidate), None),
            Self::Expire { candidate } => ("expire", Some(candidate), None),
            Self::Leader => ("leader", None, None),
        };
        for (field, held) in [("candidate", candidate), ("value", value)] {
            if held.is_some() {
                fields.put_value(field, held);
            }
        }
        name
    }

    fn write_reply(&self, reply: &ElectionReply, fields: &mut Fields) {
        let flag = if matches!(self, Self::Campaign { .. }) { "elected" } else { "leads" };
        match reply {
            ElectionReply::Elected { token } => {
                fields.put(flag, true);
                if let Some(token) = token {
                    fields.put("token", *token);
                }
            }
            ElectionReply::Refused => fields.put(flag, false),
            ElectionReply::Done if matches!(self, Self::Expire { .. }) => {}
            ElectionReply::Done => fields.put(flag, true),
            ElectionReply::Leader(leading) => {
                fields.put_value("candidate", leading.as_ref().map(|leading| &leading.candidate));
                if let Some(CurrentLeader { value, token, .. }) = leading {
                    fields.put_value("value", Some(value));
                    if let Some(token) = token {
                        fields.put("token", *token);
                    }
                }
            }
        }
    }
}
