//! The peers that this member dials: they come, go and move while it runs.
//!
//! ```text
//!   set_peers ──► Peers ──► Peer ── target ──► a dialer a lane: keeps dialing where it leads,
//!                            │                 ends when it leads nowhere
//!                            └─ a pipe a lane: what the driver sends into
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

use super::pipe::Pipe;
use super::tcp::TcpSettings;
use crate::model::{DiskId, Hello, Incarnation, Lane, Moment, NodeId};

/// That a peer cannot be reached is said at most this often: it is dialed again and again.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Each with a connection of its own.
pub(crate) const LANES: [Lane; 3] = [Lane::Control, Lane::Bulk, Lane::Snapshot];

/// One that this member dials.
pub(super) struct Peer {
    pub(super) id: NodeId,
    control: Pipe,
    bulk: Pipe,
    snapshot: Pipe,
    /// Where it is looked for, in turn: at least one `host:port`; `None` once it is not to be dialed any more.
    target: watch::Sender<Option<Vec<String>>>,
    /// In which life it was met last, whoever has dialed.
    life: watch::Sender<Option<Life>>,
    /// When it was last said that it cannot be reached.
    complained: Mutex<Option<Moment>>,
}

/// Which life of a member: on which disk, and how often it was started on that.
pub(super) type Life = (DiskId, Incarnation);

/// The life of a member that has introduced itself.
pub(super) fn life_of(hello: &Hello) -> Life {
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

    /// It was let in, in this life.
    pub(super) fn met(&self, life: Life) {
        self.life.send_if_modified(|last| {
            // Who was let in a moment ago may be slower to come here than its own next life.
            let is_over = last.is_some_and(|last| last.0 == life.0 && last.1 > life.1);
            if is_over || *last == Some(life) {
                return false;
            }
            *last = Some(life);
            true
        });
    }

    /// Whether it is time to say that it cannot be reached.
    pub(super) fn may_complain(&self, now: Moment) -> bool {
        let mut last = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| now.since(last) >= COMPLAIN_EVERY);
        if may {
            *last = Some(now);
        }
        may
    }

    /// Until it is met in another life than this.
    pub(super) async fn born_again(&self, life: Life) {
        let mut last = self.life.subscribe();
        let other = last.wait_for(|last| last.is_some_and(|last| last != life)).await;
        drop(other.expect("the peer is there, and its life with it"));
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

    /// The peer has just been heard from, in this life: dial it at once, if it is waited for. What leads to
    /// an earlier life ends.
    pub(super) fn heard_from(&self, id: NodeId, life: Life) {
        if let Some(peer) = self.peers().get(&id) {
            peer.met(life);
            for lane in LANES {
                peer.pipe(lane).retry.notify_waiters();
            }
        }
    }
}
