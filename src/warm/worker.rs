//! The background worker that keeps a copy of the state up to date.
//!
//! ```text
//!   nothing ----> building: base, changes ----> following: changes, head, every two seconds
//!      ^                      |                     |
//!      |   store failed       |                     | grown to twice the state, or fell behind the
//!      +----------------------+---------------------+ remembered changes: a new copy is built, this
//!                                                     one stays until the new one is complete
//! ```
//!
//! The worker works for a few milliseconds at a time, and then sleeps nine times as long. Therefore
//! the worker never uses more than a tenth of a core. While the node is under load, the worker
//! pauses, so the copy may lag behind the state by any amount. If the copy fails, the node
//! continues to work. The worker discards the copy and builds a new one, a limited number of times.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::CopyOpened;
use super::copy::{Copy, CopyError, CopySizes, CopyStep};
use super::guard::Guarded;
use super::manifest::Manifest;
use super::store::{CopyStore, StoreError};
use super::write_behind::{End, WriteBehindQueue};
use crate::env::Env;
use crate::machine::{Image, Reader};
use crate::model::{Moment, Revision};

/// Pause after a turn, as a multiple of the turn's duration.
const PAUSE_FACTOR: u32 = 9;

/// Minimum pause after a turn if there is more work to do.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// Interval between two updates of a complete copy.
pub(super) const ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// Number of revisions per second above which the node is under load and the worker pauses.
const LOAD_REVISIONS_PER_SECOND: u64 = 20_000;

/// Period over which the load is measured.
const LOAD_WINDOW: Duration = Duration::from_secs(1);

/// Number of failures of the store after which the worker builds no more copies until the node
/// restarts.
const FAILURES_MAX: u32 = 3;

/// Pause after a failure, or after falling behind, before a new copy is begun.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Time limit for writing the missing data during a proper shutdown.
const STOP_MAX: Duration = Duration::from_millis(500);

/// The worker. See the module page.
pub(crate) struct Worker {
    env: Env,
    store: Arc<dyn CopyStore>,
    /// Directory of the manifest and the copies.
    dir: PathBuf,
    sizes: CopySizes,
    manifest: Manifest,
    reader: Reader,
    post: Arc<WriteBehindQueue>,
    copy: Option<OpenCopy>,
    /// An image that has arrived and is not used yet.
    image: Option<Image>,
    failures: u32,
    /// No new copy is begun before this time.
    not_before: Moment,
    load: CopyLoad,
    /// Whether the directory may contain stores that are no longer needed.
    has_leftovers: bool,
}

/// The copy that is being built or kept up to date.
struct OpenCopy {
    number: u64,
    copy: Copy,
}

/// The rate of changes of the state.
struct CopyLoad {
    since: Moment,
    revision: Revision,
    is_high: bool,
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WarmTurn {
    /// The next turn is due after this pause.
    Rest(Duration),
    /// The node has stopped, so there are no more turns.
    Ended,
}

/// Whether more work is available immediately.
enum Left {
    More,
    Nothing,
}

impl Worker {
    /// Creates a worker that follows the state of `reader`.
    pub(super) fn new(
        opened: CopyOpened,
        manifest: Manifest,
        reader: Reader,
        post: Arc<WriteBehindQueue>,
    ) -> Self {
        let CopyOpened { env, store, dir, sizes, loaded, .. } = opened;
        let now = env.clock.now();
        Self {
            store,
            dir,
            sizes,
            manifest,
            load: CopyLoad { since: now, revision: reader.revision(), is_high: false },
            reader,
            post,
            copy: loaded.map(|(number, copy)| OpenCopy { number, copy }),
            image: None,
            failures: 0,
            not_before: now,
            has_leftovers: true,
            env,
        }
    }

    pub(crate) fn run(&mut self) {
        while let WarmTurn::Rest(rest) = self.turn() {
            self.post.wait(rest);
        }
    }

    pub(super) fn turn(&mut self) -> WarmTurn {
        match self.post.take_end() {
            Some(End::Orderly(image)) => {
                self.stop(*image);
                return WarmTurn::Ended;
            }
            Some(End::Abrupt) => return WarmTurn::Ended,
            None => {}
        }
        let begun = self.env.clock.now();
        self.load.look(begun, self.reader.revision());
        if self.load.is_high {
            return WarmTurn::Rest(LOAD_WINDOW);
        }
        if self.post.is_space_low() {
            self.make_room();
            return WarmTurn::Rest(ROUND_INTERVAL);
        }
        let left = self.work(begun).unwrap_or_else(|error| {
            self.fail(&error);
            Left::Nothing
        });
        let rest = self.env.clock.now().since(begun) * PAUSE_FACTOR;
        WarmTurn::Rest(match left {
            Left::More => rest.max(PAUSE_MIN),
            Left::Nothing => rest.max(ROUND_INTERVAL),
        })
    }

    /// Returns the number of failures of the store.
    #[cfg(test)]
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    fn work(&mut self, now: Moment) -> Result<Left, CopyError> {
        if let Some(image) = self.post.take_image() {
            self.image = Some(image);
        }
        if self.has_leftovers {
            self.has_leftovers = self.remove_unneeded_store();
            return Ok(Left::More);
        }
        let Some(open) = &mut self.copy else { return self.begin(now) };
        if open.copy.step(&self.reader)? == CopyStep::More {
            return Ok(Left::More);
        }
        match self.image.take() {
            Some(image) => self.complete(image)?,
            None => self.post.want(open.copy.applied().unwrap_or_default()),
        }
        Ok(Left::Nothing)
    }

    /// Begins a new copy if it is time.
    fn begin(&mut self, now: Moment) -> Result<Left, CopyError> {
        if now < self.not_before || self.failures >= FAILURES_MAX {
            return Ok(Left::Nothing);
        }
        let taken = self.store.list(&self.dir).map_err(StoreError::from)?;
        let taken = taken.iter().filter_map(|dir| number_of(dir)).chain(self.manifest.copy).max();
        let number = taken.map_or(1, |number| number + 1);
        let store = Guarded::open(&*self.store, &store_dir(&self.dir, number))?;
        let copy = Copy::begin(store, self.sizes, self.manifest.origin, &self.reader);
        self.copy = Some(OpenCopy { number, copy });
        Ok(Left::More)
    }

    /// Completes the open copy for the state as of `image`, and makes it the copy to load.
    fn complete(&mut self, image: Image) -> Result<(), CopyError> {
        let Some(open) = &mut self.copy else { return Ok(()) };
        let head = image.head();
        if head.revision > self.reader.revision() || !open.copy.suits(head) {
            return Ok(()); // The image was taken too early: another one will come.
        }
        if open.copy.applied() < Some(head.index) {
            open.copy.complete(&self.reader, image)?;
        }
        if self.manifest.copy != Some(open.number) {
            let manifest =
                Manifest { copy: Some(open.number), stop: None, ..self.manifest.clone() };
            self.write_mark(manifest)?;
            self.has_leftovers = true;
            return Ok(());
        }
        if open.copy.is_oversized(self.reader.bytes()) {
            let bytes = open.copy.disk_bytes()?;
            tracing::debug!(bytes, "rebuilding warm copy: it has grown too large");
            self.retire()?;
        }
        Ok(())
    }

    /// Closes the copy properly. The next start loads this copy, unless a new copy is complete by
    /// then.
    fn retire(&mut self) -> Result<(), CopyError> {
        let Some(OpenCopy { number, copy }) = self.copy.take() else { return Ok(()) };
        let applied = copy.applied();
        if let Err(error) = copy.close() {
            self.forget_if(number);
            return Err(error.into());
        }
        if self.manifest.copy == Some(number) {
            self.write_mark(Manifest { stop: applied, ..self.manifest.clone() })?;
        }
        Ok(())
    }

    fn stop(&mut self, image: Image) {
        let until = self.env.clock.now() + STOP_MAX;
        let result = loop {
            let Some(open) = &mut self.copy else { return };
            match open.copy.step(&self.reader) {
                Ok(CopyStep::More) if self.env.clock.now() < until => {}
                Ok(CopyStep::More) => break Ok(()),
                Ok(CopyStep::CaughtUp) => break self.complete(image),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result.and_then(|()| self.retire()) {
            self.fail(&error);
        }
    }

    /// Discards the open copy, which is unusable.
    fn fail(&mut self, error: &CopyError) {
        self.image = None;
        self.has_leftovers = true;
        self.not_before = self.env.clock.now() + RETRY_DELAY;
        if let CopyError::Forgotten(_) = error {
            tracing::debug!(%error, "rebuilding warm copy: it has fallen behind");
            if let Err(error) = self.retire() {
                self.fail(&error);
            }
            return;
        }
        self.failures += 1;
        tracing::warn!(
            %error,
            failures = self.failures,
            "discarded the copy on disk (warm copy), continuing without it"
        );
        if let Some(open) = self.copy.take() {
            self.forget_if(open.number);
        }
    }

    /// If this is the current copy, updates the manifest so that the copy will not be loaded.
    fn forget_if(&mut self, number: u64) {
        if self.manifest.copy == Some(number) {
            self.forget();
        }
    }

    /// Updates the manifest so that no copy will be loaded.
    fn forget(&mut self) {
        let manifest = Manifest { copy: None, stop: None, ..self.manifest.clone() };
        if let Err(error) = self.write_mark(manifest) {
            // This failure is harmless: the next start checks the copy that the manifest names
            // completely, including its digest.
            tracing::warn!(%error, "cannot write the manifest of the warm copy");
        }
    }

    fn make_room(&mut self) {
        self.image = None;
        if self.copy.take().is_some() || self.manifest.copy.is_some() {
            self.forget();
            // If the disk has no space for a new manifest, the old one still names the copy. The
            // outdated manifest is harmless, because the copy is removed and will not be found.
            self.manifest.copy = None;
            self.has_leftovers = true;
        }
        while self.has_leftovers {
            self.has_leftovers = self.remove_unneeded_store();
        }
    }

    /// Removes an unneeded store. Returns true if there may be more.
    fn remove_unneeded_store(&self) -> bool {
        let needed = [self.manifest.copy, self.copy.as_ref().map(|open| open.number)];
        let Ok(dirs) = self.store.list(&self.dir) else { return false };
        let unneeded = dirs
            .iter()
            .find(|dir| number_of(dir).is_some_and(|number| !needed.contains(&Some(number))));
        let Some(dir) = unneeded else { return false };
        match self.store.remove(dir) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "cannot remove old warm copy");
                false
            }
        }
    }

    fn write_mark(&mut self, manifest: Manifest) -> Result<(), StoreError> {
        manifest.write(&*self.env.disk, &self.dir)?;
        self.manifest = manifest;
        Ok(())
    }
}

impl CopyLoad {
    fn look(&mut self, now: Moment, revision: Revision) {
        let passed = now.since(self.since);
        if passed < LOAD_WINDOW {
            return;
        }
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let rate = revision.get().saturating_sub(self.revision.get()).saturating_mul(1000) / millis;
        *self = Self { since: now, revision, is_high: rate > LOAD_REVISIONS_PER_SECOND };
    }
}

/// Returns the directory of a copy's store.
pub(super) fn store_dir(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("copy-{number}"))
}

/// Returns the number of the copy if this is the directory of a copy.
fn number_of(dir: &Path) -> Option<u64> {
    dir.file_name()?.to_str()?.strip_prefix("copy-")?.parse().ok()
}
