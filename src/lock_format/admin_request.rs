//! Admin requests to the session of a queue entry: release, force release and transfer.
//!
//! A request is a row below the entry's own key, `<entry key>/order`, attached to the same lease.
//! The row is not a queue entry itself, is deleted with the session, and is part of the history of
//! the store. The node that renews the session runs the request: it invalidates the hold first, and
//! changes the queue afterwards. So two holders never consider the lock held at the same time.

use bytes::Bytes;

use crate::model::Revision;

use super::metadata::MARK;
use super::queue::QueuePosition;

/// Suffix of a request's key, after the key of the entry.
const SUFFIX: &[u8] = b"/order";

/// A request to the holder of a lock to release it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The requester: the label of its node.
    pub by: String,
    /// The reason given by the requester.
    pub reason: String,
}

/// The requested action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AdminAction {
    /// Ask the holder to release the lock.
    RequestRelease,
    /// Release the lock without the holder's consent.
    ForceRelease,
    /// Transfer the lock to the entry with this queue position. The position includes the create
    /// revision, so that the request never affects a later entry with the same key.
    Transfer(QueuePosition),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AdminRequest {
    /// Requested action.
    pub(crate) action: AdminAction,
    /// Create revision of the entry's key, so that the request never affects a later entry with the
    /// same key.
    pub(crate) since: Revision,
    /// Requester and reason.
    pub(crate) request: ReleaseRequest,
}

pub(crate) fn admin_request_key(entry: &[u8]) -> Bytes {
    [entry, SUFFIX].concat().into()
}

/// Returns the key of the entry that a request row addresses, or `None` if the key is not that of a
/// request.
pub(crate) fn admin_request_target(key: &[u8]) -> Option<&[u8]> {
    key.strip_suffix(SUFFIX)
}

impl AdminRequest {
    /// Encodes the request as a row's value, one line each: action with successor key and revision,
    /// revision of the addressed entry, requester, reason.
    pub(crate) fn to_value(&self) -> Bytes {
        let action = match &self.action {
            AdminAction::RequestRelease => "ask".to_owned(),
            AdminAction::ForceRelease => "break".to_owned(),
            AdminAction::Transfer(QueuePosition { since, key: successor }) => {
                let successor: String =
                    successor.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("hand over {successor} {since}")
            }
        };
        let by = self.request.by.replace('\n', " ");
        let since = self.since.to_string();
        [
            MARK,
            action.as_bytes(),
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

    /// Parses a row's value. Returns `None` if the value is not a request written by Bowline.
    pub(crate) fn parse(value: &[u8]) -> Option<AdminRequest> {
        let text = std::str::from_utf8(value.strip_prefix(MARK)?).ok()?;
        let mut lines = text.splitn(4, '\n');
        let action = match lines.next()? {
            "ask" => AdminAction::RequestRelease,
            "break" => AdminAction::ForceRelease,
            other => {
                let (successor, since) = other.strip_prefix("hand over ")?.split_once(' ')?;
                AdminAction::Transfer(QueuePosition::new(
                    Revision(since.parse().ok()?),
                    from_hex(successor)?,
                ))
            }
        };
        let since = Revision(lines.next()?.parse().ok()?);
        let (by, reason) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        Some(AdminRequest { action, since, request: ReleaseRequest { by, reason } })
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
    fn admin_action_round_trips_and_other_rows_are_rejected() {
        let successor = QueuePosition::new(Revision(5), Bytes::from_static(b"l/\xff\n1"));
        for action in [
            AdminAction::RequestRelease,
            AdminAction::ForceRelease,
            AdminAction::Transfer(successor),
        ] {
            let request = ReleaseRequest { by: "ops".to_owned(), reason: "two\nlines".to_owned() };
            let order = AdminRequest { action, since: Revision(7), request };
            assert_eq!(AdminRequest::parse(&order.to_value()), Some(order));
        }
        for other in [
            &b""[..],
            b"ask\n7\na\nb",
            b"bowline:1 dance\n7\na\nb",
            b"bowline:1 ask\n7\na",
            // The revision of the successor is missing.
            b"bowline:1 hand over 6c31\n7\na\nb",
        ] {
            assert_eq!(AdminRequest::parse(other), None);
        }
        assert_eq!(
            admin_request_target(&admin_request_key(&Bytes::from_static(b"l/1"))),
            Some(&b"l/1"[..])
        );
    }
}
