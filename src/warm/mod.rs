//! The warm copy: the applied state on disk, written behind, so that a start need not replay what a
//! snapshot and the log would tell.
//!
//! It is never the truth, which is the snapshot and the log; nothing is cut on the strength of it and
//! nothing is read from it but at a start. It may be missing, old, damaged or another member's, its
//! store may fail or panic or hang: the node starts and runs without it, and a new one is built in the
//! background.
//!
//! ```text
//!  start:  mark -- trusted? --> store -- sound? --> Machine --> the log from there on
//!            |                    |
//!            +--------------------+-- no: set aside; snapshot and log, as if it were not there
//!
//!  then:   driver --image--> [post] --> [worker] --batches--> store
//!                            reader ------^        never waited for, a tenth of a core
//! ```
//!
//! What a copy must pass before it becomes a machine: a [mark](mark) that is ours and says that the
//! machine has not lost power since; a head that fits the log; every record there, with its checksum;
//! and the state's digest.
//!
//! Not here: when to snapshot, what the log keeps, and what is applied after the copy.

mod copy;
mod guard;
mod layout;
mod load;
mod manifest;
#[cfg(test)]
mod memory;
mod on_disk;
mod store;
#[cfg(test)]
mod tests;
mod worker;
mod write_behind;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

pub(crate) use layout::RestoredFrom;
pub(crate) use worker::Worker;
pub(crate) use write_behind::WriteBehindQueue;

use copy::{Copy, Sizes};
use guard::Guarded;
use layout::CopyHead;
use manifest::Manifest;
use on_disk::DiskShelf;
use store::CopyStore;
use worker::store_dir;

use crate::env::Env;
use crate::machine::{Machine, MachineOptions, Reader};
use crate::model::{LogIndex, Term};

/// Where in a data directory everything of this module lies.
const DIR: &str = "warm";

/// How many times the bytes of its records a store may take on the disk before it is not worth its
/// opening.
const DISK_FACTOR_MAX: u64 = 8;

/// What it may take beside, in bytes.
const DISK_BYTES_SLACK: u64 = 256 << 20;

/// How long loading may take before the node starts without it.
const LOAD_MAX: Duration = Duration::from_secs(30);

/// Where the copy is kept.
#[derive(Clone)]
pub(crate) enum WarmCopy {
    /// On the disk.
    OnDisk,
    /// On a shelf that outlives the node, for tests: nothing happens on other threads.
    #[cfg(test)]
    OnShelf(Arc<dyn CopyStore>),
}

impl WarmCopy {
    fn store(&self, env: &Env) -> Arc<dyn CopyStore> {
        match self {
            WarmCopy::OnDisk => Arc::new(DiskShelf::new(Arc::clone(&env.disk))),
            #[cfg(test)]
            WarmCopy::OnShelf(store) => Arc::clone(store),
        }
    }

    /// How long a start waits for it; for ever, if it is loaded on the thread that starts.
    fn load_max(&self) -> Option<Duration> {
        match self {
            WarmCopy::OnDisk => Some(LOAD_MAX),
            #[cfg(test)]
            WarmCopy::OnShelf(_) => None,
        }
    }
}

impl std::fmt::Debug for WarmCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WarmCopy::OnDisk => "OnDisk",
            #[cfg(test)]
            WarmCopy::OnShelf(_) => "OnShelf",
        })
    }
}

/// A copy that may be loaded, or none.
pub(crate) struct Opened {
    env: Env,
    store: Arc<dyn CopyStore>,
    dir: PathBuf,
    sizes: Sizes,
    load_max: Option<Duration>,
    /// `None` if not even a mark can be written: then there is no warm copy in this life.
    manifest: Option<Manifest>,
    /// Its mark says that this copy may be trusted, and up to where it must go.
    trusted: Option<(u64, Option<LogIndex>)>,
    loaded: Option<(u64, Copy)>,
}

/// Looks for a copy in the data directory `data`, and judges its mark. Never fails: where anything is
/// in doubt, there is none.
pub(crate) fn open(env: &Env, copy: &WarmCopy, data: &Path, origin: RestoredFrom) -> Opened {
    let dir = data.join(DIR);
    let boot = env.clock.boot();
    let found = env.disk.create_dir(&dir).and_then(|()| Manifest::read(&*env.disk, &dir));
    let trusted = match &found {
        Ok(Some(manifest)) => match (manifest.judge(env, origin), manifest.copy) {
            (_, None) => None,
            (Ok(()), Some(number)) => Some((number, manifest.stop)),
            (Err(why), Some(_)) => {
                tracing::info!(why, "the warm copy of the state is set aside");
                None
            }
        },
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(%error, "the warm copy of the state has no legible manifest and is set aside");
            None
        }
    };
    // Whatever happens to the copy from here on is no orderly stop; and a process that dies of loading it, for want of
    // memory, does so once.
    let manifest = Manifest { origin, boot, copy: None, stop: None };
    let written: io::Result<()> = manifest.write(&*env.disk, &dir);
    if let Err(error) = &written {
        tracing::warn!(%error, "there is no warm copy of the state in this life");
    }
    let usable = written.is_ok();
    Opened {
        env: env.clone(),
        store: copy.store(env),
        load_max: copy.load_max(),
        dir,
        sizes: Sizes::default(),
        manifest: usable.then_some(manifest),
        trusted: trusted.filter(|_| usable),
        loaded: None,
    }
}

/// A copy that has become a machine, and the store that it came from.
struct Loaded {
    machine: Machine,
    store: Guarded,
    head: CopyHead,
}

impl Opened {
    /// Makes a machine of the copy, with everything published. `fits` says whether the log has what
    /// comes after an entry, and that entry itself under this term if it has it.
    pub(crate) fn load(
        &mut self,
        options: MachineOptions,
        fits: impl Fn(LogIndex, Term) -> bool + Send + 'static,
    ) -> Option<Machine> {
        let (number, stop) = self.trusted.take()?;
        let dir = store_dir(&self.dir, number);
        let store = Arc::clone(&self.store);
        let origin = self.manifest.as_ref()?.origin;
        let work = move || load_copy(&*store, &dir, (origin, stop), options, fits);
        let result = match self.load_max {
            None => work(),
            Some(at_most) => within(at_most, work),
        };
        match result {
            Ok(Loaded { machine, store, head }) => {
                let manifest = self.manifest.as_mut()?;
                let marked = Manifest { copy: Some(number), ..manifest.clone() };
                match marked.write(&*self.env.disk, &self.dir) {
                    Ok(()) => {
                        *manifest = marked;
                        self.loaded = Some((number, Copy::resume(store, self.sizes, &head)));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the manifest of the warm copy could not be written");
                    }
                }
                Some(machine)
            }
            Err(why) => {
                tracing::warn!(why, "the warm copy of the state is set aside");
                None
            }
        }
    }

    /// Who keeps the copy up to date, or builds another. `None` if there can be none.
    pub(crate) fn worker(mut self, reader: Reader, post: Arc<WriteBehindQueue>) -> Option<Worker> {
        let manifest = self.manifest.take()?;
        Some(Worker::new(self, manifest, reader, post))
    }
}

fn load_copy(
    store: &dyn CopyStore,
    dir: &Path,
    (origin, stop): (RestoredFrom, Option<LogIndex>),
    options: MachineOptions,
    fits: impl Fn(LogIndex, Term) -> bool,
) -> Result<Loaded, String> {
    if !store.holds(dir) {
        return Err("it is not there".to_owned());
    }
    let mut store = Guarded::open(store, dir).map_err(|error| error.to_string())?;
    let head = load::read_head(&mut store).map_err(|error| error.to_string())?;
    let Some(head) = head else { return Err("it was never completed".to_owned()) };
    let (index, term) = (head.state.index, head.state.term);
    if head.origin != origin {
        return Err("it is another member's".to_owned());
    }
    if head.state.version > options.known {
        return Err(format!("it is of cluster version {}", head.state.version));
    }
    if stop.is_some_and(|stop| stop != index) {
        return Err(format!("it ends at {index:?}, it was closed at {stop:?}"));
    }
    if !fits(index, term) {
        return Err(format!("it ends at {index:?} in {term:?}, where the log does not go on"));
    }
    let disk_bytes = store.disk_bytes().map_err(|error| error.to_string())?;
    if disk_bytes > head.bytes.saturating_mul(DISK_FACTOR_MAX).saturating_add(DISK_BYTES_SLACK) {
        return Err(format!("it takes {disk_bytes} bytes on the disk for {}", head.bytes));
    }
    let machine = load::load(&mut store, &head, options).map_err(|error| error.to_string())?;
    Ok(Loaded { machine, store, head })
}

/// Runs `work` on a thread of its own. It may go on there when nobody waits for it any more.
fn within(
    at_most: Duration,
    work: impl FnOnce() -> Result<Loaded, String> + Send + 'static,
) -> Result<Loaded, String> {
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().name("bowline-warm-load".into()).spawn(move || {
        drop(sender.send(work()));
    });
    spawned.map_err(|error| error.to_string())?;
    receiver.recv_timeout(at_most).map_err(|error| format!("it could not be loaded: {error}"))?
}
