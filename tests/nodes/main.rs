//! Real nodes in one process, as a program that embeds them has them: what it sees when all is well, when members
//! crash, stop, join and go, and what it can build of them.
//!
//! One program: these tests wait more than they compute, so that they do well side by side; and each program more is
//! compiled and linked on its own. Whoever needs the process for itself, for its log or its memory, is a program beside.

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
mod sessions;
mod snapshots;
mod stage;
mod stopped_nodes;
mod threads;
mod toolbox;
mod upgrades;
mod walkthroughs;
