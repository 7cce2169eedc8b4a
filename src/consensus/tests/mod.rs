//! Tests of the consensus as a whole: a small cluster with in-memory disks, the pitfalls of the
//! raft crate, and messages that no correct member sends.

#[cfg_attr(not(test), allow(dead_code, reason = "the fuzzed member has one of no faults"))]
mod disk;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod log;
mod machine;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod seeds;
#[cfg(test)]
mod traps;
#[cfg(test)]
mod world;
