//! Leases, as they are written.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `grant` | `lease`: a value; `ttl`: a number, in the unit of the moments | |
//! | `renew` | `lease` | `there`: true (if it is missing) or false: there is no such lease; `ttl`: a number, if another one counts from now on |
//! | `revoke` | `lease` | `there`: as above, before it was revoked |
//! | `look` | `lease` | `there`: as above. Whatever tells that a lease lives will do: a row that is bound to it |

use crate::check::lines::{FieldError, Fields, Written};
use crate::check::value::Value;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeaseCall {
    /// Let there be this lease.
    Grant {
        /// Its name, which is never used again.
        lease: Value,
        /// For how long, unless it is renewed.
        ttl: u64,
    },
    /// Let it live on.
    Renew {
        /// Its name.
        lease: Value,
    },
    /// Let it end.
    Revoke {
        /// Its name.
        lease: Value,
    },
    /// Is it there?
    Look {
        /// Its name.
        lease: Value,
    },
}

/// What came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseReply {
    /// Whether it was there; it is after a grant.
    pub there: bool,
    /// For how long it lives now, if that is not what it was granted for.
    pub ttl: Option<u64>,
}

impl LeaseCall {
    /// The lease's name.
    pub fn lease(&self) -> &Value {
        match self {
            Self::Grant { lease, .. }
            | Self::Renew { lease }
            | Self::Revoke { lease }
            | Self::Look { lease } => lease,
        }
    }
}

impl Written for LeaseCall {
    type Reply = LeaseReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        if !["grant", "renew", "revoke", "look"].contains(&name) {
            return Ok(None);
        }
        let lease = fields.value("lease")?;
        Ok(Some(match name {
            "grant" => {
                let ttl = fields.number("ttl")?.ok_or(FieldError::Missing("ttl"))?;
                Self::Grant { lease, ttl }
            }
            "renew" => Self::Renew { lease },
            "revoke" => Self::Revoke { lease },
            _ => Self::Look { lease },
        }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<LeaseReply, FieldError> {
        Ok(match self {
            Self::Grant { .. } => LeaseReply { there: true, ttl: None },
            Self::Renew { .. } => LeaseReply {
                there: fields.flag("there")?.unwrap_or(true),
                ttl: fields.number("ttl")?,
            },
            Self::Revoke { .. } | Self::Look { .. } => {
                LeaseReply { there: fields.flag("there")?.unwrap_or(true), ttl: None }
            }
        })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        fields.put_value("lease", Some(self.lease()));
        match self {
            Self::Grant { ttl, .. } => {
                fields.put("ttl", *ttl);
                "grant"
            }
            Self::Renew { .. } => "renew",
            Self::Revoke { .. } => "revoke",
            Self::Look { .. } => "look",
        }
    }

    fn write_reply(&self, reply: &LeaseReply, fields: &mut Fields) {
        if !matches!(self, Self::Grant { .. }) {
            fields.put("there", reply.there);
        }
        if let Some(ttl) = reply.ttl {
            fields.put("ttl", ttl);
        }
    }
}
