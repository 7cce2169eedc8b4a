//! Assembles a node: opens its log, replays the committed entries, and returns the parts that run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::env::{Env, Network};
use crate::machine::{Machine, MachineOptions, Restore};
use crate::metrics::Meters;
use crate::model::{ClusterId, DiskId, Fault, LogIndex, Members, NodeId, SnapshotId, Term};
use crate::snapshot::{Folder, Found, SnapshotError};
use crate::transport::{Introducer, Receiver};
use crate::wal::{self, LogError};
use crate::warm;
use crate::watch::{Hub, WatchLimits};

use crate::node::driver::{Driver, Io, Parts, apply_entry};
use crate::node::health::status::{NodeStatus, Role};
use crate::node::membership::identity::Identity;
use crate::node::membership::joining;
use crate::node::membership::roster::Roster;
use crate::node::requests::inbox::Inbox;
use crate::node::settings::{Contact, Settings};
use crate::node::shared::Shared;
use crate::node::snapshots::LOG_BYTES_OVERDUE;
use crate::node::snapshots::backups::{BackupWorker, Backups};
use crate::node::snapshots::snapshot_worker::{SnapshotQueue, SnapshotWorker};
use crate::node::threads::log_worker::{LogQueue, LogWorker};

/// Maximum number of bytes of peer messages that wait for the driver.
const PEER_BYTES_MAX: usize = 64 << 20;

/// Number of bytes that replay reads from the log at a time.
const REPLAY_BYTES: usize = 4 << 20;

/// The reasons for which a node could not be assembled. Nothing on its disk was changed except the incarnation.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// An entry of the log cannot be applied.
    #[error(transparent)]
    Entry(#[from] Fault),
    /// Consensus cannot start from the contents of the log.
    #[error("consensus cannot start from the log: {0}")]
    Replay(String),
    /// There is no disk space to record the founders of the cluster.
    #[error("cannot record the founders of the cluster: the disk is full")]
    Full,
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The state before the beginning of the log is lost: no readable snapshot contains it, and no
    /// other member is known that could send it.
    #[error(
        "state lost: the log begins at entry {base}, and no readable snapshot covers it; restore this node \
         from a backup or, if its cluster has other members, start it on this directory with one of them to \
         join, so that it fetches the state{}", damage(.damaged)
    )]
    StateLost {
        /// The last entry before the log begins.
        base: LogIndex,
        /// The damage of each snapshot that was found, as a text.
        damaged: Vec<String>,
    },
    /// The directory belongs to a member whose cluster is not founded yet, and lists other founders
    /// than the configuration.
    #[error(
        "{dir} belongs to a member that has not founded its cluster yet, and its list of founding members \
         differs: start with the members (and the token) of its first start, or remove the directory, which \
         holds no data yet",
        dir = .dir.display()
    )]
    OtherFounders { dir: PathBuf },
    /// The directory belongs to another member.
    #[error(
        "the directory belongs to member {found:?}, but this node is named {own:?}: use a separate \
         directory for each member"
    )]
    OtherMember {
        /// Name of the member that owns the directory.
        found: String,
        /// Name of this node.
        own: String,
    },
}

/// Callbacks that announce work, for a harness that runs a node without blocking a thread on it.
pub(crate) struct Wakers {
    /// Called when the driver has work.
    pub(crate) driver: Box<dyn Fn() + Send + Sync>,
    /// Called when the log worker has work.
    pub(crate) log: Box<dyn Fn() + Send + Sync>,
    /// Called when the snapshot worker has work.
    pub(crate) snapshots: Box<dyn Fn() + Send + Sync>,
}

impl Wakers {
    /// Returns callbacks that do nothing.
    pub(crate) fn silent() -> Self {
        Self { driver: Box::new(|| {}), log: Box::new(|| {}), snapshots: Box::new(|| {}) }
    }
}

/// A node with an open log and a replayed state machine that is not connected to a network yet.
pub(crate) struct Assembly {
    settings: Settings,
    env: Env,
    opened: wal::Opened,
    folder: Folder,
    loaded: Loaded,
    warm: Option<warm::CopyOpened>,
    inbox: Arc<Inbox>,
    identity: Arc<Identity>,
    wakers: Wakers,
    meters: Arc<Meters>,
}

/// The parts of a node, ready to run.
pub(crate) struct Assembled {
    pub(crate) driver: Driver,
    pub(crate) log_worker: LogWorker,
    pub(crate) snapshot_worker: SnapshotWorker,
    pub(crate) backup_worker: BackupWorker,
    /// Maintains the warm copy, if the node has one.
    pub(crate) warm_worker: Option<warm::Worker>,
    pub(crate) shared: Arc<Shared>,
}

/// The answer to a join request, with which a member that has no log yet starts.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    /// The id of the member's disk, drawn before it asked to join.
    pub(crate) disk: DiskId,
    pub(crate) founders: wal::Founding,
}

/// Takes the addresses of members from the configured list, matching them by name. Logs one warning if the
/// configuration differs from the directory.
fn reconcile(settings: &mut Settings, members: &Members) {
    let listed = std::mem::take(&mut settings.listed);
    let rows = || members.rows().iter().filter(|(_, row)| row.is_taken());
    let is_listed = |name: &str| listed.iter().any(|contact| contact.name == name);
    let (mut not_listed, mut not_members) = (Vec::new(), Vec::new());
    if !listed.is_empty() {
        not_listed.extend(rows().map(|(_, row)| &*row.name).filter(|name| !is_listed(name)));
    }
    for contact in &listed {
        match rows().find(|(_, row)| row.name == contact.name) {
            Some((id, _)) => {
                settings.members.entry(*id).or_insert_with(|| contact.clone());
            }
            None => not_members.push(&*contact.name),
        }
    }
    if settings.has_other_token || !not_listed.is_empty() || !not_members.is_empty() {
        tracing::warn!(
            not_members = not_members.join(","),
            not_listed = not_listed.join(","),
            other_token = settings.has_other_token,
            "configured members or token differ from the data directory, using the data directory"
        );
    }
}

/// Returns whether the log in `dir` belongs to a member whose cluster is founded. Also returns true
/// if the log cannot be read: the caller then opens it and gets the error.
pub(crate) fn is_founded(env: &Env, dir: &Path) -> bool {
    let examined = wal::examine(env, dir).ok().flatten();
    examined.is_none_or(|log| log.recovered.founding.is_some())
}

/// Returns the member and the cluster to which the data in `dir` belongs, or `None` if there is no
/// data.
///
/// # Errors
/// Fails if the data cannot be read.
pub(crate) fn owner_of_data(
    env: &Env,
    dir: &Path,
) -> Result<Option<(NodeId, ClusterId)>, StartError> {
    let found = wal::peek(env, dir)?;
    Ok(found.map(|(identity, _)| (identity.node, identity.cluster)))
}

impl Assembly {
    /// Opens the log and the newest snapshot, and replays the committed entries. `joined` is set for a member that
    /// has just joined.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(crate) fn open(
        mut settings: Settings,
        env: Env,
        wakers: Wakers,
        joined: Option<Joined>,
    ) -> Result<Self, StartError> {
        let identity = wal::Identity { cluster: settings.cluster, node: settings.node };
        let options = wal::LogOptions {
            segment_bytes: settings.log_segment_bytes,
            reserve_bytes: settings.log_segment_bytes,
            disk: joined.as_ref().map(|joined| joined.disk),
        };
        let mut opened = wal::open(&env, &settings.dir, identity, options)?;
        if let Some(torn) = &opened.recovered.torn {
            tracing::warn!(?torn, "truncated the torn end of the log after a crash");
        }
        if let (Some(Joined { founders, .. }), None) = (joined, &opened.recovered.founding) {
            let group = wal::Group { founding: Some(founders.clone()), ..wal::Group::default() };
            if opened.writer.commit(&[group])?.waiting > 0 {
                return Err(StartError::Full);
            }
            opened.recovered.founding = Some(founders);
        }
        if opened.recovered.founding.is_none() && !settings.founds {
            return Err(StartError::OtherFounders { dir: settings.dir });
        }
        if opened.recovered.founding.is_some() {
            joining::has_log(&env, &settings.dir);
        }
        let folder = Folder::open(&env.disk, &settings.dir, settings.cluster)?;
        let mut warm = settings.warm_copy.as_ref().map(|copy| {
            let (cluster, node, disk) = (settings.cluster, settings.node, opened.recovered.disk);
            warm::open(&env, copy, &settings.dir, warm::CopyRestoredFrom { cluster, node, disk })
        });
        let mut loaded = load(&folder, &settings, &mut opened, warm.as_mut())?;
        let members = loaded.machine.members();
        let is_member = members.get(settings.node).is_some();
        if is_member {
            joining::has_state(&env, &settings.dir);
        }
        if let Some(own) = loaded.machine.members().get(settings.node)
            && !own.name.is_empty()
            && own.name != settings.contact.name
        {
            let (found, own) = (own.name.clone(), settings.contact.name.clone());
            return Err(StartError::OtherMember { found, own });
        }
        reconcile(&mut settings, loaded.machine.members());
        for (member, contact) in std::mem::take(&mut loaded.named) {
            settings.members.entry(member).or_insert(contact);
        }
        let recovered = &opened.recovered;
        let identity = Arc::new(Identity::new(
            &settings,
            recovered.disk,
            recovered.incarnation,
            recovered.founding.clone(),
        ));
        let members = loaded.machine.members();
        identity.knows(Arc::clone(members), members.has_removed());
        let meters = Arc::new(Meters::default());
        let Wakers { driver, log, snapshots } = wakers;
        let inbox = Arc::new(Inbox::new(PEER_BYTES_MAX, Arc::clone(&meters), driver));
        let wakers = Wakers { driver: Box::new(|| {}), log, snapshots };
        Ok(Self { settings, env, opened, folder, loaded, warm, inbox, identity, wakers, meters })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.settings.node
    }

    /// Returns the members to which this node connects first, with their addresses.
    pub(crate) fn contacts(&self) -> BTreeMap<NodeId, Vec<String>> {
        let mut roster = Roster::new(self.settings.node, self.settings.members.clone());
        roster.update(self.loaded.machine.members());
        roster.contacts()
    }

    /// Returns the receiver for messages from the network.
    pub(crate) fn receiver(&self) -> Arc<dyn Receiver> {
        Arc::clone(&self.inbox) as Arc<dyn Receiver>
    }

    /// Returns a reader of the log, for the checks of the simulator.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn log_reader(&self) -> wal::LogReader {
        self.opened.reader.clone()
    }

    /// Returns the part that introduces this node on each connection and decides which peers to accept.
    pub(crate) fn introducer(&self) -> Arc<dyn Introducer> {
        Arc::clone(&self.identity) as Arc<dyn Introducer>
    }

    /// Connects the parts to `network` and returns them.
    ///
    /// # Errors
    /// Fails if consensus cannot start from the contents of the log.
    pub(crate) fn finish(self, network: Box<dyn Network>) -> Result<Assembled, StartError> {
        let Self { settings, env, opened, folder, loaded, warm, inbox, identity, wakers, meters } =
            self;
        let Loaded { machine, newest, log_bytes, lost, .. } = loaded;
        let wal::Opened { writer, reader: log_reader, recovered } = opened;
        let reader = machine.reader();
        let hub = Hub::new(reader.clone(), WatchLimits::default());
        let status = NodeStatus {
            id: settings.node,
            name: settings.contact.name.clone(),
            role: Role::Founding,
            version: machine.version(),
            term: Term(0),
            leader: None,
            revision: reader.revision(),
            commit: recovered.hard_state.commit,
            applied: machine.applied(),
            open_requests: 0,
            sessions: 0,
            unreached: Vec::new(),
            diverged: false,
            last: recovered.last,
            members: Vec::new(),
            digest: (machine.applied(), machine.digest()),
        };
        let clock = Arc::clone(&env.clock);
        let snapshot_queue = Arc::new(SnapshotQueue::new(wakers.snapshots));
        let (backups, backup_worker) =
            Backups::new(folder.clone(), recovered.disk, Arc::clone(&env.clock));
        let unfinished_snapshot = folder.unfinished()?;
        let snapshot_worker = SnapshotWorker::new(
            env.clone(),
            folder,
            settings.machine_options(),
            settings.snapshot_part_bytes,
            Arc::clone(&snapshot_queue),
            Arc::clone(&inbox),
        );
        let warm_post = warm::WriteBehindQueue::new();
        let warm_worker = warm.and_then(|warm| warm.worker(reader.clone(), Arc::clone(&warm_post)));
        let inbox_of_shared = Arc::clone(&inbox);
        let shared =
            Shared::new(settings, env, inbox_of_shared, reader, hub, status, Arc::clone(&meters));
        let shared = Arc::new(shared);
        let log = Arc::new(LogQueue::new(wakers.log));
        let log_worker = LogWorker::new(writer, Arc::clone(&log), inbox, clock, meters);
        let (warm, input_room) = (warm_post, Vec::new());
        let io = Io { network, log, log_reader, snapshot_queue, backups, warm, input_room };
        let driver = Driver::new(Parts {
            shared: Arc::clone(&shared),
            identity,
            io,
            machine,
            hard_state: recovered.hard_state,
            founded: recovered.founding.is_some(),
            state_lost: lost,
            newest_snapshot: newest,
            unfinished_snapshot,
            log_bytes,
        })
        .map_err(StartError::Replay)?;
        Ok(Assembled { driver, log_worker, snapshot_worker, backup_worker, warm_worker, shared })
    }
}

/// The replicated state that was found on the disk.
struct Loaded {
    machine: Machine,
    newest: Option<(SnapshotId, Members)>,
    /// Bytes of the entries that were applied after the newest snapshot.
    log_bytes: u64,
    /// If the state before the log cannot be read, the index that a replacement must cover. In this
    /// case the machine is empty.
    lost: Option<LogIndex>,
    /// Members from which to fetch that state, taken from the head of a damaged snapshot.
    named: BTreeMap<NodeId, Contact>,
}

/// Loads the warm copy, or else the newest readable snapshot, and applies the entries that the log
/// records as committed.
fn load(
    folder: &Folder,
    settings: &Settings,
    opened: &mut wal::Opened,
    warm: Option<&mut warm::CopyOpened>,
) -> Result<Loaded, StartError> {
    let mut loaded = match warm.and_then(|warm| load_warm(folder, settings, opened, warm)) {
        Some(loaded) => loaded,
        None => load_snapshot(folder, settings, opened)?,
    };
    // Until its founders have met, the snapshot of a restored cluster names no members. Such a
    // snapshot cannot be sent to peers, so ignore it.
    loaded.newest.take_if(|(_, members)| members.rows().is_empty());
    // Keep only the replies to requests of this incarnation: requests of earlier incarnations have
    // no caller any more.
    loaded.machine.answer_only(settings.node, opened.recovered.incarnation);
    if loaded.lost.is_none() {
        let recovered = &opened.recovered;
        if let (Some(founders), true) =
            (&recovered.founding, loaded.machine.members().rows().is_empty())
        {
            loaded.machine.found(Members::founded(founders));
        }
        replay(&mut loaded, &opened.reader, recovered.hard_state.commit)?;
    }
    Ok(loaded)
}

/// Loads the warm copy, if it is newer than the newest snapshot and the log continues from it.
fn load_warm(
    folder: &Folder,
    settings: &Settings,
    opened: &mut wal::Opened,
    warm: &mut warm::CopyOpened,
) -> Option<Loaded> {
    let wal::Opened { reader, recovered, .. } = opened;
    let newest = folder.list().ok()?.first().map(|found| found.index);
    let least = newest.unwrap_or_default().max(recovered.base.index);
    let (last, log) = (recovered.last, reader.clone());
    let fits = move |index, term| (least..=last).contains(&index) && log.term(index) == Some(term);
    let machine = warm.load(settings.machine_options(), fits)?;
    // The warm copy contains only applied entries, which are committed. The commit index that the
    // log has on disk may be older.
    let commit = &mut recovered.hard_state.commit;
    *commit = machine.applied().max(*commit);
    let newest = sound_snapshot(folder);
    // If the warm copy is the only copy of the state, a snapshot is due at once.
    let is_covered = newest.as_ref().is_some_and(|(id, _)| id.index >= recovered.base.index);
    let is_bare = recovered.base.index > LogIndex(1) && !is_covered;
    let log_bytes = if is_bare { LOG_BYTES_OVERDUE } else { reader.bytes() };
    Some(Loaded { machine, newest, log_bytes, lost: None, named: BTreeMap::new() })
}

/// Returns the newest snapshot and its members, if the whole file is sound.
fn sound_snapshot(folder: &Folder) -> Option<(SnapshotId, Members)> {
    let mut reader = folder.read(folder.list().ok()?.first()?).ok()?;
    while reader.pass().ok()? {}
    Some((reader.id()?, reader.head().members.clone()))
}

fn load_snapshot(
    folder: &Folder,
    settings: &Settings,
    opened: &wal::Opened,
) -> Result<Loaded, StartError> {
    let recovered = &opened.recovered;
    let base = recovered.base.index;
    let mut damaged = Vec::new();
    let mut found = None;
    for candidate in folder.list()? {
        if candidate.index < base {
            break;
        }
        // The snapshot was received just before a crash, so the log does not refer to the snapshot
        // yet.
        if opened.reader.term(candidate.index) != Some(candidate.term) {
            continue;
        }
        if let Ok(reader) = folder.read(&candidate)
            && reader.head().version > settings.supported_version
        {
            let (version, known) = (reader.head().version, settings.supported_version);
            return Err(StartError::Entry(Fault::Outgrown { version, known }));
        }
        match read_snapshot(folder, &candidate, settings.machine_options()) {
            Ok(state) => {
                found = Some(state);
                break;
            }
            Err(why) => {
                tracing::error!(%why, "snapshot is unusable, trying an older one");
                damaged.push(why);
            }
        }
    }
    let (machine, newest) = match found {
        Some((machine, id)) => {
            let members = Members::clone(machine.members());
            (machine, Some((id, members)))
        }
        None => {
            let machine = Machine::new(settings.machine_options());
            if base > LogIndex(1) {
                // Checks whether another member can be asked for the state. Even a member that
                // founded its cluster alone may have peers by now.
                let named = members_named(folder);
                let vote = &recovered.hard_state.vote;
                let mut known = settings.members.keys().chain(named.keys()).chain(vote);
                let joined = settings.members.is_empty();
                let alone = !joined && known.all(|member| *member == settings.node);
                if alone || recovered.founding.is_none() {
                    return Err(StartError::StateLost { base, damaged });
                }
                tracing::error!(%base, ?damaged, "state lost, fetching it from another member");
                return Ok(Loaded { machine, newest: None, log_bytes: 0, lost: Some(base), named });
            }
            (machine, None)
        }
    };
    Ok(Loaded { machine, newest, log_bytes: 0, lost: None, named: BTreeMap::new() })
}

/// Returns the members that the newest snapshot with a readable head names. Even if the rest of the
/// snapshot is damaged, its head lists the members from which the state can be fetched.
fn members_named(folder: &Folder) -> BTreeMap<NodeId, Contact> {
    let found = folder.list().unwrap_or_default();
    let Some(reader) = found.iter().find_map(|found| folder.read(found).ok()) else {
        return BTreeMap::new();
    };
    let rows = reader.head().members.rows().iter();
    let contact =
        |name: &String, address: &String| Contact { name: name.clone(), address: address.clone() };
    rows.map(|(id, member)| (*id, contact(&member.name, &member.address))).collect()
}

/// Reads a snapshot and returns its state and its id.
fn read_snapshot(
    folder: &Folder,
    found: &Found,
    options: MachineOptions,
) -> Result<(Machine, SnapshotId), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let mut reader = folder.read(found).map_err(|error| words(&error))?;
    let mut restore =
        Restore::new(options, reader.head().clone()).map_err(|error| words(&error))?;
    while let Some(piece) = reader.next().map_err(|error| words(&error))? {
        restore.add(piece).map_err(|error| words(&error))?;
    }
    let id = reader.id().expect("it was read to its end");
    let machine = restore.finish().map_err(|error| format!("{}: {error}", found.path.display()))?;
    Ok((machine, id))
}

/// Applies all entries up to `commit`.
fn replay(loaded: &mut Loaded, log: &wal::LogReader, commit: LogIndex) -> Result<(), StartError> {
    let machine = &mut loaded.machine;
    let mut next = machine.applied().next();
    while next <= commit {
        for entry in log.entries(next, commit.next(), REPLAY_BYTES)? {
            next = entry.index.next();
            loaded.log_bytes += entry.data.len() as u64;
            apply_entry(machine, entry)?;
        }
        machine.publish();
    }
    Ok(())
}

/// Formats the list of damaged snapshots.
fn damage(damaged: &[String]) -> String {
    damaged.iter().map(|why| format!("; {why}")).collect()
}
