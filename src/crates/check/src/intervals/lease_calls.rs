//! The notation of leases in a history.

use crate::lines::{FieldError, Fields, Written};
use crate::value::Value;

/// A call on a lease.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `grant` | `lease`: a value; `ttl`: a number, in the unit of the moments | |
/// | `renew` | `lease` | `there`: true (default), or false if the lease does not exist; `ttl`: a number, if the TTL has changed |
/// | `revoke` | `lease` | `there`: whether the lease existed before the revocation, default true |
/// | `look` | `lease` | `there`: whether the lease exists, default true. Any proof counts, such as a row attached to the lease |
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeaseCall {
    /// Grants a lease.
    Grant {
        /// The lease, whose name is never reused.
        lease: Value,
        /// Time to live without a renewal.
        ttl: u64,
    },
    /// Renews a lease.
    Renew {
        /// The lease.
        lease: Value,
    },
    /// Revokes a lease.
    Revoke {
        /// The lease.
        lease: Value,
    },
    /// Asks whether a lease exists.
    Look {
        /// The lease.
        lease: Value,
    },
}

/// The reply to a call on a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseReply {
    /// Whether the lease existed. True after a grant.
    pub there: bool,
    /// The current TTL, if it differs from the granted TTL.
    pub ttl: Option<u64>,
}

impl LeaseCall {
    /// Returns the lease of the call.
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
