//! Models of common objects. Each model defines the sequential behavior of an object and the notation of its
//! calls in a history.

/// Writes the calls and replies of a model as they are written in a history.
macro_rules! texts_as_written {
    () => {
        fn call_text(&self, call: &Self::Call) -> String {
            crate::table::call_text(call)
        }

        fn reply_text(&self, call: &Self::Call, reply: &Self::Reply) -> String {
            crate::table::reply_text(call, reply)
        }
    };
}

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
