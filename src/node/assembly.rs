//! Puts a node together: opens its log, replays what is committed, and hands out the parts that run.

use std::sync::Arc;

use thiserror::Error;

use crate::env::{Env, Network};
use crate::machine::{Machine, MachineOptions};
use crate::metrics::Meters;
use crate::model::{LogIndex, NodeId, Term};
use crate::transport::{Introducer, Receiver};
use crate::wal::{self, LogError};
use crate::watch::{Hub, WatchLimits};

use super::driver::{Driver, Parts, apply_entry};
use super::identity::Identity;
use super::inbox::Inbox;
use super::log_worker::{LogQueue, LogWorker};
use super::settings::Settings;
use super::shared::Shared;
use super::status::{NodeStatus, Role};

/// How many bytes of peers' messages may wait for the driver.
const PEER_BYTES_MAX: usize = 64 << 20;

/// How many bytes of the log are read at a time when it is replayed.
const REPLAY_BYTES: usize = 4 << 20;

/// Why a node could not be put together. Nothing was changed on its disk but its incarnation.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    /// The log says no.
    #[error(transparent)]
    Log(#[from] LogError),
    /// What the log holds cannot be applied.
    #[error("{0}")]
    Replay(String),
    /// The configuration names other members than those that founded the cluster.
    #[error(
        "the cluster was founded by members {founded:?}, the configuration names {configured:?}: \
         start this node with the members that founded the cluster"
    )]
    Members {
        /// As the log has them.
        founded: Vec<NodeId>,
        /// As the configuration has them.
        configured: Vec<NodeId>,
    },
}

/// Who is told when there is work, by somebody who runs a node without waiting for it.
pub(crate) struct Bells {
    /// Called when the driver has something to do.
    pub(crate) driver: Box<dyn Fn() + Send + Sync>,
    /// Called when the log worker has something to do.
    pub(crate) log: Box<dyn Fn() + Send + Sync>,
}

impl Bells {
    /// Nobody.
    pub(crate) fn silent() -> Self {
        Self { driver: Box::new(|| {}), log: Box::new(|| {}) }
    }
}

/// A node with an open log and a replayed state machine that has no network yet.
pub(crate) struct Assembly {
    settings: Settings,
    env: Env,
    opened: wal::Opened,
    machine: Machine,
    inbox: Arc<Inbox>,
    identity: Arc<Identity>,
    bells: Bells,
    meters: Arc<Meters>,
}

/// A node in parts that run.
pub(crate) struct Assembled {
    pub(crate) driver: Driver,
    pub(crate) log_worker: LogWorker,
    pub(crate) shared: Arc<Shared>,
}

impl Assembly {
    /// Opens the log and replays it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(crate) fn open(settings: Settings, env: Env, bells: Bells) -> Result<Self, StartError> {
        let identity = wal::Identity { cluster: settings.cluster, node: settings.node };
        let options = wal::LogOptions {
            segment_bytes: settings.log_segment_bytes,
            reserve_bytes: settings.log_segment_bytes,
            disk: None,
        };
        let opened = wal::open(&env, &settings.dir, identity, options)?;
        let recovered = &opened.recovered;
        if let Some(torn) = &recovered.torn {
            tracing::warn!(?torn, "the end of the log was torn by a crash and has been cut");
        }
        if let Some(founders) = &recovered.founding {
            let founded: Vec<NodeId> = founders.keys().copied().collect();
            let configured: Vec<NodeId> = settings.members.keys().copied().collect();
            if founded != configured {
                return Err(StartError::Members { founded, configured });
            }
        }
        let mut machine = Machine::new(MachineOptions::default());
        replay(&mut machine, &opened.reader, recovered.hard_state.commit)?;
        let identity = Arc::new(Identity::new(
            &settings,
            recovered.disk,
            recovered.incarnation,
            recovered.founding.clone(),
        ));
        let meters = Arc::new(Meters::default());
        let Bells { driver, log } = bells;
        let inbox = Arc::new(Inbox::new(PEER_BYTES_MAX, Arc::clone(&meters), driver));
        let bells = Bells { driver: Box::new(|| {}), log };
        Ok(Self { settings, env, opened, machine, inbox, identity, bells, meters })
    }

    /// Where the network puts what comes in.
    pub(crate) fn receiver(&self) -> Arc<dyn Receiver> {
        Arc::clone(&self.inbox) as Arc<dyn Receiver>
    }

    /// What the log holds, for a judge of a simulated world.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn log_reader(&self) -> wal::LogReader {
        self.opened.reader.clone()
    }

    /// What the network says first on each connection, and whom it lets in.
    pub(crate) fn introducer(&self) -> Arc<dyn Introducer> {
        Arc::clone(&self.identity) as Arc<dyn Introducer>
    }

    /// The parts, connected to `network`.
    ///
    /// # Errors
    /// The consensus cannot start from what the log holds.
    pub(crate) fn finish(self, network: Box<dyn Network>) -> Result<Assembled, StartError> {
        let Self { settings, env, opened, machine, inbox, identity, bells, meters } = self;
        let wal::Opened { writer, reader: log_reader, recovered } = opened;
        let reader = machine.reader();
        let hub = Hub::new(reader.clone(), WatchLimits::default());
        let status = NodeStatus {
            id: settings.node,
            name: settings.contact.name.clone(),
            role: Role::Founding,
            term: Term(0),
            leader: None,
            revision: reader.revision(),
            commit: recovered.hard_state.commit,
            applied: machine.applied(),
            open_requests: 0,
            sessions: 0,
            unmet: Vec::new(),
            diverged: false,
            last: recovered.last,
            members: Vec::new(),
            digest: (machine.applied(), machine.digest()),
        };
        let clock = Arc::clone(&env.clock);
        let inbox_of_shared = Arc::clone(&inbox);
        let shared =
            Shared::new(settings, env, inbox_of_shared, reader, hub, status, Arc::clone(&meters));
        let shared = Arc::new(shared);
        let log = Arc::new(LogQueue::new(bells.log));
        let log_worker = LogWorker::new(writer, Arc::clone(&log), inbox, clock, meters);
        let driver = Driver::new(Parts {
            shared: Arc::clone(&shared),
            identity,
            network,
            log,
            log_reader,
            machine,
            hard_state: recovered.hard_state,
            founded: recovered.founding.is_some(),
        })
        .map_err(StartError::Replay)?;
        Ok(Assembled { driver, log_worker, shared })
    }
}

/// Applies everything up to `commit`.
fn replay(machine: &mut Machine, log: &wal::LogReader, commit: LogIndex) -> Result<(), StartError> {
    let mut next = machine.applied().next();
    while next <= commit {
        for entry in log.entries(next, commit.next(), REPLAY_BYTES)? {
            next = entry.index.next();
            apply_entry(machine, entry).map_err(StartError::Replay)?;
        }
        machine.publish();
    }
    Ok(())
}
