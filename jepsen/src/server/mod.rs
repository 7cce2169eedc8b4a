//! Members that are servers: processes of `bowline serve`, and clients that use the etcd protocol.
//!
//! ```text
//!   Workload ─▶ Caller ─▶ Process ─▶ Clients ══ gRPC ══ bowline serve ══ proxy ══ the other servers
//!                                      │
//!                                      ├─ slots: locks, leaderships, watches
//!                                      └─ sessions: leases that are kept alive
//! ```
//!
//! The harness controls members by orders ([`wire`](crate::wire)). Servers get the same orders as processes that embed
//! a node, so workloads, faults and checks work with both kinds of members. This module translates the orders to the
//! etcd protocol. The clients of a member call only that member, over one connection. When the process of the member
//! ends, its clients give up their holds. But the clients do not run *in* that process: pausing a member does not pause
//! its clients. They continue to use their holds until the leases have expired by the clients' own clocks.

mod command;
mod held;
mod kv;
mod members;
mod outcome;
mod session;
mod watch;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::{Channel, Endpoint};

use crate::calls::{Call, Reply};
use crate::process::Remote;
use crate::slots::Shelf;
use crate::wire::{Answer, Order};
use bowline_proto::etcdserverpb as pb;

pub(crate) use command::{Seat, command};
use held::Holding;
use outcome::Miss;
use session::Session;

/// Maximum time to connect.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

/// Maximum time to wait for the reply to a query of the leader. Callers wait no longer.
const LOOKS_WITHIN: Duration = Duration::from_secs(1);

/// The clients of one member, for one run of its process.
pub(crate) struct Clients {
    channel: Channel,
    slots: Shelf<Holding>,
    /// Sessions without a hold.
    idle: Mutex<Vec<Session>>,
    terms: Terms,
}

/// The time limits of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// The call deadline.
    pub(crate) deadline: Duration,
    /// The session TTL. The TTL is rounded to whole seconds, as the TTL of a lease requires.
    pub(crate) session: Duration,
}

impl Remote for Clients {
    fn ask(self: Arc<Self>, order: &Order, received: mpsc::Sender<Answer>) {
        let (clients, order) = (self, order.clone());
        runtime().spawn(async move {
            let limit = match &order {
                Order::Look => LOOKS_WITHIN,
                Order::Call(call) => clients.terms.deadline + call.waits(),
                _ => clients.terms.deadline,
            };
            let answer = tokio::time::timeout(limit, clients.answer(order)).await;
            let late = |_| Answer::Unknown("no reply before the deadline".to_owned());
            // Sending fails only if the caller no longer waits.
            drop(received.send(answer.unwrap_or_else(late)));
        });
    }
}

/// Returns the runtime of all clients.
///
/// # Panics
/// Panics if the operating system cannot start the threads.
fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let start = || {
        let builder = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        builder.expect("there are threads for clients")
    };
    RUNTIME.get_or_init(start).handle()
}

impl Clients {
    /// Returns the clients of the server at this address. The server need not run yet.
    pub(crate) fn of(address: &str, terms: Terms) -> Arc<Self> {
        // Creating a channel spawns a task, which needs the runtime.
        let _inside = runtime().enter();
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.expect("an address of a port is a part of a URL");
        let channel = endpoint.connect_timeout(CONNECTS_WITHIN).tcp_nodelay(true).connect_lazy();
        Arc::new(Self { channel, slots: Shelf::default(), idle: Mutex::default(), terms })
    }

    async fn answer(&self, order: Order) -> Answer {
        let answer = match order {
            Order::Call(call) => {
                let reply = self.reply(*call).await;
                reply.map(|reply| Answer::Came(Box::new(reply)))
            }
            Order::Write(key) => self.write(&key).await,
            Order::Put(key) => self.put(&key, "v", 0).await.map(Answer::Done),
            Order::Delete(key) => self.delete(&key).await.map(Answer::Done),
            Order::Compact(revision) => self.compact(revision).await.map(Answer::Done),
            Order::Rows => self.rows().await.map(Answer::Rows),
            Order::Look => self.status().await,
            Order::Status => match self.range("status", false).await {
                Ok(_) => self.status().await,
                Err(miss) => Err(miss),
            },
            Order::Grant | Order::Revoke(_) | Order::Arm(..) | Order::Fault(_) => {
                Err(Miss::Refused("order not supported by servers".to_owned()))
            }
        };
        answer.unwrap_or_else(Answer::from)
    }

    async fn reply(&self, call: Call) -> Result<Reply, Miss> {
        match call {
            Call::Get { key, local } => self.range(&key, local).await.map(kv::rows),
            Call::List { prefix } => self.list(&prefix).await.map(kv::rows),
            Call::Put { key, value, lease } => {
                let lease = lease.unwrap_or(0).cast_signed();
                self.put(&key, &value, lease).await.map(|revision| Reply::Done { revision })
            }
            Call::Swap { key, expect, value } => {
                let when = match expect {
                    Some(expect) => kv::holds(&key, &expect),
                    None => kv::created_at(&key, 0),
                };
                self.txn(vec![when], vec![kv::put(&key, &value)]).await.map(kv::swapped)
            }
            Call::Commit { when, put } => {
                let when = when.iter().map(|(key, at)| kv::modified_at(key, *at)).collect();
                let put = put.iter().map(|(key, value)| kv::put(key, value)).collect();
                self.txn(when, put).await.map(kv::swapped)
            }
            Call::Add { key, by } => self.add(&key, by).await.map(Reply::Number),
            Call::Grant { ttl_ms } => {
                let seconds = ttl_ms.div_ceil(1000).cast_signed();
                let lease = session::grant(&self.channel, seconds).await?;
                Ok(Reply::Lease(lease.id.cast_unsigned()))
            }
            Call::Acquire { slot, lock, kind, wait_ms } => {
                self.acquire(slot, &lock, &kind, Duration::from_millis(wait_ms)).await
            }
            Call::Campaign { slot, name, value, wait_ms } => {
                self.campaign(slot, &name, &value, Duration::from_millis(wait_ms)).await
            }
            Call::Look { slot } => self.look(slot),
            Call::Release { slot } => self.release(&slot).await,
            Call::Forget { slot } => {
                self.slots.forget(slot);
                Ok(Reply::Held { held: false, at: None })
            }
            Call::AddUnderLock { lock, key, element, think_ms, guarded, wait_ms } => {
                let wait = Duration::from_millis(wait_ms);
                let think = Duration::from_millis(think_ms);
                self.add_under_lock(&lock, &key, element, (wait, think), guarded).await
            }
            Call::Leader { name } => self.leader_of(&name).await,
            Call::Watch { slot, prefix, from } => self.watch(slot, &prefix, from).await,
            Call::Events { slot, wait_ms } => {
                self.events(slot, Duration::from_millis(wait_ms)).await
            }
            Call::Transfer => self.transfer().await,
            Call::Backup { file } => self.back_up(&file).await,
            Call::Members => self.members().await,
            Call::Offer { .. }
            | Call::Take { .. }
            | Call::Acknowledge { .. }
            | Call::CommitHeld { .. }
            | Call::Promote { .. }
            | Call::Remove { .. } => Err(Miss::Refused("call not supported by servers".to_owned())),
        }
    }

    /// Returns a session without a hold. Reuses a session whose lease certainly exists, or opens a new session.
    async fn session(&self) -> Result<Session, Miss> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(session) if session.is_believed() => return Ok(session),
                // Dropping the session revokes its lease.
                Some(_) => {}
                None => return Session::open(&self.channel, self.terms.session).await,
            }
        }
    }

    /// Returns a session that has given up its hold.
    fn is_idle(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}
