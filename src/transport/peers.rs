//! The peers that this member dials: they come, go and move while it runs.
//!
//! ```text
//!   set_peers ──► Peers ──► Peer ── target ──► a dialer a lane: keeps dialing where it leads,
//!                            │                 ends when it leads nowhere
//!                            └─ a pipe a lane: what the driver sends into
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

use super::pipe::Pipe;
use super::tcp::TcpSettings;
use crate::model::{Lane, NodeId};

/// Each with a connection of its own.
pub(super) const LANES: [Lane; 3] = [Lane::Control, Lane::Bulk, Lane::Snapshot];

/// One that this member dials.
pub(super) struct Peer {
    pub(super) id: NodeId,
    control: Pipe,
    bulk: Pipe,
    snapshot: Pipe,
    /// Where it is looked for, in turn: at least one `host:port`; `None` once it is not to be dialed any more.
    target: watch::Sender<Option<Vec<String>>>,
}

impl Peer {
    fn new(id: NodeId, places: Vec<String>, settings: &TcpSettings) -> Self {
        Self {
            id,
            control: Pipe::new(settings.control_queue),
            bulk: Pipe::new(settings.bulk_queue),
            snapshot: Pipe::on_demand(settings.snapshot_queue),
            target: watch::Sender::new(Some(places)),
        }
    }

    /// The way out on one lane.
    pub(super) fn pipe(&self, lane: Lane) -> &Pipe {
        match lane {
            Lane::Control => &self.control,
            Lane::Bulk => &self.bulk,
            Lane::Snapshot => &self.snapshot,
        }
    }

    /// Where it is, and where it goes.
    pub(super) fn target(&self) -> watch::Receiver<Option<Vec<String>>> {
        self.target.subscribe()
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Peers {
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces them by those of `targets`. Who stays keeps its connections, unless it has moved; the
    /// others' end. Returns those that are new, whose dialers must be started, and all.
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

    /// The peer has just been heard from: dial it at once, if it is waited for.
    pub(super) fn heard_from(&self, id: NodeId) {
        if let Some(peer) = self.peers().get(&id) {
            for lane in LANES {
                peer.pipe(lane).retry.notify_waiters();
            }
        }
    }
}
