//! [`ItemId`]: the id of an item, and its text form.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error as ThisError;

/// Id of an item, unique in the cluster and never reused. Has a text form, for command lines:
///
/// ```
/// # use bowline::{Blocking, Config, Node};
/// use bowline::queue::ItemId;
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// let id = node.client().queue("jobs").put("resize 1.png").block()?;
/// assert_eq!(id.to_string().parse::<ItemId>()?, id);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ItemId(
    #[cfg_attr(feature = "serde", serde(with = "crate::model::serialize"))] pub(super) Bytes,
);

impl ItemId {
    /// Returns the id as used in the item's key.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Reports whether an item can have this id. Keys with further slashes do not belong to the
    /// queue.
    pub(super) fn is_valid(id: &[u8]) -> bool {
        !id.is_empty() && !id.contains(&b'/')
    }
}

/// Bytes other than printable ASCII are escaped as in a byte string of Rust.
impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The error for an invalid item id: the text is not that of an id that a put returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
#[error("invalid item id: must be the text of an id that a put returned")]
pub struct ParseItemIdError;

/// Parses the displayed form of an id that a put returned. If another program has written an item
/// with an id of its own, use the id that [`Queue::items`](super::Queue::items) returns.
impl FromStr for ItemId {
    type Err = ParseItemIdError;

    fn from_str(text: &str) -> Result<Self, ParseItemIdError> {
        let is_digit = |byte: u8| matches!(byte, b'.' | b'0'..=b'9' | b'a'..=b'f');
        let lengths: Vec<usize> = text.split('.').map(str::len).collect();
        match lengths[..] {
            [4, 16, 4..=16] if text.bytes().all(is_digit) => Ok(Self(text.to_owned().into())),
            _ => Err(ParseItemIdError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::item_id;
    use super::*;

    #[test]
    fn every_item_id_of_a_put_round_trips_as_text() {
        for id in [item_id(-3, 7, 1), item_id(i16::MAX, u64::MAX, 0x1_0000), item_id(0, 0, 0)] {
            let id = ItemId(id);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn text_that_is_no_id_of_a_put_is_rejected() {
        let id = item_id(0, 0xa, 1);
        let id = std::str::from_utf8(&id).unwrap();
        let wrong = [id.to_uppercase(), id.replace('.', "/"), format!("{id}.1"), format!("{id} ")];
        let wrong = wrong.iter().map(String::as_str).chain([&id[1..], &id[..id.len() - 1]]);
        for text in wrong.chain(["", "nonsense", "..", "from etcdctl", "jobs/item/1"]) {
            assert_eq!(text.parse::<ItemId>(), Err(ParseItemIdError), "{text:?}");
        }
    }
}
