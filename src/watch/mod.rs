//! Watches: notifies any number of watchers of the changes that one replica applies.
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
//! range is added to its [`WatchInbox`](inbox::WatchInbox) as a shared pointer. **Behind**: it is not in the
//! index and costs the driver nothing. The consumer of such a watcher reads pages of the history
//! until it has read everything that the hub has published. Then the watcher enters the index.
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
//! is pushed, and everything published earlier has been read. The history may already contain a
//! revision that the hub has not published yet. A watcher that has read this revision enters the
//! index with a start above it. When the hub publishes the revision later, it skips this watcher.
//!
//! **Full inboxes.** When an inbox is full, its watcher leaves the index and records the first
//! revision that it missed. Once the watcher's queue is empty, it continues from the history.
//! Therefore a consumer that stalls occupies only as much memory as [`WatchLimits`] allows, and
//! publishing never waits for a consumer.
//!
//! **Complete revisions.** The hub adds the changes of a revision to all inboxes before it raises
//! the visible revision. A watcher takes only changes up to the visible revision. Therefore a
//! watcher never yields a part of a revision.
//!
//! **Installs.** When the replica installs a later state, the changes that led to it are not
//! published. Live watchers that need some of these changes leave the index before the new revision
//! becomes visible, and continue from the history. If the history still contains the changes, the
//! watchers yield them. If the changes are compacted, the watchers yield `Compacted`.
//!
//! **Lock order.** A thread that needs both locks locks the hub before an inbox. A thread that
//! holds one of these two locks never locks the history. Such a thread also never calls, clones or
//! drops a waker, because wakers may run code of the host program.
//!
//! Invariant: this module does not depend on the consensus, the log or the time. The driver
//! publishes a change only after it is committed, applied, and visible in the history.

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
