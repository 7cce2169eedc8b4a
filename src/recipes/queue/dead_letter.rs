//! [`DeadLetter`]: why an item is in the dead-letter queue.

use bytes::Bytes;

use crate::model::Op;

use super::{KeyPart, QueueKeys};

/// Why an item is in the dead-letter queue, and how often it had been taken before.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeadLetter {
    /// How often the item had been taken from its queue.
    pub attempts: u64,
    /// The reason that the taker gave ([`Delivery::dead_letter`](super::Delivery::dead_letter),
    /// [`Delivery::fail`](super::Delivery::fail)), or a general text if the limit of attempts was
    /// reached without one.
    pub reason: String,
}

impl DeadLetter {
    /// Maximum length of a reason in bytes. A longer reason is cut.
    pub const REASON_BYTES_MAX: usize = 1024;

    pub(super) fn new(attempts: u64, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        let mut length = reason.len().min(Self::REASON_BYTES_MAX);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        reason.truncate(length);
        Self { attempts, reason }
    }

    /// Returns the operations that put the item into the dead-letter queue of a queue.
    pub(super) fn put(&self, keys: &QueueKeys, id: &[u8], value: Bytes) -> [Op; 2] {
        let dead = keys.dead();
        let text = format!("{} {}", self.attempts, self.reason);
        [Op::put(dead.key(KeyPart::Item, id), value), Op::put(dead.key(KeyPart::Reason, id), text)]
    }

    /// Parses the value of the reason's key.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let (attempts, reason) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some(Self { attempts: attempts.parse().ok()?, reason: reason.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_round_trip_and_are_cut_between_characters() {
        let letter = DeadLetter::new(3, "no such address: x y");
        let Op::Put(put) = &letter.put(&QueueKeys { name: "q".into() }, b"a", Bytes::new())[1]
        else {
            panic!("not a put")
        };
        assert_eq!(put.key, "q/dead/reason/a");
        let crate::model::PutValue::Set(value) = &put.value else { panic!("no value") };
        assert_eq!(DeadLetter::parse(value), Some(letter));
        assert_eq!(DeadLetter::new(1, "é".repeat(600)).reason, "é".repeat(512));
        for foreign in ["", "3", "x y", " "] {
            assert_eq!(DeadLetter::parse(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
