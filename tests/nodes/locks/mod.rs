//! Read/write locks, semaphores, several locks at once, and owners of any of them: what they let in, in
//! which order, and what is left when anything goes wrong.

mod bound;
mod multi_lock;
mod owners;
mod rw_lock;
mod semaphore;
