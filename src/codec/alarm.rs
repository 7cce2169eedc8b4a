//! Encoding of an alarm, of a change of the alarm table, and of the whole table, which a snapshot
//! contains.
//!
//! ```text
//! alarm    = member or 0 | kind u8                 1 no space, 2 corrupt
//! change   = 1 alarm (raise) | 2 alarm (clear) | 3 member (clear all of its alarms) | 4 (clear all)
//! alarms   = list of alarm, in order
//! ```

use super::{CodecError, Decode, Decoder, Encode, Encoder, Sink, choice, record};
use crate::model::{Alarm, AlarmChange, AlarmKind, Alarms};

choice!(AlarmKind, "kind of alarm", 1, {
    1 => NoSpace,
    2 => Corrupt,
});

record!(Alarm, 2, { member as or_zero, kind });

choice!(AlarmChange, "kind of alarm change", 1, {
    1 => Raise(alarm),
    2 => End(alarm),
    3 => EndAllOf(member),
    4 => EndAll,
});

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
