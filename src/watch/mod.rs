//! Watches: thousands of watchers share the stream of changes of one replica.
//!
//! ```text
//!   driver --publish--> Hub --+-- index: which watchers does this key concern?
//!                             |
//!                             +--> Inbox --> Watcher (keeps up: changes are queued for it)
//!                             +--> Inbox --> Watcher (keeps up)
//!                                            Watcher (behind: reads the history by itself)
//! ```
//!
//! A watcher is in one of two places. **Live**: it stands in the hub's index, and each change of its
//! range is put into its [`Inbox`](inbox::Inbox) as a shared pointer. **Behind**: it does not stand in the
//! index, costs the driver nothing, and its consumer reads pages of the history until it has seen
//! everything that the hub has published; then it goes (back) to the index.
//!
//! ```text
//!                 start is in the future
//!   watch() ------------------------------> Live
//!      |                                    |  ^
//!      | start is in the past    inbox full |  | read up to what is visible,
//!      v                                    v  | judged under the hub's lock
//!      +--------------------------------> Behind --> Compacted (the history it needs is gone)
//! ```
//!
//! The seam. A watcher is entered into the index under the hub's lock, and only if the next revision
//! it needs is above the one published last; what is published later is therefore pushed, and what
//! was published before has been read. The history may already show a revision that the hub has not
//! published yet; then the watcher enters with a start above it and the push is passed over.
//!
//! A full inbox is left as it is: its watcher remembers the first revision that it missed, leaves the
//! index, and continues from the history once its queue is empty. So a consumer that stands still
//! holds at most [`WatchLimits`] of memory, and a publication waits for nobody.
//!
//! Whole revisions. While a publication runs, what it pushes lies above the visible revision, which is
//! raised when all of it is pushed; a watcher takes only what is visible.
//!
//! Installs. Where the replica takes over a later state, what led there is not published. Live
//! watchers that wait for some of it leave the index before it becomes visible, and continue from the
//! history: what is left of it after the compacted revision, or the news that it is gone.
//!
//! Locks, in the order in which they may be held together: the hub's, then one inbox's. The
//! history's lock is taken with none of them held, and wakers are called, cloned and dropped with none
//! of them held: all three may run code that is not ours.
//!
//! Invariant: knows nothing about consensus, the log or time. What is published must be committed,
//! applied, and visible in the history.

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

pub use history::{Compacted, History};
pub use hub::Hub;
pub use request::{Filter, WatchBatch, WatchError, WatchLimits, WatchRequest};
pub(crate) use wake::waking;
pub use watcher::Watcher;
