//! Models of common objects. Each model defines the sequential behavior of an object and the notation of its
//! calls in a history.

mod election;
mod kv;
mod mutex;
mod queue;
mod register;
mod semaphore;
mod transactions;

pub use election::{CurrentLeader, ElectionCall, ElectionModel, ElectionReply, ElectionState};
pub use kv::{Kv, KvCall, KvReply, KvState, Row, Seen};
pub use mutex::{Held, MutexCall, MutexModel, MutexReply, MutexState};
pub use queue::{QueueCall, QueueModel, QueueReply};
pub use register::{Register, RegisterCall, RegisterReply};
pub use semaphore::{SemaphoreCall, SemaphoreModel, SemaphoreReply};
pub use transactions::{ListAppend, ListTxn, RegisterTxn, TxnStep, WriteRead};
