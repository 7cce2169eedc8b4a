//! The warm copy: the applied state on disk, written in the background, so that a start does not
//! have to replay a snapshot and the log.
//!
//! The warm copy is only an optimization. The snapshot and the log remain authoritative: the log is
//! never truncated because of a copy, and a copy is read only at a start. A copy may be missing,
//! outdated, damaged or another member's, and its store may fail, panic or hang. In all these
//! cases, the node starts and runs without a copy, and a new copy is built in the background.
//!
//! ```text
//!  start:  manifest -- trusted? --> store -- valid? --> Machine --> replay of the later log entries
//!            |                        |
//!            +------------------------+-- no: discarded; start from the snapshot and the log
//!
//!  then:   driver --image--> [post] --> [worker] --batches--> store
//!                            reader ------^        never waited for, at most a tenth of a core
//! ```
//!
//! A copy is used only if all these conditions hold:
//!
//! - The [manifest](manifest) belongs to this member.
//! - The manifest proves that the copy was closed properly, or that the machine has not rebooted
//!   since the copy was opened.
//! - The log continues from the entry at which the copy ends.
//! - Every record exists and matches its checksum.
//! - The loaded state has the digest that the head contains.
//!
//! Only the store on disk needs the feature `warm`, and with it sled. Without the feature,
//! [`WarmCopy`] has no value outside of tests.
//!
//! This module does not decide when to take snapshots or which log entries to keep, and does not
//! apply entries.

mod copy;
mod guard;
mod layout;
mod load;
mod manifest;
#[cfg(test)]
mod memory;
#[cfg(feature = "warm")]
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

pub(crate) use layout::CopyRestoredFrom;
pub(crate) use worker::Worker;
pub(crate) use write_behind::WriteBehindQueue;

use copy::{Copy, CopySizes};
use guard::Guarded;
use layout::CopyHead;
use manifest::Manifest;
#[cfg(feature = "warm")]
use on_disk::DiskShelf;
use store::CopyStore;
use worker::store_dir;

use crate::env::Env;
use crate::machine::{Machine, MachineOptions, Reader};
use crate::model::{LogIndex, Term};

/// Name of the subdirectory for all files of this module.
const DIR: &str = "warm";

/// If a store takes more than this many times the bytes of its records on disk, it is not opened.
const DISK_FACTOR_MAX: u64 = 8;

/// Extra space that a store may take on disk, in bytes.
const DISK_BYTES_SLACK: u64 = 256 << 20;

/// Time limit for loading, after which the node starts without the copy.
#[cfg(feature = "warm")]
const LOAD_MAX: Duration = Duration::from_secs(30);

/// The place where the copy is stored.
#[derive(Clone)]
pub(crate) enum WarmCopy {
    #[cfg(feature = "warm")]
    OnDisk,
    /// In a store in memory that outlives the node, for tests. No other thread is used.
    #[cfg(test)]
    OnShelf(Arc<dyn CopyStore>),
}

impl WarmCopy {
    #[cfg_attr(not(feature = "warm"), allow(unused_variables, reason = "there is no store"))]
    fn store(&self, env: &Env) -> Arc<dyn CopyStore> {
        match *self {
            #[cfg(feature = "warm")]
            WarmCopy::OnDisk => Arc::new(DiskShelf::new(Arc::clone(&env.disk))),
            #[cfg(test)]
            WarmCopy::OnShelf(ref store) => Arc::clone(store),
        }
    }

    /// Returns the time limit for loading, or `None` if the copy is loaded on the calling thread.
    fn load_max(&self) -> Option<Duration> {
        match *self {
            #[cfg(feature = "warm")]
            WarmCopy::OnDisk => Some(LOAD_MAX),
            #[cfg(test)]
            WarmCopy::OnShelf(_) => None,
        }
    }
}

impl std::fmt::Debug for WarmCopy {
    #[cfg_attr(not(feature = "warm"), allow(unused_variables, reason = "there is no store"))]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            #[cfg(feature = "warm")]
            WarmCopy::OnDisk => f.write_str("OnDisk"),
            #[cfg(test)]
            WarmCopy::OnShelf(_) => f.write_str("OnShelf"),
        }
    }
}

/// The result of opening: a copy that may be loaded, or none.
pub(crate) struct CopyOpened {
    env: Env,
    store: Arc<dyn CopyStore>,
    dir: PathBuf,
    sizes: CopySizes,
    load_max: Option<Duration>,
    /// `None` if the manifest cannot be written. In this case the node has no warm copy until its
    /// next start.
    manifest: Option<Manifest>,
    /// The copy that the manifest declares trustworthy, with the log index that it must have
    /// reached.
    trusted: Option<(u64, Option<LogIndex>)>,
    loaded: Option<(u64, Copy)>,
}

/// Looks for a copy in the data directory `data` and checks its manifest. Never fails: if a copy
/// cannot be trusted, it is ignored.
pub(crate) fn open(
    env: &Env,
    copy: &WarmCopy,
    data: &Path,
    origin: CopyRestoredFrom,
) -> CopyOpened {
    let dir = data.join(DIR);
    let boot = env.clock.boot();
    let found = env.disk.create_dir(&dir).and_then(|()| Manifest::read(&*env.disk, &dir));
    let trusted = match &found {
        Ok(Some(manifest)) => match (manifest.check(env, origin), manifest.copy) {
            (_, None) => None,
            (Ok(()), Some(number)) => Some((number, manifest.stop)),
            (Err(why), Some(_)) => {
                tracing::info!(why, "discarded the copy on disk (warm copy), loading the snapshot");
                None
            }
        },
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(
                %error,
                "discarded the copy on disk (warm copy): cannot read its manifest"
            );
            None
        }
    };
    // From here on, the copy does not count as properly closed until it is closed again. Therefore,
    // if loading kills the process (for example for lack of memory), the next start does not try to
    // load the copy again.
    let manifest = Manifest { origin, boot, copy: None, stop: None };
    let written: io::Result<()> = manifest.write(&*env.disk, &dir);
    if let Err(error) = &written {
        tracing::warn!(
            %error,
            "no copy on disk (warm copy) until the next start: cannot write its manifest"
        );
    }
    let usable = written.is_ok();
    CopyOpened {
        env: env.clone(),
        store: copy.store(env),
        load_max: copy.load_max(),
        dir,
        sizes: CopySizes::default(),
        manifest: usable.then_some(manifest),
        trusted: trusted.filter(|_| usable),
        loaded: None,
    }
}

/// A machine built from a copy, with the copy's store.
struct CopyLoaded {
    machine: Machine,
    store: Guarded,
    head: CopyHead,
}

impl CopyOpened {
    /// Builds a machine from the copy and publishes its whole state. `fits` takes the index and
    /// term of the copy's last entry, and returns whether the log contains the entries after it. If
    /// the log still contains this entry itself, the entry must have this term.
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
            Ok(CopyLoaded { machine, store, head }) => {
                let manifest = self.manifest.as_mut()?;
                let marked = Manifest { copy: Some(number), ..manifest.clone() };
                match marked.write(&*self.env.disk, &self.dir) {
                    Ok(()) => {
                        *manifest = marked;
                        self.loaded = Some((number, Copy::resume(store, self.sizes, &head)));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot write the manifest of the warm copy");
                    }
                }
                Some(machine)
            }
            Err(why) => {
                tracing::warn!(why, "discarded the copy on disk (warm copy), loading the snapshot");
                None
            }
        }
    }

    /// Returns the worker that keeps the copy up to date or builds a new one. Returns `None` if no
    /// copy is possible.
    pub(crate) fn worker(mut self, reader: Reader, post: Arc<WriteBehindQueue>) -> Option<Worker> {
        let manifest = self.manifest.take()?;
        Some(Worker::new(self, manifest, reader, post))
    }
}

fn load_copy(
    store: &dyn CopyStore,
    dir: &Path,
    (origin, stop): (CopyRestoredFrom, Option<LogIndex>),
    options: MachineOptions,
    fits: impl Fn(LogIndex, Term) -> bool,
) -> Result<CopyLoaded, String> {
    if !store.holds(dir) {
        return Err("the copy does not exist".to_owned());
    }
    let mut store = Guarded::open(store, dir).map_err(|error| error.to_string())?;
    let head = load::read_head(&mut store).map_err(|error| error.to_string())?;
    let Some(head) = head else { return Err("the copy is incomplete".to_owned()) };
    let (index, term) = (head.state.index, head.state.term);
    if head.origin != origin {
        return Err("the copy belongs to another member".to_owned());
    }
    if head.state.version > options.known {
        return Err(format!(
            "the copy has cluster version {}, which this build does not support",
            head.state.version
        ));
    }
    if stop.is_some_and(|stop| stop != index) {
        return Err(format!("the copy ends at {index:?}, but the manifest states {stop:?}"));
    }
    if !fits(index, term) {
        return Err(format!(
            "the copy ends at {index:?} in {term:?}, and the log does not continue there"
        ));
    }
    let disk_bytes = store.with(|store| store.disk_bytes()).map_err(|error| error.to_string())?;
    if disk_bytes > head.bytes.saturating_mul(DISK_FACTOR_MAX).saturating_add(DISK_BYTES_SLACK) {
        return Err(format!(
            "the copy takes {disk_bytes} bytes on the disk for {} bytes of records",
            head.bytes
        ));
    }
    let machine = load::load(&mut store, &head, options).map_err(|error| error.to_string())?;
    Ok(CopyLoaded { machine, store, head })
}

/// Runs `work` on a thread of its own with a time limit. After the limit, the work continues on the
/// thread, but its result is discarded.
fn within(
    at_most: Duration,
    work: impl FnOnce() -> Result<CopyLoaded, String> + Send + 'static,
) -> Result<CopyLoaded, String> {
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().name("bowline-warm-load".into()).spawn(move || {
        drop(sender.send(work()));
    });
    spawned.map_err(|error| error.to_string())?;
    receiver.recv_timeout(at_most).map_err(|error| format!("loading the copy failed: {error}"))?
}
