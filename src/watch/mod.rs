//! Watches: thousands of watchers share the stream of changes of one replica.
//!
//! ```text
//!   driver --publish--> Hub --+-- index: which watchers match this key?
//!                             |
//!                             +--> Inbox --> Watcher (live: changes are queued for it)
//!                             +--> Inbox --> Watcher (live)
//!                                            Watcher (behind: reads the history by itself)
//! ```
//!
//! A watcher is in one of two states. **Live**: it is in the hub's index, and each change of its
//! range is added to its [`Inbox`](inbox::Inbox) as a shared pointer. **Behind**: it is not in the
//! index and costs the driver nothing. Its consumer reads pages of the history until it has seen
//! everything that the hub has published, and then (re)enters the index.
//!
//! ```text
//!                 start is in the future
//!   watch() ------------------------------> Live
//!      |                                    |  ^
//!      | start is in the past    inbox full |  | read up to the visible revision,
//!      v                                    v  | checked under the hub's lock
//!      +--------------------------------> Behind --> Compacted (the history it needs is gone)
//! ```
//!
//! **Entering the index.** A watcher enters the index under the hub's lock, and only if the next
//! revision it needs is greater than the last published one. Therefore everything published later
//! is pushed, and everything published earlier has been read. The history may already show a
//! revision that the hub has not published yet. The watcher then enters with a start above that
//! revision, and its push is skipped.
//!
//! **Full inboxes.** When an inbox is full, its watcher remembers the first revision that it
//! missed, leaves the index, and continues from the history once its queue is empty. Therefore a
//! consumer that stalls holds at most [`WatchLimits`] of memory, and a publication never waits.
//!
//! **Complete revisions.** While a publication is in progress, its entries are above the visible
//! revision, which is raised after all of them are pushed. A watcher takes only visible entries.
//!
//! **Installs.** When the replica installs a later state, the changes that led to it are not
//! published. Live watchers that need some of them leave the index before the new revision becomes
//! visible, and continue from the history. They receive the changes that are left there, or
//! `Compacted`.
//!
//! **Lock order.** First the hub's lock, then one inbox's. The history's lock is taken while
//! neither is held. Wakers are called, cloned and dropped while neither is held, because all three
//! may run code of the host.
//!
//! Invariant: this module knows nothing about consensus, the log or time. Everything published must
//! be committed, applied, and visible in the history.

mod history;
mod hub;
mod inbox;
mod index;
mod request;
mod visible;
mod wake;
mod watcher;

#[cfg(test)]
mod tests;

pub use history::{Compacted, WatchHistory};
pub use hub::Hub;
pub use request::{Filter, WatchBatch, WatchError, WatchLimits, WatchRequest};
pub(crate) use wake::waking;
pub use watcher::Watcher;
