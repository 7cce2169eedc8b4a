//! The background worker that keeps a copy of the state up to date.
//!
//! ```text
//!   nothing ----> building: base, changes ----> following: changes, head, every two seconds
//!      ^                      |                     |
//!      |   store failed       |                     | grown to twice the state, or fell behind what
//!      +----------------------+---------------------+ is remembered: another copy is built, this one
//!                                                     stays until that one is complete
//! ```
//!
//! It works in turns of a few milliseconds and rests nine times as long after each, so that it never
//! takes more than a tenth of a core; while the node is under load it pauses. It may lag as long as it
//! likes. What goes wrong costs the copy, never the node: it is set aside and built anew, a few times.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Opened;
use super::copy::{Copy, CopyError, Sizes, Step};
use super::guard::Guarded;
use super::manifest::Manifest;
use super::store::{CopyStore, StoreError};
use super::write_behind::{End, WriteBehindQueue};
use crate::env::Env;
use crate::machine::{Image, Reader};
use crate::model::{Moment, Revision};

/// For each moment of work, how many of rest.
const REST_FACTOR: u32 = 9;

/// The least rest after a turn that has more to do.
const REST_MIN: Duration = Duration::from_millis(5);

/// How long after one round the next begins.
pub(super) const ROUND_EVERY: Duration = Duration::from_secs(2);

/// Above this many revisions a second the node is under load, and the worker pauses.
const LOAD_REVISIONS_PER_SECOND: u64 = 20_000;

/// Over what time the load is measured.
const LOAD_WINDOW: Duration = Duration::from_secs(1);

/// After how many failures of its store there is no copy any more until the node starts again.
const FAILURES_MAX: u32 = 3;

/// How long after a failure, or after falling behind, another copy is begun.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long a stop in good order goes on writing what is missing.
const STOP_MAX: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct Worker {
    env: Env,
    store: Arc<dyn CopyStore>,
    /// Where the mark and the copies are.
    dir: PathBuf,
    sizes: Sizes,
    manifest: Manifest,
    reader: Reader,
    post: Arc<WriteBehindQueue>,
    copy: Option<Open>,
    /// An image that has come and is not used yet.
    image: Option<Image>,
    failures: u32,
    /// No other copy is begun before.
    not_before: Moment,
    load: Load,
    /// Whether there may be stores that nobody needs.
    litter: bool,
}

/// The copy that is being built or followed.
struct Open {
    number: u64,
    copy: Copy,
}

/// How fast the state changes.
struct Load {
    since: Moment,
    revision: Revision,
    is_high: bool,
}

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WarmTurn {
    /// The next turn is due after this rest.
    Rest(Duration),
    /// The node has stopped: no more turns.
    Ended,
}

/// What is left to do after some work, until something happens.
enum Left {
    More,
    Nothing,
}

impl Worker {
    /// A worker that follows what `reader` reads.
    pub(super) fn new(
        opened: Opened,
        manifest: Manifest,
        reader: Reader,
        post: Arc<WriteBehindQueue>,
    ) -> Self {
        let Opened { env, store, dir, sizes, loaded, .. } = opened;
        let now = env.clock.now();
        Self {
            store,
            dir,
            sizes,
            manifest,
            load: Load { since: now, revision: reader.revision(), is_high: false },
            reader,
            post,
            copy: loaded.map(|(number, copy)| Open { number, copy }),
            image: None,
            failures: 0,
            not_before: now,
            litter: true,
            env,
        }
    }

    /// Works until the node stops.
    pub(crate) fn run(&mut self) {
        while let WarmTurn::Rest(rest) = self.turn() {
            self.post.wait(rest);
        }
    }

    /// Does some work.
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
        if self.post.is_scarce() {
            self.make_room();
            return WarmTurn::Rest(ROUND_EVERY);
        }
        let left = self.work(begun).unwrap_or_else(|error| {
            self.fail(&error);
            Left::Nothing
        });
        let rest = self.env.clock.now().since(begun) * REST_FACTOR;
        WarmTurn::Rest(match left {
            Left::More => rest.max(REST_MIN),
            Left::Nothing => rest.max(ROUND_EVERY),
        })
    }

    /// How often its store has failed.
    #[cfg(test)]
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    fn work(&mut self, now: Moment) -> Result<Left, CopyError> {
        if let Some(image) = self.post.take_image() {
            self.image = Some(image);
        }
        if self.litter {
            self.litter = self.clear_away();
            return Ok(Left::More);
        }
        let Some(open) = &mut self.copy else { return self.begin(now) };
        if open.copy.step(&self.reader)? == Step::More {
            return Ok(Left::More);
        }
        match self.image.take() {
            Some(image) => self.complete(image)?,
            None => self.post.want(open.copy.applied().unwrap_or_default()),
        }
        Ok(Left::Nothing)
    }

    /// Begins another copy, if it is time.
    fn begin(&mut self, now: Moment) -> Result<Left, CopyError> {
        if now < self.not_before || self.failures >= FAILURES_MAX {
            return Ok(Left::Nothing);
        }
        let taken = self.store.list(&self.dir).map_err(StoreError::from)?;
        let taken = taken.iter().filter_map(|dir| number_of(dir)).chain(self.manifest.copy).max();
        let number = taken.map_or(1, |number| number + 1);
        let store = Guarded::open(&*self.store, &store_dir(&self.dir, number))?;
        let copy = Copy::begin(store, self.sizes, self.manifest.origin, &self.reader);
        self.copy = Some(Open { number, copy });
        Ok(Left::More)
    }

    /// The copy that is open becomes one of the state as of `image`, and the one to be loaded.
    fn complete(&mut self, image: Image) -> Result<(), CopyError> {
        let Some(open) = &mut self.copy else { return Ok(()) };
        let head = image.head();
        if head.revision > self.reader.revision() || !open.copy.suits(head) {
            return Ok(()); // It was taken too early: another will come.
        }
        if open.copy.applied() < Some(head.index) {
            open.copy.complete(&self.reader, image)?;
        }
        if self.manifest.copy != Some(open.number) {
            let manifest =
                Manifest { copy: Some(open.number), stop: None, ..self.manifest.clone() };
            self.write_mark(manifest)?;
            self.litter = true;
            return Ok(());
        }
        if open.copy.is_overgrown(self.reader.bytes()) {
            let bytes = open.copy.disk_bytes()?;
            tracing::debug!(bytes, "the warm copy of the state has grown and is written anew");
            self.retire()?;
        }
        Ok(())
    }

    /// Closes the copy in good order; it stays the one to be loaded until there is another.
    fn retire(&mut self) -> Result<(), CopyError> {
        let Some(Open { number, copy }) = self.copy.take() else { return Ok(()) };
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
                Ok(Step::More) if self.env.clock.now() < until => {}
                Ok(Step::More) => break Ok(()),
                Ok(Step::CaughtUp) => break self.complete(image),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result.and_then(|()| self.retire()) {
            self.fail(&error);
        }
    }

    /// The copy that is open is of no use any more.
    fn fail(&mut self, error: &CopyError) {
        self.image = None;
        self.litter = true;
        self.not_before = self.env.clock.now() + AGAIN_AFTER;
        if let CopyError::Forgotten(_) = error {
            tracing::debug!(%error, "the warm copy of the state has fallen behind and is begun anew");
            if let Err(error) = self.retire() {
                self.fail(&error);
            }
            return;
        }
        self.failures += 1;
        tracing::warn!(%error, failures = self.failures, "the warm copy of the state is set aside");
        if let Some(open) = self.copy.take() {
            self.forget_if(open.number);
        }
    }

    /// This copy is not to be loaded.
    fn forget_if(&mut self, number: u64) {
        if self.manifest.copy == Some(number) {
            self.forget();
        }
    }

    /// No copy is to be loaded.
    fn forget(&mut self) {
        let manifest = Manifest { copy: None, stop: None, ..self.manifest.clone() };
        if let Err(error) = self.write_mark(manifest) {
            // What it names will be judged again, and by its digest.
            tracing::warn!(%error, "the manifest of the warm copy could not be written");
        }
    }

    fn make_room(&mut self) {
        self.image = None;
        if self.copy.take().is_some() || self.manifest.copy.is_some() {
            self.forget();
            // Also where there is no room for a mark: what it names is not there then, and is not looked for.
            self.manifest.copy = None;
            self.litter = true;
        }
        while self.litter {
            self.litter = self.clear_away();
        }
    }

    /// Removes a store that nobody needs. True if there may be more.
    fn clear_away(&self) -> bool {
        let needed = [self.manifest.copy, self.copy.as_ref().map(|open| open.number)];
        let Ok(dirs) = self.store.list(&self.dir) else { return false };
        let litter = dirs
            .iter()
            .find(|dir| number_of(dir).is_some_and(|number| !needed.contains(&Some(number))));
        let Some(dir) = litter else { return false };
        match self.store.remove(dir) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "an old warm copy stays");
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

impl Load {
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

/// Where the store of a copy is.
pub(super) fn store_dir(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("copy-{number}"))
}

/// The number of the copy whose store is there, if it is one.
fn number_of(dir: &Path) -> Option<u64> {
    dir.file_name()?.to_str()?.strip_prefix("copy-")?.parse().ok()
}
