//! Tests of the traits that programs rely on: types that threads share, calls that tasks send, and calls that are repeated.

use std::fmt::Debug;
use std::hash::Hash;

use bowline::auth::{Access, Secret, UserClient};
use bowline::cluster::{ClusterId, DiskId, Member, MembershipError, PeerTls, TransportError};
use bowline::coordination::{
    Barrier, Cached, Cell, Counter, DoubleBarrier, Group, GroupWatch, Latch, Membership, RunOnce,
    Sequence,
};
use bowline::election::{Campaign, Candidacy, Leader, Observe};
use bowline::kv::{DeleteCall, GetCall, PutCall, RangeCall, WatchCall};
use bowline::lease::{GrantCall, Lease, LeaseInfoCall, OpenSession, ResumeSession};
use bowline::lock::{
    Acquire, Fence, GuardTxn, Hold, LockCall, LockFuture, LockInfo, Locks, MultiGuard, Permit,
    ReadGuard, SavedHold, WriteGuard,
};
use bowline::queue::{Delivery, ItemId, PutItem, PutMany, Queue, QueueTaker, TakeCall};
use bowline::{
    Blocking, Client, Compare, Config, Election, Error, Event, Guard, GuardError, Health, KeyRange,
    KeyValue, LeadError, LeaderTask, Leadership, LeaseId, LockError, LockState, Metrics,
    MetricsSnapshot, Mutex, Node, NodeId, NodeStatus, Op, Owner, RwLock, Semaphore, Session,
    StartError, Token, TxnCall, Watch, WatchError,
};

use crate::stage::lasting;

/// Fails to compile unless threads can share each type.
macro_rules! shared {
    ($($type:ty),* $(,)?) => {
        const _: () = {
            const fn shared<T: Send + Sync + 'static>() {}
            $(shared::<$type>();)*
        };
    };
}

/// Fails to compile unless each call can be moved to a task, and its future can move between threads.
macro_rules! calls {
    ($($type:ty),* $(,)?) => {
        const _: () = {
            const fn call<T: IntoFuture<IntoFuture: Send + 'static> + Clone + Debug + Send>() {}
            $(call::<$type>();)*
        };
    };
}

/// Fails to compile unless each type can be a key of a map and be printed.
macro_rules! values {
    ($($type:ty),* $(,)?) => {
        const _: () = {
            const fn value<T: Clone + Eq + Hash + Debug + Send + Sync + 'static>() {}
            $(value::<$type>();)*
        };
    };
}

shared!(Node, Client, UserClient, Session, Config, Health, NodeStatus, Metrics, MetricsSnapshot);
shared!(Mutex, RwLock, Semaphore, Owner, Locks, LockInfo, Fence, LockState, Lease, Watch);
shared!(Guard, ReadGuard, WriteGuard, Permit, MultiGuard, Hold, GuardTxn, Acquire<Guard>);
shared!(Election, LeaderTask, Leadership, Candidacy);
shared!(Queue, QueueTaker, Delivery, Barrier, Cell, Counter, DoubleBarrier, Group);
shared!(Latch, Membership, RunOnce, Sequence, Cached<String>, Access, Secret, Member, PeerTls);
shared!(TxnCall, Error, StartError, LockError, GuardError, LeadError, WatchError);
shared!(MembershipError, TransportError);

calls!(PutCall, GetCall, RangeCall, DeleteCall, WatchCall, GrantCall, LeaseInfoCall);
calls!(OpenSession, ResumeSession, LockCall<Guard>, Campaign, PutItem, PutMany, TakeCall);
calls!(bowline::cluster::ReadyCall);
calls!(bowline::coordination::CompareAndSet, bowline::coordination::PutIfAbsent);

values!(KeyValue, Event, KeyRange, Compare, Op, Token, LeaseId, NodeId, ClusterId, DiskId);
values!(SavedHold, ItemId, Leader, bowline::Effect, bowline::HealthStatus, bowline::SessionState);

/// Other futures that programs await.
const _: () = {
    const fn future<T: Future + Send>() {}
    future::<LockFuture<LockCall<Guard>>>();
    future::<Acquire<Guard>>();
    /// Streams, which one task reads.
    const fn sent<T: Send + 'static>() {}
    sent::<Observe>();
    sent::<GroupWatch>();
};

#[test]
fn ids_have_hexadecimal_formats() {
    let member = NodeId::new(0xab).unwrap();
    assert_eq!(format!("{member} {member:x} {member:#X} {member:06x}"), "171 ab 0xAB 0000ab");
    assert_eq!(format!("{:x}", LeaseId::new(0x7f3a).unwrap()), "7f3a");
    // Only the lower 64 bits of a cluster's id are displayed.
    assert_eq!(format!("{:x} {:x}", ClusterId(1 << 64 | 0xc), DiskId(0xd)), "c d");
}

#[test]
fn cloned_call_is_a_request_of_its_own() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let call = kv.put("k", "v");
    let first = call.clone().block().unwrap().revision;
    assert_eq!(call.block().unwrap().revision, first.next());

    let add = kv.txn().when(Compare::version("k").eq(2u64)).then(Op::delete("k"));
    let replies = [add.clone().commit().block().unwrap(), add.commit().block().unwrap()];
    assert_eq!(replies.map(|reply| reply.succeeded), [true, false]);

    let mutex = cluster.node(0).session().block().unwrap().mutex("lock");
    let lock = mutex.lock();
    for call in [lock.clone(), lock] {
        call.block().unwrap().release().block().unwrap();
    }
}
