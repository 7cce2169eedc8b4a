//! Tests of real nodes in one process, as a program embeds them: normal operation, members that
//! crash, stop, join and leave, and the coordination recipes.
//!
//! All tests of this folder are in one test program. The tests wait more than they compute, so they run well in
//! parallel. Each further program would have to be linked separately. Tests that need the whole process, for its log or
//! its memory, are separate programs.

mod alarms;
mod backup;
mod bad_input;
mod black_holes;
mod boundaries;
mod cached;
mod candidacy;
mod certificates;
mod cluster;
mod complaints;
mod disks;
mod edge_cases;
mod elections;
mod etcd_waiters;
mod guarded_acks;
mod locks;
mod loopback;
mod members;
mod one_key;
mod operators;
mod queues;
mod rotten_memory;
mod serialized;
mod sessions;
mod snapshots;
mod stage;
mod stopped_nodes;
mod threads;
mod toolbox;
mod traits;
mod typed;
mod upgrades;
mod walkthroughs;
