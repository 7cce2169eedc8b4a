//! Encoding of an alarm, of a change of the alarm table, and of the whole table, which a snapshot
//! contains.
//!
//! ```text
//! alarm    = member or 0 | kind u8                 1 no space, 2 corrupt
//! change   = 1 alarm (raise) | 2 alarm (clear) | 3 member (clear all of its alarms) | 4 (clear all)
//! alarms   = list of alarm, in order
//! ```

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink};
use crate::model::{Alarm, AlarmChange, AlarmKind, Alarms, NodeId};

impl Encode for AlarmKind {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.byte(match self {
            AlarmKind::NoSpace => 1,
            AlarmKind::Corrupt => 2,
        });
    }
}

impl Decode for AlarmKind {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            1 => AlarmKind::NoSpace,
            2 => AlarmKind::Corrupt,
            found => return Err(CodecError::Newer { what: "kind of alarm", found: found.into() }),
        })
    }
}

impl Encode for Alarm {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.member.map_or(0, NodeId::get));
        self.kind.encode(to);
    }
}

impl Decode for Alarm {
    const BYTES_MIN: usize = 2;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(Alarm { member: NodeId::new(from.number()?), kind: AlarmKind::decode(from)? })
    }
}

mod change {
    pub(super) const RAISE: u8 = 1;
    pub(super) const END: u8 = 2;
    pub(super) const END_ALL_OF: u8 = 3;
    pub(super) const END_ALL: u8 = 4;
}

impl Encode for AlarmChange {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        match self {
            AlarmChange::Raise(alarm) => {
                to.byte(change::RAISE);
                alarm.encode(to);
            }
            AlarmChange::End(alarm) => {
                to.byte(change::END);
                alarm.encode(to);
            }
            AlarmChange::EndAllOf(member) => {
                to.byte(change::END_ALL_OF);
                to.number(member.get());
            }
            AlarmChange::EndAll => to.byte(change::END_ALL),
        }
    }
}

impl Decode for AlarmChange {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        Ok(match from.byte()? {
            change::RAISE => AlarmChange::Raise(Alarm::decode(from)?),
            change::END => AlarmChange::End(Alarm::decode(from)?),
            change::END_ALL_OF => AlarmChange::EndAllOf(NodeId::decode(from)?),
            change::END_ALL => AlarmChange::EndAll,
            found => {
                return Err(CodecError::Newer {
                    what: "kind of alarm change",
                    found: found.into(),
                });
            }
        })
    }
}

impl Encode for Alarms {
    fn encode<S: Sink>(&self, to: &mut Encoder<'_, S>) {
        to.number(self.len() as u64);
        for alarm in self {
            alarm.encode(to);
        }
    }
}

impl Decode for Alarms {
    const BYTES_MIN: usize = 1;

    fn decode(from: &mut Decoder) -> Result<Self, CodecError> {
        let alarms = from.list()?;
        Alarms::from_parts(alarms)
            .ok_or_else(|| from.malformed("there are too many alarms, or they are out of order"))
    }
}
