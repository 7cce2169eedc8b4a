//! The rule by which a member concludes from its connections that the process of a peer has ended.
//!
//! When a process ends, its kernel closes its connections and refuses new ones. A network failure
//! looks different: connections stay open or time out, and so do dials. A paused process looks
//! different too, because its kernel still accepts connections.
//!
//! ```text
//!   Unknown ──opened──► Connected ──the peer closes the last one──► Closed ──each address refuses──► Ended
//!      ▲                  │   ▲                                     │    ▲                           │  │
//!      └──lost, or closed─┘   └──────────────opened─────────────────┴────│───────────────────────────┘  │
//!         here                                                           └──a dial is not refused───────┘
//! ```
//!
//! The evidence decides only when an election starts. The evidence may be wrong, for example if a
//! proxy between the members ends.

use std::collections::BTreeSet;
use std::io;

/// The evidence about the process of one peer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum ProcessEvidence {
    /// There is no connection, and no reason to believe that the process has ended.
    #[default]
    Unknown,
    /// Some connections are open.
    Connected {
        /// Number of open connections, on all lanes and in both directions.
        open: usize,
        /// Whether the network has lost a connection since the last one was opened.
        lost: bool,
    },
    /// The peer has closed all connections.
    Closed {
        /// The addresses that have refused a connection since then.
        refused: BTreeSet<String>,
    },
    /// The peer has closed all connections, and all its addresses refuse new ones.
    Ended,
}

/// How a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEnd {
    /// The other side has closed or reset the connection.
    ByPeer,
    /// The network has lost the connection: it has timed out, or the peer is unreachable.
    Lost,
    /// This side has closed the connection.
    Here,
}

impl ConnectionEnd {
    /// Classifies the error with which a socket has ended.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => ConnectionEnd::ByPeer,
            // Errors of this kind come from this side, which closed the connection.
            io::ErrorKind::Other => ConnectionEnd::Here,
            _ => ConnectionEnd::Lost,
        }
    }
}

/// An event on the connections with one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEvent<'a> {
    /// A connection was opened, and its handshake has succeeded.
    Opened,
    /// An open connection has ended.
    Ended(ConnectionEnd),
    /// A dial to one of the addresses of the peer was refused.
    DialRefused { address: &'a str, addresses: &'a [String] },
    /// A dial was accepted, or failed in another way.
    DialNotRefused,
}

impl ProcessEvidence {
    pub(crate) fn apply(&mut self, event: ConnectionEvent<'_>) {
        *self = match (std::mem::take(self), event) {
            (ProcessEvidence::Ended, ConnectionEvent::Opened | ConnectionEvent::DialNotRefused)
                if mutant!(B72) =>
            {
                ProcessEvidence::Ended
            }
            (ProcessEvidence::Connected { open, .. }, ConnectionEvent::Opened) => {
                ProcessEvidence::Connected { open: open + 1, lost: false }
            }
            (_, ConnectionEvent::Opened) => ProcessEvidence::Connected { open: 1, lost: false },
            (ProcessEvidence::Connected { open, lost }, ConnectionEvent::Ended(end)) => {
                let lost = lost || end == ConnectionEnd::Lost;
                let is_first = end == ConnectionEnd::ByPeer && mutant!(B71);
                match open {
                    0 | 1 if lost || end != ConnectionEnd::ByPeer => ProcessEvidence::Unknown,
                    2.. if !is_first => ProcessEvidence::Connected { open: open - 1, lost },
                    _ => ProcessEvidence::Closed { refused: BTreeSet::new() },
                }
            }
            (
                ProcessEvidence::Closed { mut refused },
                ConnectionEvent::DialRefused { address, addresses },
            ) => {
                refused.insert(address.to_owned());
                let all_refuse = addresses.iter().all(|address| refused.contains(address));
                match !addresses.is_empty() && all_refuse {
                    true => ProcessEvidence::Ended,
                    false => ProcessEvidence::Closed { refused },
                }
            }
            (
                ProcessEvidence::Closed { .. } | ProcessEvidence::Ended,
                ConnectionEvent::DialNotRefused,
            ) => ProcessEvidence::Closed { refused: BTreeSet::new() },
            (before, _) => before,
        };
    }

    /// Returns whether the process of the peer has ended, as far as this member can tell.
    pub(crate) fn has_ended(&self) -> bool {
        *self == ProcessEvidence::Ended
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self, ProcessEvidence::Connected { .. })
    }

    /// Returns whether a refused dial would complete the evidence, so that the peer should be
    /// dialed at once.
    pub(crate) fn needs_dial(&self) -> bool {
        matches!(self, ProcessEvidence::Closed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_PEER: ConnectionEvent<'static> = ConnectionEvent::Ended(ConnectionEnd::ByPeer);
    const LOST: ConnectionEvent<'static> = ConnectionEvent::Ended(ConnectionEnd::Lost);
    const HERE: ConnectionEvent<'static> = ConnectionEvent::Ended(ConnectionEnd::Here);
    const OPENED: ConnectionEvent<'static> = ConnectionEvent::Opened;
    const NOT_REFUSED: ConnectionEvent<'static> = ConnectionEvent::DialNotRefused;

    fn after(events: &[ConnectionEvent<'_>]) -> ProcessEvidence {
        let mut evidence = ProcessEvidence::default();
        events.iter().for_each(|event| evidence.apply(*event));
        evidence
    }

    #[test]
    fn process_has_ended_if_all_connections_are_closed_and_all_addresses_refuse() {
        let addresses = ["old:1".to_owned(), "new:1".to_owned()];
        let refused = |at: usize| ConnectionEvent::DialRefused {
            address: &addresses[at],
            addresses: &addresses,
        };
        let closed = [OPENED, OPENED, BY_PEER, BY_PEER];
        let then = |rest: &[ConnectionEvent<'_>]| after(&[&closed[..], rest].concat());
        assert!(then(&[refused(0), refused(1)]).has_ended());
        assert!(then(&[]).needs_dial() && then(&[refused(0), refused(0)]).needs_dial());
        // Each of these events withdraws the evidence.
        for event in [OPENED, NOT_REFUSED] {
            assert!(!then(&[refused(0), refused(1), event]).has_ended(), "{event:?}");
            assert!(!then(&[refused(0), event, refused(1)]).has_ended(), "{event:?}");
        }
        assert!(!then(&[refused(0), refused(1), OPENED, refused(0), refused(1)]).has_ended());
        // A kernel may close the connections of a process before it closes the port.
        assert!(then(&[NOT_REFUSED, refused(0), refused(1)]).has_ended());
    }

    #[test]
    fn open_or_lost_connections_and_unmet_peers_are_no_evidence() {
        let address = ["it:1".to_owned()];
        let refused = ConnectionEvent::DialRefused { address: "it:1", addresses: &address };
        let ended = |events: &[ConnectionEvent<'_>]| after(&[events, &[refused]].concat());
        assert!(ended(&[OPENED, BY_PEER]).has_ended());
        for events in [
            &[][..],
            &[OPENED],
            &[OPENED, OPENED, BY_PEER],
            &[OPENED, LOST],
            &[OPENED, HERE],
            &[OPENED, OPENED, LOST, BY_PEER],
            &[OPENED, OPENED, BY_PEER, HERE],
        ] {
            assert!(!ended(events).has_ended(), "{events:?}");
        }
        // A connection that this side has closed, or that was lost and opened again, does not
        // contradict the evidence.
        assert!(ended(&[OPENED, OPENED, HERE, BY_PEER]).has_ended());
        assert!(ended(&[OPENED, OPENED, LOST, OPENED, BY_PEER, BY_PEER]).has_ended());
        assert!(after(&[OPENED, LOST, OPENED, refused]).is_connected());
    }

    #[test]
    fn only_an_end_of_stream_or_a_reset_is_an_end_by_the_peer() {
        let end = |kind: io::ErrorKind| ConnectionEnd::of(&kind.into());
        for kind in [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset] {
            assert_eq!(end(kind), ConnectionEnd::ByPeer);
        }
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::HostUnreachable] {
            assert_eq!(end(kind), ConnectionEnd::Lost);
        }
        assert_eq!(ConnectionEnd::of(&io::Error::other("unused")), ConnectionEnd::Here);
    }
}
