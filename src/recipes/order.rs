//! Orders to whoever has a place: what somebody else wants to become of a hold.
//!
//! An order is a row below the place's own key, `<place key>/order`, bound to the same lease: so it is
//! no place itself, goes with the session, and is part of the history of the store. It is carried out by
//! the node that keeps the session, which ends the holder's belief first and changes the line then: at no
//! moment do two believe.

use bytes::Bytes;

use crate::model::{KeyRange, KeyValue, Range, Revision};
use crate::node::Shared;

use super::rule::Rank;
use super::stance::MARK;

/// What follows the key of the place.
const SUFFIX: &[u8] = b"/order";

/// Somebody asks the holder to give the lock up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// Who asks: the label of its node.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What is ordered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// That the holder be asked to give the lock up.
    Ask,
    /// That it lose the lock.
    Break,
    /// That it hand the lock to the place of this rank: a later one of its name is not meant.
    HandOver(Rank),
}

/// An order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    pub(crate) what: What,
    /// The revision of the place's key: another place of that name is not meant.
    pub(crate) since: Revision,
    pub(crate) request: ReleaseRequest,
}

/// The key of an order to a place.
pub(crate) fn key_for(place: &Bytes) -> Bytes {
    [place, SUFFIX].concat().into()
}

/// The key of the place that a row is an order to, if it is one by its key.
pub(crate) fn addressee(key: &[u8]) -> Option<&[u8]> {
    key.strip_suffix(SUFFIX)
}

/// The rows below a line's prefix that are orders by their keys.
pub(crate) fn rows(shared: &Shared, prefix: &Bytes) -> Vec<KeyValue> {
    let range = Range::new(KeyRange::prefix(prefix.clone()));
    let rows = shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
    rows.into_iter().filter(|row| addressee(&row.key).is_some()).collect()
}

impl Order {
    /// As a row's value: what, with the key and the revision of the successor, to whom, who, and why, in lines.
    pub(crate) fn to_value(&self) -> Bytes {
        let what = match &self.what {
            What::Ask => "ask".to_owned(),
            What::Break => "break".to_owned(),
            What::HandOver((since, successor)) => {
                let successor: String =
                    successor.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("hand over {successor} {since}")
            }
        };
        let by = self.request.by.replace('\n', " ");
        let since = self.since.to_string();
        [
            MARK,
            what.as_bytes(),
            b"\n",
            since.as_bytes(),
            b"\n",
            by.as_bytes(),
            b"\n",
            self.request.reason.as_bytes(),
        ]
        .concat()
        .into()
    }

    /// What a row says; `None` if it is not an order of ours.
    pub(crate) fn parse(value: &[u8]) -> Option<Order> {
        let text = std::str::from_utf8(value.strip_prefix(MARK)?).ok()?;
        let mut lines = text.splitn(4, '\n');
        let what = match lines.next()? {
            "ask" => What::Ask,
            "break" => What::Break,
            other => {
                let (successor, since) = other.strip_prefix("hand over ")?.split_once(' ')?;
                What::HandOver((Revision(since.parse().ok()?), from_hex(successor)?))
            }
        };
        let since = Revision(lines.next()?.parse().ok()?);
        let (by, reason) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        Some(Order { what, since, request: ReleaseRequest { by, reason } })
    }
}

fn from_hex(text: &str) -> Option<Bytes> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect::<Option<Vec<u8>>>()
        .map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_back_and_anything_else_is_none() {
        let successor = (Revision(5), Bytes::from_static(b"l/\xff\n1"));
        for what in [What::Ask, What::Break, What::HandOver(successor)] {
            let request = ReleaseRequest { by: "ops".to_owned(), reason: "two\nlines".to_owned() };
            let order = Order { what, since: Revision(7), request };
            assert_eq!(Order::parse(&order.to_value()), Some(order));
        }
        for other in [
            &b""[..],
            b"ask\n7\na\nb",
            b"bowline:1 dance\n7\na\nb",
            b"bowline:1 ask\n7\na",
            // Of which place of that name?
            b"bowline:1 hand over 6c31\n7\na\nb",
        ] {
            assert_eq!(Order::parse(other), None);
        }
        assert_eq!(addressee(&key_for(&Bytes::from_static(b"l/1"))), Some(&b"l/1"[..]));
    }
}
