//! A node: one member of the cluster.
//!
//! Read `driver` first: it runs the node. The driver owns the following parts, which do not depend
//! on each other:
//!
//! - `proposals`: writes of this node that have no answer yet
//! - `leader_queries`: numbered queries to the leader, on which the next four stand
//! - `reads`: linearizable reads
//! - `sessions` and `lessor`: the two sides of keeping a lease alive (`session` is the handle for its users)
//! - `lease_calls`: calls for leases that callers keep alive themselves
//! - `steps`: membership requests
//! - `rounds`: the questions that a leader answers, and the rounds in which it confirms its leadership
//! - `founding`: founds a cluster exactly once
//! - `digests`: checks whether the replicas agree
//! - `peer_rejections`: peers that are not connected because one of the two rejects the other
//! - `log_times` and `request_trace`: the durations of the stages of a request
//!
//! The following parts surround the driver:
//!
//! - `inbox`: the queue of the driver's inputs
//! - `shared`: the state that the handles of a node share with the driver, with its parts `admission`, `node_state` and
//!   `replica_state`
//! - `log_worker`, `snapshot_worker` and `backups`: the threads that use the disk
//! - `assembly`: assembles a node from these parts
//! - `joining`: the files of a node that is joining
//! - `data_fault`: the kinds of errors that keep a node from starting
//! - `thread`: runs a node on real threads

mod admission;
mod answer;
mod assembly;
mod backups;
mod data_fault;
mod digests;
mod driver;
mod founding;
mod health;
mod identity;
mod inbox;
mod joining;
mod leader_queries;
mod lease_calls;
mod lessor;
mod log_times;
mod log_worker;
mod node_state;
mod offline;
mod parker;
mod peer_rejections;
mod proposals;
mod quota;
mod reads;
mod rejected_requests;
mod replica_state;
mod request_trace;
mod restored_from;
mod retain;
mod roster;
mod rounds;
mod session;
mod sessions;
mod settings;
mod shared;
mod slow;
mod snapshot_worker;
mod snapshots;
mod space;
mod status;
mod steps;
mod thread;
mod writing;

pub use answer::StopReason;
pub(crate) use answer::{CallError, CallResult, ReplyTo};
pub(crate) use assembly::{Assembly, Bells, Joined, StartError, is_founded, whose};
pub use data_fault::DataErrorKind;
pub use digests::EVERY as DIGEST_EVERY;
pub use health::{Health, HealthStatus};
pub(crate) use inbox::Input;
pub(crate) use joining::{contacts, disk_to_join, is_joining, told_of, was_told};
pub(crate) use lease_calls::LeaseRequest;
pub(crate) use offline::{Offline, OfflineError, Stopped, load_file};
pub(crate) use restored_from::{OriginError, RESTORING, RestoredFrom};
pub use retain::History;
pub(crate) use session::{Claim, Parting, SharedSession};
pub use session::{ResumeSessionError, SessionEndReason, SessionState};
pub(crate) use settings::{Contact, Drift, Settings};
pub(crate) use shared::{Follower, Shared};
pub use status::{MemberStatus, NodeStatus, Progress, Role};
pub(crate) use thread::Running;
pub(crate) use writing::PART_BYTES;

pub(crate) use crate::warm::WarmCopy;

// These exports are for a harness that schedules the parts of a node itself.
#[cfg(any(test, feature = "sim"))]
pub(crate) use {
    assembly::Assembled,
    driver::{Look, Next},
    lessor::Lessor,
    log_worker::LogTurn,
    snapshot_worker::SnapshotTurn,
};
