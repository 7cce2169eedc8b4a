//! A model of an election: one candidate leads at a time, with a value that all can observe.

use super::mutex;
use crate::lines::{FieldError, Fields, Written};
use crate::model::Model;
use crate::value::Value;

/// An election without a leader at first. By default there are no tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ElectionModel {
    /// Whether each term of leadership has a token higher than all earlier ones. A reply without a token is then a
    /// violation. If false, tokens in replies are ignored.
    pub is_fenced: bool,
}

/// A call on an election.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `campaign` | `candidate` and `value`: values | `elected`: true (default), or false if another candidate leads; `token`: a number, required if there are tokens |
/// | `proclaim` | `candidate`, `value` | `leads`: true (default), or false if the candidate does not lead |
/// | `resign` | `candidate` | `leads`: as above |
/// | `expire` | `candidate` | |
/// | `leader` | | `candidate`: a value, or null if there is no leader; `value`; `token` |
///
/// A `campaign` that waited and gave up is `failed`. A leader that campaigns again proclaims its value.
///
/// If leadership expires, another candidate can lead although the old leader made no call. To record the expiry, add an
/// `expire` of unknown outcome for the old leader, invoked at the last moment at which it certainly led. The leadership
/// may have ended at any later time. An election is one object, because the replies of `leader` and of campaigns must
/// agree on one order. Use [`intervals::holds`](crate::intervals::holds) to check whether two candidates *believed* to
/// lead at one time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ElectionCall {
    /// Makes the candidate the leader.
    Campaign {
        /// The candidate.
        candidate: Value,
        /// The value to publish.
        value: Value,
    },
    /// Changes the published value.
    Proclaim {
        /// The leader.
        candidate: Value,
        /// The new value.
        value: Value,
    },
    /// Ends the leadership of the candidate.
    Resign {
        /// The leader.
        candidate: Value,
    },
    /// Ends the leadership of the candidate, if it led, without a request.
    Expire {
        /// The leader.
        candidate: Value,
    },
    /// Asks for the current leader.
    Leader,
}

/// The reply of an election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ElectionReply {
    /// The candidate leads.
    Elected {
        /// The token of this term, if there are tokens.
        token: Option<u64>,
    },
    /// The call succeeded.
    Done,
    /// Another candidate leads, or the caller of `proclaim` or `resign` does not lead.
    Refused,
    /// The current leader, if there is one.
    Leader(Option<CurrentLeader>),
}

/// A leader.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CurrentLeader {
    /// The candidate.
    pub candidate: Value,
    /// The published value.
    pub value: Value,
    /// The token, if any reply has contained it.
    pub token: Option<u64>,
}

/// The state of an election between two calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElectionState {
    /// The current leader.
    pub leading: Option<CurrentLeader>,
    /// A lower bound of the highest token of past leaders. It is not exact because some tokens may never have been
    /// reported.
    pub token_before: Option<u64>,
}

impl ElectionState {
    fn leads(&self, candidate: &Value) -> Option<&CurrentLeader> {
        self.leading.as_ref().filter(|leading| leading.candidate == *candidate)
    }

    /// Returns the state in which the candidate leads with this token, or `None` if the token is impossible.
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

impl ElectionModel {
    /// Returns the states after a successful campaign.
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

    /// Returns the state after the leadership has ended.
    fn ended(&self, leading: &CurrentLeader, state: &ElectionState) -> ElectionState {
        let token = self.is_fenced.then(|| mutex::ended(leading.token, state.token_before));
        ElectionState { leading: None, token_before: token }
    }
}

impl Model for ElectionModel {
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
        // A token that was observed is part of the state.
        let is_leader = *call == ElectionCall::Leader;
        reply == Some(&ElectionReply::Refused) || is_leader && (!self.is_fenced || reply.is_none())
    }

    fn state_text(&self, state: &ElectionState) -> String {
        match &state.leading {
            None => "no leader".to_owned(),
            Some(CurrentLeader { candidate, value, token: None }) => {
                format!("leader {candidate} with value {value}")
            }
            Some(CurrentLeader { candidate, value, token: Some(token) }) => {
                format!("leader {candidate} with value {value}, token {token}")
            }
        }
    }

    texts_as_written!();
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
