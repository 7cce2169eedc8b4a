//! Holds, as they are written.
//!
//! | call | its fields | fields of an `ok` reply |
//! |---|---|---|
//! | `hold` | `owner`: a value; `kind`: `write` (if it is missing), `read` or `permits`; `permits`: a number, with that kind, 1 if missing; `token`: a number, if there are tokens | `lost`: true if it ended by itself, false if missing |
//!
//! `invoke` is the first moment at which its owner believed to hold, `complete` the last. One that is `unknown` was
//! believed in until `complete` at least, or at no more than one moment if that is missing: its owner died. One that
//! `failed` was never believed in.

use crate::check::lines::{FieldError, Fields, Written};
use crate::check::value::Value;

/// Somebody believes to hold something.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HoldCall {
    /// From one moment to another.
    Hold {
        /// Who. Equal owners may share what they hold, if [`Holds::is_reentrant`](super::Holds::is_reentrant).
        owner: Value,
        /// How.
        kind: HoldKind,
        /// The fencing token, if there is one.
        token: Option<u64>,
    },
}

/// How something is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HoldKind {
    /// By nobody else.
    Write,
    /// By other readers, too.
    Read,
    /// So many of its permits.
    Permits(u64),
}

/// How a hold ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldReply {
    /// Whether it ended by itself: its lease ended, or somebody broke it. Else it was released.
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
