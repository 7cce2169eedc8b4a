//! Puts a node together: opens its log, replays what is committed, and hands out the parts that run.

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

use super::backups::{BackupWorker, Backups};
use super::driver::{Driver, Parts, apply_entry};
use super::identity::Identity;
use super::inbox::Inbox;
use super::joining;
use super::log_worker::{LogQueue, LogWorker};
use super::roster::Roster;
use super::settings::{Contact, Settings};
use super::shared::Shared;
use super::snapshot_worker::{SnapshotQueue, SnapshotWorker};
use super::snapshots::LOG_BYTES_OVERDUE;
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
    /// An entry of the log cannot be applied.
    #[error(transparent)]
    Entry(#[from] Fault),
    /// The consensus cannot start from what the log holds.
    #[error("{0}")]
    Replay(String),
    /// There is no room to write down who founded the cluster.
    #[error("the disk is full")]
    Full,
    /// The snapshots cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The log begins with a state that is not there, and there is nobody to ask.
    #[error(
        "the log begins at entry {base}, and no snapshot that covers it can be read: restore this \
         node from a backup; or, if its cluster has other members, let it fetch the state from them: start \
         it on this directory with one of them to join{}", damage(.damaged)
    )]
    StateLost {
        /// The last entry that is not in the log.
        base: LogIndex,
        /// What is wrong with the snapshots that are there.
        damaged: Vec<String>,
    },
    /// The directory is of a member that has not met its founders yet, and they are others.
    #[error(
        "{dir} is of a member that has not founded its cluster yet, and this is not the list of those \
         it founds it with: start it with the members (and the token) that it was made with, or remove the \
         directory, which holds no data yet",
        dir = .dir.display()
    )]
    OtherFounders {
        /// Where.
        dir: PathBuf,
    },
    /// The directory is another member's.
    #[error(
        "the directory is that of member {found:?}, and this node is called {own:?}: give each member a \
         directory of its own"
    )]
    OtherMember {
        /// Whose it is.
        found: String,
        /// This node's name.
        own: String,
    },
}

/// Who is told when there is work, by somebody who runs a node without waiting for it.
pub(crate) struct Bells {
    /// Called when the driver has something to do.
    pub(crate) driver: Box<dyn Fn() + Send + Sync>,
    /// Called when the log worker has something to do.
    pub(crate) log: Box<dyn Fn() + Send + Sync>,
    /// Called when the snapshot worker has something to do.
    pub(crate) snapshots: Box<dyn Fn() + Send + Sync>,
}

impl Bells {
    /// Nobody.
    pub(crate) fn silent() -> Self {
        Self { driver: Box::new(|| {}), log: Box::new(|| {}), snapshots: Box::new(|| {}) }
    }
}

/// A node with an open log and a replayed state machine that has no network yet.
pub(crate) struct Assembly {
    settings: Settings,
    env: Env,
    opened: wal::Opened,
    folder: Folder,
    loaded: Loaded,
    warm: Option<warm::Opened>,
    inbox: Arc<Inbox>,
    identity: Arc<Identity>,
    bells: Bells,
    meters: Arc<Meters>,
}

/// A node in parts that run.
pub(crate) struct Assembled {
    pub(crate) driver: Driver,
    pub(crate) log_worker: LogWorker,
    pub(crate) snapshot_worker: SnapshotWorker,
    pub(crate) backup_worker: BackupWorker,
    /// Who keeps the warm copy, if there is one.
    pub(crate) warm_worker: Option<warm::Worker>,
    pub(crate) shared: Arc<Shared>,
}

/// What a member is given that joins a cluster, before it has a log.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    /// Its disk, drawn before it asked.
    pub(crate) disk: DiskId,
    /// Who founded the cluster.
    pub(crate) founders: wal::Founding,
}

/// Takes addresses from the list of members that the configuration names, by their names, and reports once where the
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
            "the configured members or token differ from the data directory, which decides"
        );
    }
}

/// Reports whether the log in `dir` is of a member whose cluster is founded. A log that cannot be read counts as one: its
/// error is reported when it is opened.
pub(crate) fn is_founded(env: &Env, dir: &Path) -> bool {
    let examined = wal::examine(env, dir).ok().flatten();
    examined.is_none_or(|log| log.recovered.founding.is_some())
}

/// Whose data is in `dir`, if there is any: which member of which cluster.
///
/// # Errors
/// What is there cannot be read.
pub(crate) fn whose(env: &Env, dir: &Path) -> Result<Option<(NodeId, ClusterId)>, StartError> {
    let found = wal::peek(env, dir)?;
    Ok(found.map(|(identity, _)| (identity.node, identity.cluster)))
}

impl Assembly {
    /// Opens the log and the newest snapshot, and replays what is committed. `joined` is set for a
    /// member that has just joined.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(crate) fn open(
        mut settings: Settings,
        env: Env,
        bells: Bells,
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
            tracing::warn!(?torn, "the end of the log was torn by a crash and has been cut");
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
            warm::open(&env, copy, &settings.dir, warm::RestoredFrom { cluster, node, disk })
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
        let Bells { driver, log, snapshots } = bells;
        let inbox = Arc::new(Inbox::new(PEER_BYTES_MAX, Arc::clone(&meters), driver));
        let bells = Bells { driver: Box::new(|| {}), log, snapshots };
        Ok(Self { settings, env, opened, folder, loaded, warm, inbox, identity, bells, meters })
    }

    /// Which member it is.
    pub(crate) fn node(&self) -> NodeId {
        self.settings.node
    }

    /// Whom it keeps connections to, to begin with.
    pub(crate) fn contacts(&self) -> BTreeMap<NodeId, Vec<String>> {
        let mut roster = Roster::new(self.settings.node, self.settings.members.clone());
        roster.update(self.loaded.machine.members());
        roster.contacts()
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
        let Self { settings, env, opened, folder, loaded, warm, inbox, identity, bells, meters } =
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
            unmet: Vec::new(),
            diverged: false,
            last: recovered.last,
            members: Vec::new(),
            digest: (machine.applied(), machine.digest()),
        };
        let clock = Arc::clone(&env.clock);
        let snapshot_queue = Arc::new(SnapshotQueue::new(bells.snapshots));
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
            state_lost: lost,
            snapshot_queue,
            backups,
            warm: warm_post,
            newest_snapshot: newest,
            unfinished_snapshot,
            log_bytes,
        })
        .map_err(StartError::Replay)?;
        Ok(Assembled { driver, log_worker, snapshot_worker, backup_worker, warm_worker, shared })
    }
}

/// What a start has found of the replicated state.
struct Loaded {
    machine: Machine,
    /// The newest snapshot, with the members as of it.
    newest: Option<(SnapshotId, Members)>,
    /// Bytes of entries applied since.
    log_bytes: u64,
    /// Set if the state that the log begins with cannot be read: what it must cover. The machine is
    /// empty then.
    lost: Option<LogIndex>,
    /// Where to ask for it, as far as what is left of a snapshot says.
    named: BTreeMap<NodeId, Contact>,
}

/// Loads the warm copy, or else the newest snapshot that can be read, and applies what the log says was
/// committed after it.
fn load(
    folder: &Folder,
    settings: &Settings,
    opened: &mut wal::Opened,
    warm: Option<&mut warm::Opened>,
) -> Result<Loaded, StartError> {
    let mut loaded = match warm.and_then(|warm| load_warm(folder, settings, opened, warm)) {
        Some(loaded) => loaded,
        None => load_snapshot(folder, settings, opened)?,
    };
    // What a restored cluster begins with knows no members: those are known once they have met, and only
    // what knows them can be sent to others.
    loaded.newest.take_if(|(_, members)| members.rows().is_empty());
    // What earlier lives have asked for is answered to nobody.
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

/// The state as the warm copy has it, if it goes further than the newest snapshot and the log goes on
/// from there.
fn load_warm(
    folder: &Folder,
    settings: &Settings,
    opened: &mut wal::Opened,
    warm: &mut warm::Opened,
) -> Option<Loaded> {
    let wal::Opened { reader, recovered, .. } = opened;
    let newest = folder.list().ok()?.first().map(|found| found.index);
    let least = newest.unwrap_or_default().max(recovered.base.index);
    let (last, log) = (recovered.last, reader.clone());
    let fits = move |index, term| (least..=last).contains(&index) && log.term(index) == Some(term);
    let machine = warm.load(settings.machine_options(), fits)?;
    // It was applied, so it was committed, whatever the log knew when it was written last.
    let commit = &mut recovered.hard_state.commit;
    *commit = machine.applied().max(*commit);
    let newest = sound_snapshot(folder);
    // A state that only the copy has needs a snapshot at once.
    let is_covered = newest.as_ref().is_some_and(|(id, _)| id.index >= recovered.base.index);
    let is_bare = recovered.base.index > LogIndex(1) && !is_covered;
    let log_bytes = if is_bare { LOG_BYTES_OVERDUE } else { reader.bytes() };
    Some(Loaded { machine, newest, log_bytes, lost: None, named: BTreeMap::new() })
}

/// The newest snapshot, if it is sound, with the members as of it.
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
        // One that was received, and that the log does not know of: a crash came first.
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
                tracing::error!(%why, "a snapshot cannot be used, an older one is tried");
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
                // Whether there is anybody to ask. Who founded a cluster alone may have others by now.
                let named = members_named(folder);
                let vote = &recovered.hard_state.vote;
                let mut known = settings.members.keys().chain(named.keys()).chain(vote);
                let joined = settings.members.is_empty();
                let alone = !joined && known.all(|member| *member == settings.node);
                if alone || recovered.founding.is_none() {
                    return Err(StartError::StateLost { base, damaged });
                }
                tracing::error!(%base, ?damaged, "the state is lost and is fetched from another member");
                return Ok(Loaded { machine, newest: None, log_bytes: 0, lost: Some(base), named });
            }
            (machine, None)
        }
    };
    Ok(Loaded { machine, newest, log_bytes: 0, lost: None, named: BTreeMap::new() })
}

/// Who is a member, by the newest snapshot of which as much as its head is sound: of no use as a state, it still
/// says whom to ask for one.
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

/// The state in a snapshot, and what names the file.
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

/// Applies everything up to `commit`.
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

/// What is wrong with the snapshots that are there.
fn damage(damaged: &[String]) -> String {
    damaged.iter().map(|why| format!("; {why}")).collect()
}
