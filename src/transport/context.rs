//! The state that all connections of one member share.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::watch;

use super::Receiver;
use super::acceptor::Incoming;
use super::evidence::{ConnectionEnd, ConnectionEvent, ProcessEvidence};
use super::exchange::Broken;
use super::handshake::Admission;
use super::join::Joiners;
use super::names::Names;
use super::peers::{Peer, Peers};
use super::security::Security;
use super::tcp::TcpSettings;
use super::wire::Wire;
use crate::env::Env;
use crate::model::{Hello, Lane, Moment, NodeId};

/// Minimum time between two reports of rejections for one peer and one side of the connection.
/// Members dial repeatedly, so the same rejection repeats.
const REJECTION_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The role of this member on a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Side {
    Dialer,
    Acceptor,
}

/// The state that all connections of one member share. Each task of the transport holds a
/// reference, so the last task to end drops it.
pub(super) struct Context {
    pub(super) env: Env,
    pub(super) settings: TcpSettings,
    pub(super) names: Names,
    pub(super) security: Security,
    pub(super) admission: Admission,
    pub(super) receiver: Arc<dyn Receiver>,
    pub(super) peers: Peers,
    pub(super) incoming: Incoming,
    pub(super) presence: ContextPresence,
    pub(super) joiners: Joiners,
    reported: Mutex<BTreeMap<(Side, Option<NodeId>), Moment>>,
    stopping: watch::Receiver<bool>,
    /// Nothing is ever sent on this channel. When the last task has ended, the context is dropped,
    /// and the receiver detects that the channel is closed.
    _ended: mpsc::Sender<()>,
}

impl Context {
    pub(super) fn new(
        env: Env,
        settings: TcpSettings,
        security: Security,
        admission: Admission,
        receiver: Arc<dyn Receiver>,
        stopping: watch::Receiver<bool>,
        ended: mpsc::Sender<()>,
    ) -> Self {
        Self {
            env,
            settings,
            names: Names::default(),
            security,
            admission,
            presence: ContextPresence::new(receiver.clone()),
            receiver,
            peers: Peers::default(),
            incoming: Incoming::default(),
            joiners: Joiners::default(),
            reported: Mutex::default(),
            stopping,
            _ended: ended,
        }
    }

    /// Processes the end of a connection with `peer` that lasted this long. If the peer has closed
    /// all connections, dialers in a pause dial at once. After a short connection, dialers do not
    /// dial at once, because the peer may accept connections only to close them.
    pub(super) fn has_closed(&self, peer: NodeId, lasted: Duration) {
        if !self.peers.contains(peer) {
            self.presence.forget(peer);
        } else if lasted >= self.settings.pause_max && self.presence.needs_dial(peer) {
            self.peers.redial(peer);
        }
    }

    /// Runs `task` until it ends or the transport stops.
    pub(super) async fn until_stopped(&self, task: impl Future<Output = ()>) {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = task => {}
        }
    }

    /// Reports why a connection with `peer` (if known) failed or ended, if the reason is worth
    /// reporting.
    pub(super) fn report(&self, side: Side, peer: Option<NodeId>, broken: &Broken) {
        let me = self.admission.me();
        match (broken, peer) {
            (Broken::Refused { peer, why }, _) if self.may_report(side, Some(*peer)) => {
                self.receiver.refused(*peer, why.clone());
            }
            (Broken::Untrusted(why), Some(peer)) if self.may_report(side, Some(peer)) => {
                self.receiver.refused(peer, why.clone().into());
            }
            (Broken::Garbage(why), Some(peer)) if self.may_report(side, Some(peer)) => {
                tracing::warn!(%me, %peer, ?side, %why, "closed connection: received invalid data");
            }
            (Broken::Untrusted(why), None) if self.may_report(side, None) => {
                tracing::warn!(%me, %why, "rejected incoming connection");
            }
            _ => tracing::debug!(%me, ?side, error = %broken, "connection failed"),
        }
    }

    /// Reports why `peer` was not reached at `address`.
    pub(super) fn report_unreachable(&self, peer: &Peer, address: &str, broken: &Broken) {
        let (me, id) = (self.admission.me(), peer.id);
        if matches!(broken, Broken::Refused { .. } | Broken::Untrusted(_)) {
            self.report(Side::Dialer, Some(id), broken);
        } else if peer.may_report_unreachable(self.env.clock.now()) {
            let name = self.admission.name(id).unwrap_or_default();
            tracing::warn!(%me, peer = %id, name, address, error = %broken, "cannot reach member");
        } else {
            tracing::debug!(%me, peer = %id, address, error = %broken, "cannot reach member");
        }
    }

    /// Logs a warning if a new connection is not encrypted although this member uses TLS. Only the
    /// control lane logs the warning, so that the other lanes do not repeat it.
    pub(super) fn warn_if_bare(&self, wire: &Wire, peer: NodeId, lane: Lane) {
        if lane == Lane::Control && self.security.is_bare(wire) {
            let (me, name) = (self.admission.me(), self.admission.name(peer).unwrap_or_default());
            tracing::warn!(%me, %peer, name, "connection is not encrypted: the member does not use TLS");
        }
    }

    /// Returns whether enough time has passed to report about this peer again.
    fn may_report(&self, side: Side, peer: Option<NodeId>) -> bool {
        // All unknown peers share one entry of the table, so that forged ids fill neither the table
        // nor the program's log.
        let place = (side, peer.filter(|peer| self.admission.knows(*peer)));
        let now = self.env.clock.now();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let last = reported.get(&place);
        let may = last.is_none_or(|last| now.since(*last) >= REJECTION_REPORT_INTERVAL);
        if may {
            reported.insert(place, now);
        }
        may
    }
}

/// Tracks the connections with each peer. Notifies the receiver when the first connection opens,
/// when the last one ends, and when the process of the peer seems to have ended.
pub(super) struct ContextPresence {
    peers: Mutex<BTreeMap<NodeId, ProcessEvidence>>,
    receiver: Arc<dyn Receiver>,
}

impl ContextPresence {
    fn new(receiver: Arc<dyn Receiver>) -> Self {
        Self { peers: Mutex::default(), receiver }
    }

    /// Records a new connection with `peer`. Dropping the guard records the end of the connection.
    pub(super) fn enter(&self, peer: NodeId, hello: Hello) -> PresenceGuard<'_> {
        self.apply(peer, ConnectionEvent::Opened, Some(hello));
        PresenceGuard { presence: self, peer, end: ConnectionEnd::Here }
    }

    /// Records the result of a dial to one of the `addresses` of `peer`.
    pub(super) fn dialed<T>(
        &self,
        peer: NodeId,
        address: &str,
        addresses: &[String],
        result: &io::Result<T>,
    ) {
        let is_refused =
            matches!(result, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        let event = match is_refused {
            true => ConnectionEvent::DialRefused { address, addresses },
            false => ConnectionEvent::DialNotRefused,
        };
        self.apply(peer, event, None);
    }

    /// Returns whether `peer` should be dialed at once, to find out whether its process has ended.
    pub(super) fn needs_dial(&self, peer: NodeId) -> bool {
        self.peers().get(&peer).is_some_and(ProcessEvidence::needs_dial)
    }

    /// Forgets a peer that this member does not dial, unless connections with it are open.
    pub(super) fn forget(&self, peer: NodeId) {
        let mut peers = self.peers();
        if peers.get(&peer).is_some_and(|evidence| !evidence.is_connected()) {
            peers.remove(&peer);
        }
    }

    /// Processes an event, and notifies the receiver of the consequences. `hello` is the hello of
    /// an opened connection.
    fn apply(&self, peer: NodeId, event: ConnectionEvent<'_>, hello: Option<Hello>) {
        // The lock is held during the calls, so that the receiver sees the notifications in order.
        let mut peers = self.peers();
        let evidence = peers.entry(peer).or_default();
        let (was_connected, had_ended) = (evidence.is_connected(), evidence.has_ended());
        evidence.apply(event);
        let (is_connected, has_ended) = (evidence.is_connected(), evidence.has_ended());
        if *evidence == ProcessEvidence::Unknown {
            peers.remove(&peer);
        }
        if let Some(hello) = hello {
            self.receiver.connected(peer, hello);
        }
        if was_connected && !is_connected {
            self.receiver.disconnected(peer);
        }
        if had_ended != has_ended {
            self.receiver.process_ended(peer, has_ended);
        }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, ProcessEvidence>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection.
pub(super) struct PresenceGuard<'a> {
    presence: &'a ContextPresence,
    peer: NodeId,
    end: ConnectionEnd,
}

impl PresenceGuard<'_> {
    /// Records how the connection has ended.
    pub(super) fn end(mut self, broken: &Broken) {
        if let Broken::Socket(error) = broken {
            self.end = ConnectionEnd::of(error);
        }
    }
}

impl Drop for PresenceGuard<'_> {
    fn drop(&mut self) {
        self.presence.apply(self.peer, ConnectionEvent::Ended(self.end), None);
    }
}
