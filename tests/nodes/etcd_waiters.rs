//! Tests of one lock queue with two kinds of clients: Bowline's mutex and election, and waiters that do manually what
//! etcd's concurrency packages do. All use the same keys and transactions. etcd's clients wait by watching for the
//! deletion of the key just before their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{Blocking, Error, Revision, Session, SortOrder, SortTarget, TxnResult};
use bowline::{
    Client, Compare, EventKind, KeyRange, KeyValue, LeaseId, Op, Put,
    kv::{PutLease, PutValue},
};

use crate::stage::{Begun, another_session, lasting, mortal, session, until_places};

/// A holder that acquired the lock as etcd's clients do.
struct EtcdLock {
    kv: Client,
    key: String,
}

impl EtcdLock {
    /// `concurrency.Mutex.Lock`: puts its own key if it does not exist, and waits for the deletion
    /// of the newest key that is older than its own, until there is no older key. Then the client
    /// checks that its own key still exists.
    async fn lock(kv: &Client, name: &str, lease: LeaseId) -> Result<Self, Error> {
        let key = format!("{name}/{lease}");
        let put = Put {
            key: key.clone().into(),
            value: PutValue::Set("".into()),
            lease: PutLease::Attach(lease),
            prev_kv: false,
        };
        let txn = kv.txn().when(Compare::create_revision(key.clone()).eq(0)).then(Op::Put(put));
        let reply = txn.or_else(Op::get(key.clone())).commit().await?;
        let mine = match reply.results.into_iter().next() {
            Some(TxnResult::Range(mut range)) if !reply.succeeded => {
                range.kvs.remove(0).create_revision
            }
            _ => reply.revision,
        };
        while let Some((before, revision)) = Self::before(kv, name, mine).await? {
            let mut watch = kv.watch(before.key).from(Revision(revision.get() + 1)).await?;
            'gone: while let Some(Ok(batch)) = watch.next().await {
                for event in batch.events {
                    if event.kind == EventKind::Delete {
                        break 'gone;
                    }
                }
            }
        }
        let still = kv.get(key.clone()).await?;
        assert!(still.is_some(), "the session of the waiter has expired");
        Ok(Self { kv: kv.clone(), key })
    }

    /// Returns the newest key in the queue that is older than this revision, and the revision of the read.
    async fn before(
        kv: &Client,
        name: &str,
        mine: Revision,
    ) -> Result<Option<(KeyValue, Revision)>, Error> {
        let range = kv.range(KeyRange::prefix(format!("{name}/")));
        let mut reply = range.sort(SortTarget::Create, SortOrder::Descend).await?;
        let revision = reply.revision;
        reply.kvs.retain(|row| row.create_revision < mine);
        Ok(reply.kvs.into_iter().next().map(|row| (row, revision)))
    }

    /// `Mutex.Unlock`: deletes the key without a condition.
    async fn unlock(self) -> Result<(), Error> {
        self.kv.delete(self.key).await.map(drop)
    }
}

/// Checks that exactly one client holds the lock at a time.
#[derive(Default)]
struct Ledger {
    inside: AtomicUsize,
    order: Mutex<Vec<String>>,
}

impl Ledger {
    async fn hold(&self, who: &str) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "{who} is not alone");
        tokio::task::yield_now().await;
        self.order.lock().unwrap().push(who.to_owned());
        assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 1, "{who} is not alone");
    }
}

async fn etcd(kv: Client, lease: LeaseId, ledger: Arc<Ledger>, who: String) {
    let lock = EtcdLock::lock(&kv, "shared", lease).await.unwrap();
    ledger.hold(&who).await;
    lock.unlock().await.unwrap();
}

async fn mutex(session: Session, ledger: Arc<Ledger>, who: String) {
    let guard = session.mutex("shared").lock().reason("a mutex").await.unwrap();
    ledger.hold(&who).await;
    guard.release().await.unwrap();
}

async fn election(session: Session, ledger: Arc<Ledger>, who: String) {
    let leads = session.election("shared").campaign(who.clone()).await.unwrap();
    ledger.hold(&who).await;
    leads.resign().await.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

fn lease(cluster: &Cluster, member: usize) -> LeaseId {
    cluster.node(member).client().grant(Duration::from_secs(600)).block().unwrap().id
}

#[test]
fn bowline_and_etcd_clients_are_served_in_arrival_order() {
    let cluster = lasting(3);
    let runtime = runtime();
    let ledger = Arc::new(Ledger::default());
    let first = session(&cluster, 0).mutex("shared").lock().block().unwrap();
    let mut tasks = Vec::new();
    let mut want = Vec::new();
    for at in 0..12 {
        let (member, who) = (at % 3, format!("{at}"));
        let own = another_session(&cluster, member, &who);
        let ledger = Arc::clone(&ledger);
        want.push(who.clone());
        tasks.push(match at % 4 {
            0 | 2 => {
                let (kv, lease) = (cluster.node(member).client(), lease(&cluster, member));
                runtime.spawn(etcd(kv, lease, ledger, who))
            }
            1 => runtime.spawn(mutex(own, ledger, who)),
            _ => runtime.spawn(election(own, ledger, who)),
        });
        until_places(cluster.node(0), "shared", at as u64 + 2);
    }
    first.release().block().unwrap();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert_eq!(*ledger.order.lock().unwrap(), want);
    until_places(cluster.node(0), "shared", 0);
}

#[test]
fn mixed_waiters_take_turns_after_a_node_dies() {
    // The sessions of both kinds on the killed node end by their TTL.
    let mut cluster = lasting(3);
    let runtime = runtime();
    let ledger = Arc::new(Ledger::default());
    let dying = mortal(&cluster, 2);
    let held = dying.mutex("shared").lock().block().unwrap();
    let behind = Begun::new(mortal(&cluster, 2).election("shared").campaign("x"));
    until_places(cluster.node(0), "shared", 2);
    let mut tasks = Vec::new();
    for at in 0..9 {
        let (member, who) = (at % 2, format!("{at}"));
        let own = another_session(&cluster, member, &who);
        let ledger = Arc::clone(&ledger);
        tasks.push(match at % 3 {
            0 => {
                let (kv, lease) = (cluster.node(member).client(), lease(&cluster, member));
                runtime.spawn(etcd(kv, lease, ledger, who))
            }
            1 => runtime.spawn(mutex(own, ledger, who)),
            _ => runtime.spawn(election(own, ledger, who)),
        });
        until_places(cluster.node(0), "shared", at as u64 + 3);
    }
    cluster.kill(2).block();
    assert!(!held.is_held());
    drop((held, behind));
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert_eq!(ledger.order.lock().unwrap().len(), 9);
    until_places(cluster.node(0), "shared", 0);
}

#[test]
fn thousand_tasks_on_one_session_use_local_handoffs() {
    let cluster = lasting(3);
    let runtime = runtime();
    let counted = Arc::new(AtomicUsize::new(0));
    let session = session(&cluster, 1);
    let before = cluster.node(1).client().revision();
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let (session, counted) = (session.clone(), Arc::clone(&counted));
            runtime.spawn(async move {
                let guard = session.mutex("counter").lock().await.unwrap();
                let seen = counted.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counted.store(seen + 1, Ordering::Relaxed);
                guard.token()
            })
        })
        .collect();
    let mut tokens: Vec<_> =
        tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
    assert_eq!(counted.load(Ordering::Relaxed), 1_000);
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 1_000, "every hold has a token of its own");
    until_places(cluster.node(1), "counter", 0);
    let spent = cluster.node(1).client().revision().get() - before.get();
    assert!(spent < 200, "{spent} revisions: the lock was not passed on inside the node");
}
