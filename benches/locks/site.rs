//! The commands of a member: lines of words, each answered with a line.

use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline::{Guard, KeyRange, Node, Session};
use tokio::sync::{OnceCell, oneshot};

use crate::handoff::Line;
use crate::{guarded, handoff, idle, inside, names, shares};
use bowline_testkit::crew::{Trade, resident_bytes};

/// A member, and the state that its callers share.
pub(crate) struct Site {
    node: Node,
    session: OnceCell<Session>,
    /// Ends the task that holds a lock.
    keeper: Mutex<Option<oneshot::Sender<()>>>,
    line: Mutex<Option<Line>>,
    idle: Mutex<Vec<Guard>>,
}

impl Trade for Site {
    fn new(node: Node) -> Self {
        let (session, keeper, line) = (OnceCell::new(), Mutex::default(), Mutex::default());
        Self { node, session, keeper, line, idle: Mutex::default() }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    async fn execute(self: Arc<Self>, order: String) -> String {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["counts"] => Counts::of(&self.node).to_words(),
            ["now"] => self.now().as_nanos().to_string(),
            ["session"] => {
                self.session().await;
                String::new()
            }
            ["length", name] => {
                let places = KeyRange::prefix(format!("{name}/"));
                let count = self.node.client().range(places).count_only().local().await;
                count.expect("a count").count.to_string()
            }
            ["keep", name] => {
                self.keep(name).await;
                String::new()
            }
            ["let-go"] => {
                let now = self.now();
                let keeper = self.keeper.lock().expect("nobody fell").take();
                keeper.expect("somebody keeps").send(()).expect("it waits for this");
                now.as_nanos().to_string()
            }
            ["await", name] => {
                let guard = self.session().await.mutex(name.to_owned()).lock().await;
                let granted = self.now();
                let _ = guard.expect("a lock").release().await.expect("a release");
                granted.as_nanos().to_string()
            }
            ["compact"] => {
                let client = self.node.client();
                client.compact(client.revision()).await.expect("a compaction");
                String::new()
            }
            ["cycle", prefix, callers, names, millis, times] => {
                let names = names::Names::new(prefix, number(names), number(times));
                names::cycle(&self, names, number(callers), millis_of(millis)).await
            }
            ["line-up", name, waiters] => {
                handoff::line_up(&self, name, number(waiters)).await;
                String::new()
            }
            ["drained"] => {
                let line = self.line().take().expect("somebody stands in line");
                line.drained().await
            }
            ["contend", name, tasks, millis] => {
                handoff::contend(&self, name, number(tasks), millis_of(millis)).await.to_words()
            }
            ["inside", runtime, lock, tasks, millis] => {
                let (runtime, lock) = (number(runtime), number(lock));
                inside::pass_on(&self, runtime, lock, number(tasks), millis_of(millis)).await
            }
            ["hold", from, until] => {
                idle::hold(&self, number(from)..number(until)).await;
                String::new()
            }
            ["transactions", kind, callers, millis] => {
                let kind = number(kind);
                guarded::commit(&self, kind, number(callers), millis_of(millis)).await.to_words()
            }
            ["share", tasks, millis] => {
                shares::count_up(&self, number(tasks), millis_of(millis)).await
            }
            ["ledger"] => shares::ledger(&self).await,
            _ => panic!("no such order: {order:?}"),
        }
    }
}

impl Site {
    /// Returns the node's own session, which all tasks use for their locks.
    pub(crate) async fn session(&self) -> &Session {
        let open = async || self.node.session().await.expect("a session");
        self.session.get_or_init(open).await
    }

    /// Returns a time that can be compared with times of other processes on this machine.
    pub(crate) fn now(&self) -> Duration {
        self.node.now().elapsed_since_boot()
    }

    pub(crate) fn line(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().expect("nobody fell")
    }

    pub(crate) fn idle(&self) -> MutexGuard<'_, Vec<Guard>> {
        self.idle.lock().expect("nobody fell")
    }

    /// Acquires a lock and holds it in a task until a command releases the lock, or the program
    /// ends.
    async fn keep(&self, name: &str) {
        let lock = self.session().await.mutex(name.to_owned()).lock().reason("keeps it");
        let guard = lock.await.expect("a lock");
        let (let_go, released) = oneshot::channel();
        *self.keeper.lock().expect("nobody fell") = Some(let_go);
        tokio::spawn(async move {
            match released.await {
                Ok(()) => drop(guard.release().await.expect("a release")),
                // The program ends: do not release the guard.
                Err(_) => std::future::pending().await,
            }
        });
    }
}

/// The counters of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) entries: u64,
    pub(crate) log_bytes: u64,
    pub(crate) rounds: u64,
    pub(crate) keys: u64,
    pub(crate) state_bytes: u64,
    /// Resident memory of the whole process; 0 if the system does not report it.
    pub(crate) resident_bytes: u64,
}

impl Counts {
    fn of(node: &Node) -> Self {
        let metrics = node.metrics().snapshot();
        Self {
            entries: metrics.log_entries_total,
            log_bytes: metrics.log_bytes_total,
            rounds: metrics.read_rounds_total,
            keys: metrics.keys,
            state_bytes: metrics.state_bytes,
            resident_bytes: resident_bytes(),
        }
    }

    fn to_words(self) -> String {
        let Self { entries, log_bytes, rounds, keys, state_bytes, resident_bytes } = self;
        format!("{entries} {log_bytes} {rounds} {keys} {state_bytes} {resident_bytes}")
    }

    pub(crate) fn from_words(words: &str) -> Self {
        let numbers: Vec<u64> = words.split(' ').map(number).collect();
        let [entries, log_bytes, rounds, keys, state_bytes, resident_bytes] = numbers[..] else {
            panic!("no counts: {words:?}")
        };
        Self { entries, log_bytes, rounds, keys, state_bytes, resident_bytes }
    }
}

/// Parses a word of a command or an answer.
pub(crate) fn number<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("a word that means nothing here: {word:?}"))
}

fn millis_of(word: &str) -> Duration {
    Duration::from_millis(number(word))
}
