//! The notation of lock holds in a history.

use crate::lines::{FieldError, Fields, Written};
use crate::value::Value;

/// The time in which an owner believed that it held a lock.
///
/// | call | its fields | fields of an `ok` reply |
/// |---|---|---|
/// | `hold` | `owner`: a value; `kind`: `write` (default), `read` or `permits`; `permits`: a number, with that kind, default 1; `token`: a number, if there are tokens | `lost`: true if the hold was not released by its owner, default false |
///
/// `invoke` is the first moment at which the owner believed that it held the lock, and `complete` the last. The outcome
/// `unknown` means that the owner crashed: it believed that it held the lock at least until `complete`. If `complete`
/// is missing, the hold counts only for the single moment `invoke`. The outcome `failed` means that the owner never
/// believed that it held the lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HoldCall {
    /// A hold from one moment to another.
    Hold {
        /// The owner. Holds of the same owner may overlap if [`Holds::is_reentrant`](super::Holds::is_reentrant) is
        /// set.
        owner: Value,
        /// The kind of the hold.
        kind: HoldKind,
        /// The fencing token, if there is one.
        token: Option<u64>,
    },
}

/// A kind of hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HoldKind {
    /// An exclusive hold.
    Write,
    /// A hold that other readers may share.
    Read,
    /// A hold of this many permits.
    Permits(u64),
}

/// The end of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldReply {
    /// Whether the hold ended without a release: its lease expired, or the lock was broken.
    pub lost: bool,
}

impl Written for HoldCall {
    type Reply = HoldReply;

    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, FieldError> {
        if name != "hold" {
            return Ok(None);
        }
        let owner = fields.value("owner")?;
        let kind = match fields.one_of("kind", &["write", "read", "permits"])? {
            None | Some(0) => HoldKind::Write,
            Some(1) => HoldKind::Read,
            Some(_) => HoldKind::Permits(fields.number("permits")?.unwrap_or(1)),
        };
        Ok(Some(Self::Hold { owner, kind, token: fields.number("token")? }))
    }

    fn read_reply(&self, fields: &mut Fields) -> Result<HoldReply, FieldError> {
        Ok(HoldReply { lost: fields.flag("lost")?.unwrap_or(false) })
    }

    fn write(&self, fields: &mut Fields) -> &'static str {
        let Self::Hold { owner, kind, token } = self;
        fields.put_value("owner", Some(owner));
        match kind {
            HoldKind::Write => fields.put("kind", "write"),
            HoldKind::Read => fields.put("kind", "read"),
            HoldKind::Permits(permits) => {
                fields.put("kind", "permits");
                fields.put("permits", *permits);
            }
        }
        if let Some(token) = token {
            fields.put("token", *token);
        }
        "hold"
    }

    fn write_reply(&self, reply: &HoldReply, fields: &mut Fields) {
        if reply.lost {
            fields.put("lost", true);
        }
    }
}
