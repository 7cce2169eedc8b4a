//! The workload of a simulated world: clients on every node that put, delete, compare and set, transfer money between
//! accounts, read linearizably and locally, hold leases, watch and use locks. They report every request and every reply
//! to the judge.
//!
//! Each value is put only once in a world, so that it identifies its request.

mod broad;
mod leasing;
mod owning;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::caller::{Fate, SimCaller};
use super::clock::Timeline;
use super::executor::{Spawner, Timers};
use super::judge::{CallId, Judge, Sign};
use super::keeping;
use super::locking::{Player, Program};
use super::plan::{between, index, one_in};
use super::rng::Rng;
use super::watching;
use crate::api::{Error, Session};
use crate::env::Entropy;
use crate::model::{
    Command, Compare, Delete, KeyRange, KeyValue, LeaseId, NodeId, Op, Put, PutLease, PutValue,
    Range, Reply, Revision, Txn, TxnResult,
};
use crate::recipes::SavedHold;

/// Number of keys that the clients share.
const KEYS: usize = 8;

/// Number of accounts, and the initial balance of each.
const ACCOUNTS: usize = 4;
const BALANCE: i64 = 100;

/// Lowest lease id that clients choose.
const LEASES_FROM: u64 = 0x4000_0000_0000_0000;

/// The state that all tasks of a world share.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) judge: Rc<RefCell<Judge>>,
    pub(crate) timers: Timers,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) spawner: Spawner,
    /// Maximum pause of a client between two operations.
    pub(crate) think_max: Duration,
    /// TTL of the sessions of lock programs.
    pub(crate) session_ttl: Duration,
    /// Set when the clients should end.
    pub(crate) closing: Rc<Cell<bool>>,
    /// Tasks that put items into a queue. The last item of a task may arrive after the scene closes.
    pub(crate) putting: Presence,
    /// Leases of sessions with their lock delays, for programs that resume a session.
    pub(crate) known_leases: Rc<RefCell<VecDeque<(LeaseId, Duration)>>>,
    /// Leases that were revoked recently.
    pub(crate) revoked_leases: Rc<RefCell<VecDeque<LeaseId>>>,
    /// Saved holds of programs, by node and lock, as if on the disk of the node.
    pub(crate) tickets: Rc<RefCell<BTreeMap<(NodeId, &'static str), SavedHold>>>,
    /// Keys owned by single clients that were put again and have stayed, the oldest first.
    kept: Rc<RefCell<VecDeque<Bytes>>>,
    unique: Rc<Cell<u64>>,
}

impl Scene {
    pub(crate) fn new(
        judge: Rc<RefCell<Judge>>,
        timers: Timers,
        timeline: Arc<Timeline>,
        spawner: Spawner,
        think_max: Duration,
        session_ttl: Duration,
    ) -> Self {
        let (closing, putting, unique, known_leases, tickets, kept) = Default::default();
        let revoked_leases = Rc::default();
        Self {
            judge,
            timers,
            timeline,
            spawner,
            think_max,
            session_ttl,
            closing,
            putting,
            known_leases,
            revoked_leases,
            tickets,
            kept,
            unique,
        }
    }

    /// Returns a value that no other request puts, with a label.
    pub(crate) fn value(&self, says: &str) -> Bytes {
        self.unique.set(self.unique.get() + 1);
        format!("#{}:{says}", self.unique.get()).into()
    }

    /// Returns a lease id that no other request uses and that is far from the ids that the store assigns.
    pub(crate) fn lease(&self) -> LeaseId {
        self.unique.set(self.unique.get() + 1);
        LeaseId::new(LEASES_FROM + self.unique.get()).expect("not zero")
    }

    /// Closes a session of a program on a node. The call ends within the call deadline, and the keys of a closed
    /// session are gone.
    pub(crate) async fn close(&self, node: NodeId, session: &Session) {
        let may_take = session.shared().settings.call_deadline;
        let call = self.judge.borrow_mut().call(node, "close session", may_take);
        let answer = session.close().await;
        let mut judge = self.judge.borrow_mut();
        match answer {
            Ok(()) => {
                judge.returned(call);
                judge.session_closed(session.lease());
            }
            // The session was detached or not renewed in time, so it expires.
            Err(Error::SessionEnded { .. }) => judge.returned(call),
            Err(_) => judge.returned_without_result(call),
        }
    }

    pub(crate) async fn think(&self, rng: &Rng) {
        self.timers.sleep(between(rng, Duration::from_millis(1), self.think_max)).await;
    }
}

/// The number of tasks that are doing something. A task that dies with its node no longer counts.
#[derive(Clone, Default)]
pub(crate) struct Presence(Rc<Cell<usize>>);

/// A task that counts until this is dropped.
pub(crate) struct Present(Rc<Cell<usize>>);

impl Presence {
    pub(crate) fn enter(&self) -> Present {
        self.0.set(self.0.get() + 1);
        Present(self.0.clone())
    }

    pub(crate) fn is_nobody(&self) -> bool {
        self.0.get() == 0
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Returns the label of a value.
fn says(value: &[u8]) -> &str {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split_once(':').map_or("", |(_, says)| says)
}

/// A client that makes one request after another until the scene closes.
pub(crate) struct WorkloadClient {
    scene: Scene,
    caller: SimCaller,
    node: NodeId,
    rng: Rng,
    /// The newest revision that this client has seen in its local reads and writes.
    seen: Revision,
    /// A key that only this client uses, and the revision at which it was put.
    own: Option<(Bytes, Revision)>,
}

/// Starts the tasks of a process.
pub(crate) fn start(
    scene: &Scene,
    caller: &SimCaller,
    node: NodeId,
    at: usize,
    clients: u64,
    programs: &[Program],
    rng: &Rng,
) {
    for _ in 0..clients {
        let client = WorkloadClient {
            scene: scene.clone(),
            caller: caller.clone(),
            node,
            rng: Rng::new(rng.next_u64()),
            seen: Revision(0),
            own: None,
        };
        scene.spawner.spawn(Some(at), client.live());
    }
    for program in programs {
        let rng = Rng::new(rng.next_u64());
        let (scene, caller) = (scene.clone(), caller.clone());
        program.start(&Player { scene, caller, node, at, rng });
    }
    keeping::start(scene, caller, node, at, Rng::new(rng.next_u64()));
    let range = [KeyRange::all(), KeyRange::prefix("kv/"), KeyRange::prefix("acct/")];
    let range = range[index(rng, range.len())].clone();
    let slow = one_in(rng, 3);
    scene.spawner.spawn(
        Some(at),
        watching::live(scene.clone(), caller.clone(), node, range, slow, Rng::new(rng.next_u64())),
    );
}

/// Starts one task on each of these nodes after the storm, which writes, reads everything and takes every lock, with
/// retries. Counts the tasks that have completed.
pub(crate) fn last_round(
    scene: &Scene,
    places: &[(usize, NodeId, SimCaller)],
    programs: &[Program],
) -> Rc<Cell<usize>> {
    let done: Rc<Cell<usize>> = Rc::default();
    for (at, node, caller) in places {
        let mut client = WorkloadClient {
            scene: scene.clone(),
            caller: caller.clone(),
            node: *node,
            rng: Rng::new(node.get()),
            seen: Revision(0),
            own: None,
        };
        let player = Player {
            scene: scene.clone(),
            caller: caller.clone(),
            node: *node,
            at: *at,
            rng: Rng::new(node.get()),
        };
        let (done, programs) = (done.clone(), programs.to_vec());
        scene.spawner.spawn(Some(*at), async move {
            while !client.put().await {
                client.scene.think(&client.rng).await;
            }
            while !client.read_all().await {
                client.scene.think(&client.rng).await;
            }
            for program in programs {
                program.once(&player).await;
            }
            done.set(done.get() + 1);
        });
    }
    done
}

impl WorkloadClient {
    async fn live(mut self) {
        while !self.scene.closing.get() {
            match self.rng.below(100) {
                0..28 => drop(self.put().await),
                28..40 => self.compare_and_set().await,
                40..52 => self.transfer().await,
                52..64 => self.read().await,
                64..70 => self.broad().await,
                70..74 => drop(self.read_all().await),
                74..77 => self.read_the_past().await,
                77..86 => self.local_read().await,
                86..88 => drop(self.delete(self.key(), false).await),
                88..92 => self.come_or_go().await,
                92..98 => self.lease().await,
                98 => self.compact().await,
                _ => self.impossible().await,
            }
            self.scene.think(&self.rng).await;
        }
    }

    fn key(&self) -> Bytes {
        format!("kv/{}", index(&self.rng, KEYS)).into()
    }

    /// Sends a command and reports its outcome to the judge, with the evidence that would show that it was applied.
    /// Returns `None` if it was not applied or the outcome is unknown.
    async fn change(
        &self,
        what: &'static str,
        command: Command,
        sign: Sign<'_>,
    ) -> Option<Result<Reply, Fate>> {
        let answer = self.caller.write(command);
        self.asked(what, sign, answer).await
    }

    /// Like [`WorkloadClient::change`], for any request.
    async fn asked<T>(
        &self,
        what: &'static str,
        sign: Sign<'_>,
        answer: impl Future<Output = Result<T, Fate>>,
    ) -> Option<Result<T, Fate>> {
        let call = self.scene.judge.borrow_mut().call(self.node, what, self.caller.deadline());
        match answer.await {
            Ok(reply) => {
                self.scene.judge.borrow_mut().returned(call);
                Some(Ok(reply))
            }
            Err(fate) => {
                self.record_failure(call, sign, &fate);
                matches!(fate, Fate::Refused(_)).then_some(Err(fate))
            }
        }
    }

    /// Reports a call that has ended without a result.
    fn record_failure(&self, call: CallId, sign: Sign<'_>, fate: &Fate) {
        let mut judge = self.scene.judge.borrow_mut();
        match fate {
            Fate::Refused(_) => judge.returned(call),
            Fate::NotApplied | Fate::Unknown => judge.returned_without_result(call),
        }
        match fate {
            Fate::Refused(_) | Fate::NotApplied => judge.record_not_applied(sign),
            Fate::Unknown => judge.unknown(),
        }
    }

    /// Puts a value. Returns whether there was a reply.
    async fn put(&mut self) -> bool {
        self.put_at(self.key()).await.is_some()
    }

    /// Puts a value at a key. Returns the revision if there was a reply.
    async fn put_at(&mut self, key: Bytes) -> Option<Revision> {
        let value = self.scene.value("put");
        let puts = [(key.clone(), value.clone())];
        let floor = self.scene.judge.borrow().floor();
        let command = Command::Put(Put::new(key, value));
        let Some(Ok(reply)) = self.change("put", command, Sign::Puts(&puts)).await else {
            return None;
        };
        self.scene.judge.borrow_mut().wrote("put", floor, reply.revision(), &puts);
        self.saw(reply.revision());
        Some(reply.revision())
    }

    /// Deletes a key. Returns whether the request got a reply. If `is_own` is set, the key exists and only this client
    /// uses it.
    async fn delete(&mut self, key: Bytes, is_own: bool) -> bool {
        let floor = self.scene.judge.borrow().floor();
        let command = Command::Delete(Delete::new(KeyRange::key(key.clone())));
        let sign = if is_own { Sign::Deletes(&key) } else { Sign::Nothing };
        let Some(Ok(Reply::Delete(reply))) = self.change("delete", command, sign).await else {
            return false;
        };
        let mut judge = self.scene.judge.borrow_mut();
        if reply.deleted == 0 {
            judge.changed_nothing("delete of nothing", floor, reply.revision);
        } else {
            judge.wrote("delete", floor, reply.revision, &[]);
        }
        let gone = judge.truth().row_at(&key, reply.revision).is_none();
        judge.expect(gone && (reply.deleted > 0 || !is_own), "X-LIN", || {
            format!("{key:?}, of this client alone: {is_own}, was deleted: {reply:?}")
        });
        drop(judge);
        self.saw(reply.revision);
        true
    }

    /// Puts a key if it is unchanged since the last read.
    async fn compare_and_set(&mut self) {
        let key = self.key();
        let Some((row, _)) = self.get_local(&key).await else { return };
        if one_in(&self.rng, 2) {
            self.scene.think(&self.rng).await;
        }
        let value = self.scene.value("cas");
        let modified = row.map_or(Revision(0), |row| row.mod_revision);
        let txn = Txn {
            compares: vec![Compare::mod_revision(key.clone()).eq(modified)],
            success: vec![Op::put(key.clone(), value.clone())],
            failure: vec![Op::get(key.clone())],
        };
        self.transact("compare and set", txn, &[(key, value)]).await;
    }

    /// Transfers money from one account to another. Creates the accounts if there are none.
    async fn transfer(&mut self) {
        let floor = self.scene.judge.borrow().floor();
        let Some((rows, revision)) = self.read_range("acct/").await else { return };
        let range = KeyRange::prefix("acct/");
        self.scene.judge.borrow_mut().read(floor, &range, revision, &rows);
        if rows.is_empty() {
            return self.open_accounts().await;
        }
        self.check_sum(&rows);
        let (from, to) = (index(&self.rng, ACCOUNTS), index(&self.rng, ACCOUNTS - 1));
        let to = if to >= from { to + 1 } else { to };
        let (Some(from), Some(to)) = (rows.get(from), rows.get(to)) else { return };
        let amount = i64::try_from(self.rng.below(20)).expect("small");
        let puts = [
            (from.key.clone(), self.scene.value(&(balance(from) - amount).to_string())),
            (to.key.clone(), self.scene.value(&(balance(to) + amount).to_string())),
        ];
        let compares = vec![
            Compare::mod_revision(from.key.clone()).eq(from.mod_revision),
            Compare::mod_revision(to.key.clone()).eq(to.mod_revision),
        ];
        let success = puts.iter().map(|(key, value)| Op::put(key.clone(), value.clone())).collect();
        self.transact("transfer", Txn { compares, success, failure: Vec::new() }, &puts).await;
    }

    async fn open_accounts(&mut self) {
        let puts: Vec<(Bytes, Bytes)> = (0..ACCOUNTS)
            .map(|account| {
                (format!("acct/{account}").into(), self.scene.value(&BALANCE.to_string()))
            })
            .collect();
        let compares = puts.iter().map(|(key, _)| Compare::missing(key.clone())).collect();
        let success = puts.iter().map(|(key, value)| Op::put(key.clone(), value.clone())).collect();
        self.transact("open accounts", Txn { compares, success, failure: Vec::new() }, &puts).await;
    }

    fn check_sum(&self, rows: &[KeyValue]) {
        let sum: i64 = rows.iter().map(balance).sum();
        let expected = BALANCE * i64::try_from(ACCOUNTS).expect("few");
        let right = rows.len() == ACCOUNTS && sum == expected;
        self.scene.judge.borrow_mut().expect(right, "X-LIN", || {
            format!("the accounts hold {sum} together, not {expected}: {rows:?}")
        });
    }

    async fn transact(&mut self, what: &'static str, txn: Txn, puts: &[(Bytes, Bytes)]) {
        let floor = self.scene.judge.borrow().floor();
        let (compares, looks) = (txn.compares.clone(), txn.failure.clone());
        let answer = self.change(what, Command::Txn(txn), Sign::Puts(puts)).await;
        let Some(Ok(Reply::Txn(reply))) = answer else { return };
        let mut judge = self.scene.judge.borrow_mut();
        if reply.succeeded {
            judge.wrote(what, floor, reply.revision, puts);
            judge.compared(&compares, true, Revision(reply.revision.get() - 1));
        } else {
            judge.changed_nothing(what, floor, reply.revision);
            judge.compared(&compares, false, reply.revision);
            judge.not_applied(puts);
            let range = KeyRange::key(puts[0].0.clone());
            match &reply.results[..] {
                [TxnResult::Range(read)] => {
                    judge.check_rows("M-TXN", &range, reply.revision, &read.kvs);
                }
                results => judge.expect(looks.is_empty() && results.is_empty(), "M-TXN", || {
                    format!("{what} asks for {looks:?} and is told {results:?}")
                }),
            }
        }
        drop(judge);
        self.saw(reply.revision);
    }

    async fn read(&mut self) {
        let key = self.key();
        let prefix = String::from_utf8_lossy(&key).into_owned();
        let floor = self.scene.judge.borrow().floor();
        // The prefix is a whole key, so there is at most one row.
        let Some((rows, revision)) = self.read_range(&prefix).await else { return };
        let mut judge = self.scene.judge.borrow_mut();
        judge.read(floor, &KeyRange::prefix(key), revision, &rows);
    }

    /// Reads everything. Returns whether there was a reply, which must show every row.
    async fn read_all(&mut self) -> bool {
        let floor = self.scene.judge.borrow().floor();
        let Some((rows, revision)) = self.read_range("").await else { return false };
        self.scene.judge.borrow_mut().read(floor, &KeyRange::all(), revision, &rows);
        true
    }

    async fn read_range(&mut self, prefix: &str) -> Option<(Vec<KeyValue>, Revision)> {
        let range = KeyRange::prefix(prefix.to_owned());
        let call = self.scene.judge.borrow_mut().call(self.node, "read", self.caller.deadline());
        let answer = self.caller.range(range).await;
        let Ok(reply) = answer else {
            self.scene.judge.borrow_mut().returned_without_result(call);
            return None;
        };
        self.scene.judge.borrow_mut().returned(call);
        self.saw(reply.revision);
        Some((reply.kvs, reply.revision))
    }

    /// Reads from this replica, without waiting for other nodes.
    async fn get_local(&self, key: &Bytes) -> Option<(Option<KeyValue>, Revision)> {
        let call =
            self.scene.judge.borrow_mut().call(self.node, "local read", self.caller.deadline());
        let answer = self.caller.get_local(key).await;
        self.scene.judge.borrow_mut().returned(call);
        answer
    }

    async fn local_read(&mut self) {
        let key = self.key();
        let Some((row, revision)) = self.get_local(&key).await else { return };
        let rows: Vec<KeyValue> = row.into_iter().collect();
        let mut judge = self.scene.judge.borrow_mut();
        judge.local_read(self.seen, &KeyRange::key(key), revision, &rows);
        drop(judge);
        self.saw(revision);
    }

    /// Reads at a past revision, about as old as compactions allow.
    async fn read_the_past(&mut self) {
        let at = self.scene.judge.borrow().floor().get().saturating_sub(self.rng.below(80));
        if at < 2 {
            return;
        }
        let (range, at) = (KeyRange::prefix("kv/"), Revision(at));
        let call = self.scene.judge.borrow_mut().call(
            self.node,
            "read of the past",
            self.caller.deadline(),
        );
        let asked = Range { revision: Some(at), ..Range::new(range.clone()) };
        let answer = self.caller.read(asked, true).await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(reply) => judge.check_past_read(&range, at, &reply.kvs),
            Err(Fate::Refused(why)) => judge.check_past_rejection(at, &why),
            // The node has stopped.
            Err(Fate::NotApplied | Fate::Unknown) => {}
        }
    }

    fn saw(&mut self, revision: Revision) {
        self.seen = self.seen.max(revision);
    }

    /// Discards the older part of the history.
    async fn compact(&mut self) {
        let floor = self.scene.judge.borrow().floor();
        let keep = self.rng.below(60);
        let Some(at) = floor.get().checked_sub(keep).filter(|at| *at > 1) else { return };
        let at = Revision(at);
        if !self.scene.judge.borrow_mut().may_compact(at) {
            return;
        }
        let answer = self.change("compact", Command::Compact(at), Sign::Compacts(at)).await;
        if let Some(Ok(Reply::Compacted { revision })) = answer {
            self.scene.judge.borrow_mut().changed_nothing("compact", floor, revision);
        }
    }

    /// Makes a request that the store must reject in any state.
    async fn impossible(&mut self) {
        let (key, value) = (self.key(), self.scene.value("impossible"));
        let puts = [(key.clone(), value.clone())];
        let lease = LeaseId::new(0x7fff_ffff_ffff_fff0).expect("not zero");
        let lease = PutLease::Attach(lease);
        let put = Put { key, value: PutValue::Set(value), lease, prev_kv: false };
        if let Some(Ok(reply)) =
            self.change("impossible", Command::Put(put), Sign::Puts(&puts)).await
        {
            self.scene.judge.borrow_mut().expect(false, "M-TXN", || {
                format!("a put with a lease that does not exist was answered {reply:?}")
            });
        }
    }
}

fn balance(row: &KeyValue) -> i64 {
    says(&row.value).parse().unwrap_or(i64::MIN / 1000)
}
