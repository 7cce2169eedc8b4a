//! One process of the demo: a program that embeds a node. Its workers do what the demo is about: take
//! the lock, read the counter, write to the ledger with the fencing token, write the increment with a
//! guarded transaction, release. They are impolite on purpose: a worker never asks whether it still
//! holds the lock, and tries the store even when the ledger has refused. What they write must be safe
//! all the same.
//!
//! Orders come from standard input and reports go to standard output (see [`super::wire`]). When the
//! input ends, the process ends.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bowline::{
    Client, Compare, Config, Effect, Error, Guard, GuardError, KeyRange, Node, Op, RangeReply,
    Released, Role,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::ledger::LedgerClient;
use super::wire::{
    Append, Fence, Instant, OpId, Order, Part, Point, Report, Row, Ruling, Worker, line,
};

/// How long a session outlives its process: long enough for a change of the leader between two
/// renewals, and short, so that a killed holder's lock is soon free.
const SESSION_TTL: Duration = Duration::from_secs(2);
/// The lock that all increments are made under.
const LOCK: &str = "demo/lock";
/// The counter.
const COUNT: &str = "demo/count";
/// Below it, a key for each increment.
const OPS: &str = "demo/op/";
/// How many rows are read at a time.
const PAGE_ROWS: u64 = 500;
/// How often an increment without a clear answer is tried, and for how long each time: shorter than
/// an election takes, so that it happens.
const TRIES_MAX: u32 = 12;
const TRY: Duration = Duration::from_millis(400);
/// How long a worker that did not get the lock waits before it asks again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a node's threads may take to end, however busy the disk is: a shutdown waits a second for them.
const THREADS_PATIENCE: Duration = Duration::from_secs(60);
/// How long the line for the lock may take to empty when all workers rest.
const LINE_PATIENCE: Duration = Duration::from_secs(15);

/// Plays the part that standard input tells.
pub(crate) fn main() -> ExitCode {
    if io::stdin().is_terminal() {
        crate::complain(&"this is one process of the demo; run `bowline demo`");
        return ExitCode::from(crate::EXIT_USAGE);
    }
    die_with_the_parent();
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(play(orders())),
        Err(error) => Err(format!("no runtime: {error}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            crate::complain(&why);
            say(&Report::Failed { why });
            ExitCode::FAILURE
        }
    }
}

/// A process that is stopped cannot notice that its input has ended.
fn die_with_the_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // If the system does not offer this, the end of the input has to do.
        set_parent_process_death_signal(Some(Signal::KILL)).ok();
    }
}

/// The orders, as they come; the channel closes with the input.
fn orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for text in io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&text) else { return };
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(report: &Report) {
    // A parent that does not listen any more has closed the input too, which ends this process.
    let mut output = io::stdout().lock();
    drop(output.write_all(line(report).as_bytes()).and_then(|()| output.flush()));
}

/// Whether the next holder is to stay where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Linger {
    No,
    Wanted(Point),
    Doing,
}

/// What the workers of a process share.
#[derive(Debug)]
struct Shop {
    node: Node,
    part: Part,
    linger: watch::Sender<Linger>,
    rest: watch::Sender<bool>,
}

impl Shop {
    /// The parent may want a holder of the lock to stay where it is.
    async fn stay_if_wanted(&self, at: Point, op: &OpId, token: Fence) {
        let wanted = self.linger.send_if_modified(|linger| {
            let wanted = *linger == Linger::Wanted(at);
            if wanted {
                *linger = Linger::Doing;
            }
            wanted
        });
        if wanted {
            say(&Report::Lingers { op: op.clone(), token });
            // The sender is this shop's: it cannot be gone.
            drop(self.linger.subscribe().wait_for(|linger| *linger != Linger::Doing).await);
        }
    }
}

async fn play(mut orders: mpsc::UnboundedReceiver<Order>) -> Result<(), String> {
    let Some(Order::Start(part)) = orders.recv().await else {
        return Err("the first order must be to start".to_owned());
    };
    let config = Config::new(&part.data, &part.member)
        .members(part.members.clone())
        .session_ttl(SESSION_TTL);
    let node = Node::start(config).await.map_err(|error| error.to_string())?;
    say(&Report::Started);
    let (linger, rest) = (watch::Sender::new(Linger::No), watch::Sender::new(false));
    let shop = Arc::new(Shop { node, part, linger, rest });
    let mut workers = JoinSet::new();
    for number in 1..=shop.part.workers {
        workers.spawn(work(Arc::clone(&shop), number));
    }
    let mut others = JoinSet::new();
    others.spawn(tell_of_leadership(Arc::clone(&shop)));
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => break,
                Some(Order::Start(_)) => return Err("started twice".to_owned()),
                Some(Order::Linger { at }) => { shop.linger.send_replace(Linger::Wanted(at)); },
                Some(Order::GoOn) => { shop.linger.send_replace(Linger::No); },
                Some(Order::Rest) => { shop.rest.send_replace(true); },
                Some(Order::Read) => { others.spawn(read(shop.node.client())); },
            },
            reason = shop.node.stopped() => return Err(format!("the node has stopped: {reason}")),
            Some(done) = workers.join_next() => {
                done.map_err(|fall| format!("a worker fell: {fall}"))??;
                if workers.is_empty() {
                    say(&Report::Resting);
                }
            }
            Some(done) = others.join_next() => {
                done.map_err(|fall| format!("a task fell: {fall}"))??;
            }
        }
    }
    workers.shutdown().await;
    others.shutdown().await;
    let shop = Arc::into_inner(shop).expect("all who shared it have ended");
    let mut hanging = shop.node.shutdown().await.hanging;
    let patience = tokio::time::Instant::now() + THREADS_PATIENCE;
    while tokio::time::Instant::now() < patience && !hanging.is_empty() {
        tokio::time::sleep(PAUSE).await;
        hanging.retain(|name| is_alive(name));
    }
    match &hanging[..] {
        [] => Ok(()),
        _ => Err(format!("threads are left behind: {}", hanging.join(", "))),
    }
}

/// Whether this process has a thread of this name still, as far as the operating system says.
fn is_alive(name: &str) -> bool {
    /// As much of a name as Linux keeps.
    const NAME_BYTES_MAX: usize = 15;
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return true };
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let kept = name.get(..NAME_BYTES_MAX).unwrap_or(name);
    // One that ends meanwhile cannot be read.
    threads.flatten().any(|thread| of(thread).is_ok_and(|comm| comm.trim_end() == kept))
}

async fn tell_of_leadership(shop: Arc<Shop>) -> Result<(), String> {
    let mut led = None;
    loop {
        let leads = |role, term| (role == Role::Leader).then_some(term);
        let status = shop.node.wait_for(|status| leads(status.role, status.term) != led).await;
        let now = leads(status.role, status.term);
        if let Some(term) = led {
            say(&Report::LeadsNoMore { term: term.get() });
        }
        if let Some(term) = now {
            say(&Report::Leads { term: term.get() });
        }
        if status.role == Role::Stopped {
            return Ok(());
        }
        led = now;
    }
}

/// A worker's life: until it is told to rest. Only what the parent must know of at once is an error.
async fn work(shop: Arc<Shop>, number: u32) -> Result<(), String> {
    let worker = Worker::new(&shop.part.member, shop.part.life, number);
    let lost = |why: String| say(&Report::Lost { worker: worker.clone(), why });
    let mut ledger = LedgerClient::connect(&shop.part.ledger)
        .await
        .map_err(|error| format!("the ledger cannot be reached: {error}"))?;
    let mut rest = shop.rest.subscribe();
    for attempt in 1.. {
        let guard = tokio::select! {
            biased;
            _ = rest.wait_for(|rest| *rest) => break,
            guard = hold(&shop.node) => guard,
        };
        match guard {
            Ok(guard) => {
                let op = OpId::new(&worker, attempt);
                let token = Fence(guard.token());
                say(&Report::Granted { worker: worker.clone(), op: op.clone(), token });
                if let Err(trouble) = increment(&shop, &guard, &mut ledger, op).await {
                    match trouble {
                        Trouble::Store(error) => lost(format!("the counter was not read: {error}")),
                        Trouble::Fatal(why) => return Err(why),
                    }
                }
                match guard.release().await {
                    Ok(Released::Now | Released::StillHeld { .. }) => {}
                    Ok(Released::AlreadyLost(loss)) => lost(format!("the lock was lost: {loss}")),
                    Err(error) => lost(format!("the lock was not released: {error}")),
                }
            }
            Err(why) => {
                lost(why);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    Ok(())
}

async fn hold(node: &Node) -> Result<Guard, String> {
    let session = node.session().await.map_err(|error| error.to_string())?;
    session.mutex(LOCK).lock().await.map_err(|error| error.to_string())
}

/// Why an increment got nowhere.
enum Trouble {
    /// The store had no answer to a read.
    Store(Error),
    /// The demo cannot go on.
    Fatal(String),
}

/// One increment, under the lock: read, ledger, store.
async fn increment(
    shop: &Shop,
    guard: &Guard,
    ledger: &mut LedgerClient,
    op: OpId,
) -> Result<(), Trouble> {
    let token = Fence(guard.token());
    // What earlier holders wrote came before their releases, and the grant came after: this replica
    // has it already, and nobody need be asked.
    let read = shop.node.client().get(COUNT).at_least(guard.token().revision());
    let count = count_of(read.await.map_err(Trouble::Store)?).map_err(Trouble::Fatal)? + 1;

    shop.stay_if_wanted(Point::BeforeLedger, &op, token).await;
    let append = Append { op: op.clone(), token };
    match ledger.append(&append).await {
        Ok(Ruling::Accepted) => {}
        Ok(Ruling::Refused { highest }) => {
            say(&Report::LedgerRefused { op: op.clone(), token, highest });
        }
        Err(error) => return Err(Trouble::Fatal(format!("the ledger is gone: {error}"))),
    }
    shop.stay_if_wanted(Point::BeforeStore, &op, token).await;
    say(&write(guard, op, count).await.map_err(Trouble::Fatal)?);
    Ok(())
}

/// Writes the increment if the lock is still held. Tried again where the outcome is unknown: the key of
/// the increment, which must not be there, keeps it from being made twice.
async fn write(guard: &Guard, op: OpId, count: u64) -> Result<Report, String> {
    let key = format!("{OPS}{op}");
    let value = format!("{count} {}", guard.token());
    let began = Instant::now();
    let mut doubt: Option<Error> = None;
    for tries in 1..=TRIES_MAX {
        let txn = guard
            .txn()
            .when(Compare::missing(key.clone()))
            .then(Op::put(COUNT, count.to_string()))
            .then(Op::put(key.clone(), value.clone()))
            .deadline(TRY);
        match txn.commit().await {
            Ok(reply) if reply.succeeded || doubt.is_some() => {
                return Ok(Report::Acknowledged { op, count, began, tries });
            }
            Ok(_) => return Err(format!("{op} was in the store before it was written")),
            Err(GuardError::NotHeld) => {
                return Ok(Report::StoreRefused { op, doubt: doubt.is_some() });
            }
            Err(GuardError::Store(error)) if error.effect() == Effect::Unknown => {
                doubt = Some(error);
            }
            Err(GuardError::Store(error)) if error.is_transient() => {}
            Err(error) => return Ok(Report::Unknown { op, why: error.to_string() }),
        }
    }
    let why = doubt.map_or_else(|| "too busy, every time".to_owned(), |error| error.to_string());
    Ok(Report::Unknown { op, why })
}

/// Reads everything, linearizably and at one revision, and says it.
async fn read(kv: Client) -> Result<(), String> {
    // Who gave up its place in the line is gone from it soon, but in the background.
    let patience = tokio::time::Instant::now() + LINE_PATIENCE;
    while tokio::time::Instant::now() < patience && !line_of(&kv).await?.kvs.is_empty() {
        tokio::time::sleep(PAUSE).await;
    }
    let failed = |error: Error| format!("the store cannot be read: {error}");
    let in_line = line_of(&kv).await?;
    let revision = in_line.revision;
    let mut from = KeyRange::prefix(OPS);
    loop {
        let page =
            kv.range(from.clone()).revision(revision).limit(PAGE_ROWS).await.map_err(failed)?;
        let rows = page.kvs.iter().map(row_of).collect::<Result<_, _>>()?;
        say(&Report::Rows { rows });
        match page.kvs.last() {
            Some(last) if page.more => {
                let next = [&last.key[..], b"\0"].concat();
                let bowline::kv::RangeEnd::Before(end) = KeyRange::prefix(OPS).end().clone() else {
                    return Err("the prefix of all increments has no end".to_owned());
                };
                from = KeyRange::between(next, end);
            }
            _ => break,
        }
    }
    let count = count_of(kv.get(COUNT).revision(revision).await.map_err(failed)?)?;
    let in_line = in_line.kvs.iter().map(|kv| kv.key.escape_ascii().to_string()).collect();
    say(&Report::Store { count, in_line });
    Ok(())
}

async fn line_of(kv: &Client) -> Result<RangeReply, String> {
    let line = kv.range(KeyRange::prefix(format!("{LOCK}/"))).keys_only();
    line.await.map_err(|error| format!("the store cannot be read: {error}"))
}

fn count_of(row: Option<bowline::KeyValue>) -> Result<u64, String> {
    let Some(row) = row else { return Ok(0) };
    text(&row.value)?.parse().map_err(|_| unreadable(&row))
}

fn row_of(row: &bowline::KeyValue) -> Result<Row, String> {
    let op = text(&row.key)?.strip_prefix(OPS).ok_or_else(|| unreadable(row))?;
    let (count, token) = text(&row.value)?.split_once(' ').ok_or_else(|| unreadable(row))?;
    Ok(Row {
        op: OpId(op.to_owned()),
        count: count.parse().map_err(|_| unreadable(row))?,
        token: Fence(token.parse().map_err(|_| unreadable(row))?),
        revision: row.mod_revision.get(),
        version: row.version,
    })
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| format!("{} is no text", bytes.escape_ascii()))
}

fn unreadable(row: &bowline::KeyValue) -> String {
    let (key, value) = (row.key.escape_ascii(), row.value.escape_ascii());
    format!("nobody wrote this: {key} = {value}")
}
