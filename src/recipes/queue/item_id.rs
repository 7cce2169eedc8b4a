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

/// The error for an invalid item id: the text is not the displayed form of an [`ItemId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
#[error("invalid item id: must be the text of an id as displayed, without a slash")]
pub struct ParseItemIdError;

/// Parses the displayed form of an [`ItemId`]. Each id has exactly one text.
impl FromStr for ItemId {
    type Err = ParseItemIdError;

    fn from_str(text: &str) -> Result<Self, ParseItemIdError> {
        let id = unescape(text).filter(|id| Self::is_valid(id)).map(|id| Self(id.into()));
        id.filter(|id| id.to_string() == text).ok_or(ParseItemIdError)
    }
}

/// Reverses `escape_ascii`. The caller rejects texts that it does not produce.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut id = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let mut digit = || char::from(bytes.next()?).to_digit(16);
                    let (high, low) = (digit()?, digit()?);
                    u8::try_from(high * 16 + low).ok()?
                }
                quoted => quoted,
            },
            plain => plain,
        };
        id.push(byte);
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_id_round_trips_as_text() {
        let bytes = || (0..=u8::MAX).filter(|byte| *byte != b'/');
        let singles = bytes().map(|a| vec![a]);
        let pairs = bytes().flat_map(|a| bytes().map(move |b| vec![a, b]));
        let long = [super::super::index::item_id(-3, 7, 1).to_vec(), b"from etcdctl".to_vec()];
        for id in singles.chain(pairs).chain(long) {
            let id = ItemId(id.into());
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn text_that_no_item_id_displays_is_rejected() {
        for text in [
            "", "a/b", "\\x2f", "\\", "\\x", "\\x4", "\\xg0", "\\x+1", "\\x41", "\\x0A", "\\a",
            "\\0", "'", "\"", "\n", "é",
        ] {
            assert_eq!(text.parse::<ItemId>(), Err(ParseItemIdError), "{text:?}");
        }
    }
}
