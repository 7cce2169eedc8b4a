//! Tests of read/write locks, semaphores, multiple locks and owners: which requests are granted, in
//! which order, and which keys are left after failures.

mod bound;
mod multi_lock;
mod owners;
mod rw_lock;
mod semaphore;
