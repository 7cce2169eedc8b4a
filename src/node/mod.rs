//! A node: one member of the cluster.
//!
//! Read [`driver`] first: it runs the node. The driver uses the following parts, which do not
//! depend on each other:
//!
//! - [`requests`]: admission, the quota, the queue of inputs, and writes that have no answer yet
//! - [`leader_queries`]: numbered queries to the leader (linearizable reads, calls for leases, membership requests,
//!   renewals), and the rounds in which a leader confirms its leadership to answer them
//! - [`leader`]: counting leases, and deciding how much history is kept
//! - [`membership`]: founding and joining a cluster, and the identities and addresses of the members
//! - [`sessions`]: keeping the leases of this node alive
//! - [`snapshots`]: taking, sending, fetching and loading snapshots and backups
//! - [`health`]: the status and health of the node, and the facts from which they are derived
//! - [`threads`]: the thread of the log, and running a node on real threads
//!
//! [`shared`] is the state that the handles of a node share with the driver. [`assembly`] assembles a node from these
//! parts.

mod assembly;
mod driver;
mod health;
mod leader;
mod leader_queries;
mod membership;
mod requests;
mod sessions;
mod settings;
mod shared;
mod snapshots;
mod threads;

pub(crate) use assembly::{Assembly, Joined, StartError, Wakers, is_founded, owner_of_data};
pub use health::data_fault::DataErrorKind;
pub use health::digests::EVERY as DIGEST_INTERVAL;
pub use health::status::{MemberStatus, NodeStatus, Progress, Role};
pub use health::{Health, HealthStatus};
pub use leader::retain::History;
pub(crate) use leader_queries::lease_calls::LeaseRequest;
pub(crate) use membership::joining::{
    contacts, disk_to_join, is_joining, save_answer, saved_contacts,
};
pub use requests::answer::StopReason;
pub(crate) use requests::answer::{CallError, CallResult, ReplyTo};
pub(crate) use requests::inbox::Input;
pub(crate) use requests::writing::PART_BYTES;
pub use sessions::resume_error::ResumeSessionError;
pub(crate) use sessions::session::{Claim, SessionClose, SessionKeeper, SharedSession};
pub use sessions::session::{SessionEndReason, SessionState};
pub(crate) use settings::{Contact, Drift, Settings};
pub(crate) use shared::{Follower, Shared};
pub(crate) use snapshots::offline::{Offline, OfflineError, Stopped, load_file};
pub(crate) use snapshots::restored_from::{OriginError, RESTORING, RestoredFrom};
pub(crate) use threads::thread::Running;

pub(crate) use crate::warm::WarmCopy;

// These exports are for a harness that schedules the parts of a node itself.
#[cfg(any(test, feature = "sim"))]
pub(crate) use {
    assembly::Assembled,
    driver::{Look, Next},
    leader::lessor::SharedLessor,
    snapshots::snapshot_worker::SnapshotTurn,
    threads::log_worker::LogTurn,
};
