//! Pieces: how a state that travels is written down.
//!
//! ```text
//! head     = version u8 | cluster version | index | term | revision | compacted + 1 or 0 | past u64
//!          | next lease | members | digest u64
//! piece    = version u8 | kind u8 | list            1 rows, 2 changes, 3 leases, 4 lives, 5 answers
//! change   = 1 row (put) | 2 revision, key bytes (delete)
//! lease    = id | time | 0 | 1 member, incarnation, own u8, label bytes
//! life     = member | incarnation | window
//! answer   = member | incarnation | number | outcome
//! counts   = rows | changes | leases | lives | answers
//! ```

use std::time::Duration;

use bytes::Bytes;

use super::outcome::yes_or_no;
use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
use crate::model::{
    AckWindow, ClusterVersion, Incarnation, KeyValue, LeaseId, LeaseRow, LifeRow, LogIndex,
    Members, NodeId, Outcome, Piece, PieceCounts, RequestId, Revision, RowChange, SessionInfo,
    StateHead, Term,
};

/// The format of states that this build writes, and the newest that it reads.
const VERSION: u8 = 1;

mod kind {
    pub(super) const ROWS: u8 = 1;
    pub(super) const CHANGES: u8 = 2;
    pub(super) const LEASES: u8 = 3;
    pub(super) const LIVES: u8 = 4;
    pub(super) const ANSWERS: u8 = 5;
    /// Of a change.
    pub(super) const PUT: u8 = 1;
    pub(super) const DELETE: u8 = 2;
}

/// Appends the head of a state to `sink`.
pub(crate) fn encode_head(head: &StateHead, sink: &mut impl Sink) {
    let to = &mut Encoder::new(sink);
    to.byte(VERSION);
    to.number(head.version.get());
    to.number(head.index.get());
    to.number(head.term.get());
    head.revision.encode(to);
    to.number(head.compacted.map_or(0, |compacted| compacted.get().saturating_add(1)));
    to.fixed_u64(head.past);
    to.number(head.next_lease);
    head.members.encode(to);
    to.fixed_u64(head.digest);
}

/// Reads the head of a state.
pub(crate) fn decode_head(bytes: Bytes) -> Result<StateHead, CodecError> {
    let mut from = Decoder::new("head of a state", bytes);
    from.version(VERSION)?;
    let head = StateHead {
        version: ClusterVersion(from.number()?),
        index: LogIndex(from.number()?),
        term: Term(from.number()?),
        revision: Revision::decode(&mut from)?,
        compacted: from.number()?.checked_sub(1).map(Revision),
        past: from.fixed_u64()?,
        next_lease: from.number()?,
        members: Members::decode(&mut from)?,
        digest: from.fixed_u64()?,
    };
    from.finish()?;
    Ok(head)
}

/// Appends a piece of a state to `sink`.
pub(crate) fn encode_piece(piece: &Piece, sink: &mut impl Sink) {
    let to = &mut Encoder::new(sink);
    to.byte(VERSION);
    match piece {
        Piece::Rows(rows) => {
            to.byte(kind::ROWS);
            to.list(rows);
        }
        Piece::Changes(changes) => {
            to.byte(kind::CHANGES);
            to.list(changes);
        }
        Piece::Leases(leases) => {
            to.byte(kind::LEASES);
            to.list(leases);
        }
        Piece::Lives(lives) => {
            to.byte(kind::LIVES);
            to.list(lives);
        }
        Piece::Answers(answers) => {
            to.byte(kind::ANSWERS);
            to.number(answers.len() as u64);
            for (id, outcome) in answers {
                to.number(id.node.get());
                to.number(id.incarnation.get());
                to.number(id.seq);
                outcome.encode(to);
            }
        }
    }
}

/// Reads a piece of a state. Keys and values are slices of `bytes`.
pub(crate) fn decode_piece(bytes: Bytes) -> Result<Piece, CodecError> {
    let mut from = Decoder::new("piece of a state", bytes);
    from.version(VERSION)?;
    let piece = match from.byte()? {
        kind::ROWS => Piece::Rows(from.list::<KeyValue>()?),
        kind::CHANGES => Piece::Changes(from.list()?),
        kind::LEASES => Piece::Leases(from.list()?),
        kind::LIVES => Piece::Lives(from.list()?),
        kind::ANSWERS => {
            let count = from.count(3 + Outcome::BYTES_MIN)?;
            let mut answers = Vec::with_capacity(count);
            for _ in 0..count {
                let id = RequestId {
                    node: NodeId::decode(&mut from)?,
                    incarnation: Incarnation(from.number()?),
                    seq: from.number()?,
                };
                answers.push((id, Outcome::decode(&mut from)?));
            }
            Piece::Answers(answers)
        }
        found => {
            return Err(CodecError::Newer { what: "piece of a state", found: found.into() });
        }
    };
    from.finish()?;
    Ok(piece)
}

impl Encode for PieceCounts {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        let Self { rows, changes, leases, lives, answers } = self;
        for count in [rows, changes, leases, lives, answers] {
            to.number(*count);
        }
    }
}

impl Decode for PieceCounts {
    const BYTES_MIN: usize = 5;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(Self {
            rows: from.number()?,
            changes: from.number()?,
            leases: from.number()?,
            lives: from.number()?,
            answers: from.number()?,
        })
    }
}

impl Encode for RowChange {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            RowChange::Put(kv) => {
                to.byte(kind::PUT);
                kv.encode(to);
            }
            RowChange::Delete { revision, key } => {
                to.byte(kind::DELETE);
                revision.encode(to);
                to.bytes(key);
            }
        }
    }
}

impl Decode for RowChange {
    const BYTES_MIN: usize = 3;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            kind::PUT => RowChange::Put(KeyValue::decode(from)?),
            kind::DELETE => {
                RowChange::Delete { revision: Revision::decode(from)?, key: from.bytes()? }
            }
            found => return Err(CodecError::Newer { what: "change", found: found.into() }),
        })
    }
}

impl Encode for LeaseRow {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        self.id.encode(to);
        self.ttl.encode(to);
        match &self.session {
            None => to.byte(0),
            Some((node, incarnation, info)) => {
                to.byte(1);
                to.number(node.get());
                to.number(incarnation.get());
                to.byte(u8::from(info.own));
                to.bytes(info.label.as_bytes());
            }
        }
    }
}

impl Decode for LeaseRow {
    const BYTES_MIN: usize = 4;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let (id, ttl) = (LeaseId::decode(from)?, Duration::decode(from)?);
        let session = if yes_or_no(from)? {
            let (node, incarnation) = (NodeId::decode(from)?, Incarnation(from.number()?));
            let own = yes_or_no(from)?;
            Some((node, incarnation, SessionInfo { label: from.text()?, own }))
        } else {
            None
        };
        Ok(LeaseRow { id, ttl, session })
    }
}

impl Encode for LifeRow {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.node.get());
        to.number(self.incarnation.get());
        self.window.encode(to);
    }
}

impl Decode for LifeRow {
    const BYTES_MIN: usize = 4;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(LifeRow {
            node: NodeId::decode(from)?,
            incarnation: Incarnation(from.number()?),
            window: AckWindow::decode(from)?,
        })
    }
}
