//! Tests of the consensus as a whole: a small world of members with disks in memory, the traps of the
//! raft crate, and messages that no correct member sends.

mod disk;
mod hostile;
mod invariants;
mod log;
mod machine;
mod seeds;
mod traps;
mod world;
