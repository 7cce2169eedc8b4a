//! Models of common objects. Each defines the sequential behavior of an object and the notation of its calls in a
//! history.

mod election;
mod kv;
mod mutex;
mod queue;
mod register;
mod semaphore;
mod transactions;

pub use election::{CurrentLeader, Election, ElectionCall, ElectionReply, ElectionState};
pub use kv::{Kv, KvCall, KvReply, KvState, Row, Seen};
pub use mutex::{Held, Mutex, MutexCall, MutexReply, MutexState};
pub use queue::{Queue, QueueCall, QueueReply};
pub use register::{Register, RegisterCall, RegisterReply};
pub use semaphore::{Semaphore, SemaphoreCall, SemaphoreReply};
pub use transactions::{ListAppend, ListTxn, RegisterTxn, Step, WriteRead};
