//! The peers that this member dials. Peers are added, removed and moved while this member runs.
//!
//! ```text
//!   set_peers ──► Peers ──► Peer ── target ──► one dialer per lane: dials the target's addresses,
//!                            │                 ends when the target is removed
//!                            └─ one pipe per lane: the driver sends into it
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

use super::pipe::Pipe;
use super::tcp::TcpSettings;
use crate::model::{DiskId, Hello, Incarnation, Lane, Moment, NodeId};

/// Minimum time between two reports that a peer is unreachable. The peer is dialed repeatedly, so
/// the same failure repeats.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The lanes. Each lane has a connection of its own.
pub(crate) const LANES: [Lane; 3] = [Lane::Control, Lane::Bulk, Lane::Snapshot];

/// A peer that this member dials.
pub(super) struct Peer {
    pub(super) id: NodeId,
    control: Pipe,
    bulk: Pipe,
    snapshot: Pipe,
    /// Addresses of the peer, which are tried in turn: at least one `host:port`. `None` once the
    /// peer was removed.
    target: watch::Sender<Option<Vec<String>>>,
    /// The last incarnation that connected, in either direction.
    life: watch::Sender<Option<Life>>,
    /// Time of the last report that the peer is unreachable.
    complained: Mutex<Option<Moment>>,
}

/// An incarnation of a member: its disk, and the number of starts on that disk.
pub(super) type Life = (DiskId, Incarnation);

/// Returns the incarnation of the sender of a hello.
pub(super) fn incarnation_of(hello: &Hello) -> Life {
    (hello.disk, hello.incarnation)
}

impl Peer {
    fn new(id: NodeId, places: Vec<String>, settings: &TcpSettings) -> Self {
        Self {
            id,
            control: Pipe::new(settings.control_queue),
            bulk: Pipe::new(settings.bulk_queue),
            snapshot: Pipe::on_demand(settings.snapshot_queue),
            target: watch::Sender::new(Some(places)),
            life: watch::Sender::new(None),
            complained: Mutex::default(),
        }
    }

    pub(super) fn pipe(&self, lane: Lane) -> &Pipe {
        match lane {
            Lane::Control => &self.control,
            Lane::Bulk => &self.bulk,
            Lane::Snapshot => &self.snapshot,
        }
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.target.borrow().clone().unwrap_or_default()
    }

    /// Returns a receiver of the addresses, which may change.
    pub(super) fn target(&self) -> watch::Receiver<Option<Vec<String>>> {
        self.target.subscribe()
    }

    /// Records that this incarnation was admitted.
    pub(super) fn met(&self, life: Life) {
        self.life.send_if_modified(|last| {
            // A later incarnation may have been recorded before this incarnation, although this
            // incarnation was accepted first.
            let is_over = last.is_some_and(|last| last.0 == life.0 && last.1 > life.1);
            if is_over || *last == Some(life) {
                return false;
            }
            *last = Some(life);
            true
        });
    }

    /// Returns whether enough time has passed to report again that the peer is unreachable.
    pub(super) fn may_report_unreachable(&self, now: Moment) -> bool {
        let mut last = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| now.since(last) >= REPORT_INTERVAL);
        if may {
            *last = Some(now);
        }
        may
    }

    /// Waits until the peer connects in another incarnation than `life`.
    pub(super) async fn reconnects_as_another(&self, life: Life) {
        let mut last = self.life.subscribe();
        let other = last.wait_for(|last| last.is_some_and(|last| last != life)).await;
        drop(other.expect("the peer is there, and its life with it"));
    }
}

#[derive(Default)]
pub(super) struct Peers {
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the peers by those in `targets`. Connections to removed peers and to old addresses
    /// of moved peers end; all other connections remain. Returns the new peers, whose dialers must
    /// be started, and all peers.
    pub(super) fn set(
        &self,
        targets: &BTreeMap<NodeId, Vec<String>>,
        settings: &TcpSettings,
    ) -> (Vec<Arc<Peer>>, BTreeMap<NodeId, Arc<Peer>>) {
        let mut peers = self.peers();
        peers.retain(|id, peer| {
            let stays = targets.contains_key(id);
            if !stays {
                peer.target.send_replace(None);
            }
            stays
        });
        let mut new = Vec::new();
        for (id, places) in targets {
            if let Some(peer) = peers.get(id) {
                peer.target.send_if_modified(|target| {
                    let moved = target.as_ref() != Some(places);
                    *target = Some(places.clone());
                    moved
                });
            } else {
                let peer = Arc::new(Peer::new(*id, places.clone(), settings));
                peers.insert(*id, peer.clone());
                new.push(peer);
            }
        }
        (new, peers.clone())
    }

    /// Records that the peer has just connected in this incarnation. Dialers in a pause dial the
    /// peer at once, and connections to earlier incarnations of the peer end.
    pub(super) fn record_connection(&self, id: NodeId, life: Life) {
        if let Some(peer) = self.peers().get(&id) {
            peer.met(life);
        }
        self.redial(id);
    }

    /// Returns whether this member dials the peer.
    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.peers().contains_key(&id)
    }

    /// Ends the pauses of the peer's dialers, so that they dial at once.
    pub(super) fn redial(&self, id: NodeId) {
        if let Some(peer) = self.peers().get(&id) {
            for lane in LANES {
                peer.pipe(lane).retry.notify_waiters();
            }
        }
    }
}
