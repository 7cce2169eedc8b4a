//! A process of the demo: a program that embeds a node. In a loop, each worker acquires the lock, reads the counter,
//! writes to the ledger with the fencing token, writes the increment in a guarded transaction, and releases the lock.
//! A worker deliberately never checks whether it still holds the lock. A worker also writes to the store if the ledger
//! has rejected its request. Fencing must make these writes safe nevertheless.
//!
//! Orders arrive on standard input and reports are written to standard output (see [`super::wire`]). The process ends
//! when its standard input ends.

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

/// TTL of sessions: long enough for an election between two renewals, and short, so that the lock of a killed holder is
/// soon free.
const SESSION_TTL: Duration = Duration::from_secs(2);
/// Name of the lock for all increments.
const LOCK: &str = "demo/lock";
/// Key of the counter.
const COUNT: &str = "demo/count";
/// Prefix of the keys of the increments.
const OPS: &str = "demo/op/";
/// Number of rows per page.
const PAGE_ROWS: u64 = 500;
/// Maximum number of attempts for an increment with an unknown outcome, and the timeout of each. The timeout is shorter
/// than an election, so that unknown outcomes occur.
const TRIES_MAX: u32 = 12;
const TRY: Duration = Duration::from_millis(400);
/// Pause before the next attempt after the lock was not acquired.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for a node's threads to end on a busy disk. A shutdown itself waits one second for them.
const THREADS_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for the lock queue to become empty when all workers rest.
const LINE_PATIENCE: Duration = Duration::from_secs(15);

/// Runs the process as ordered on standard input.
pub(crate) fn main() -> ExitCode {
    if io::stdin().is_terminal() {
        crate::complain(&"this command is internal to the demo; run `bowline demo`");
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
        Err(error) => Err(format!("cannot start the async runtime: {error}")),
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

/// Asks the kernel to kill this process with its parent, because a suspended process cannot notice the end of its
/// input.
fn die_with_the_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // If this call fails, the process still ends when its standard input ends.
        set_parent_process_death_signal(Some(Signal::KILL)).ok();
    }
}

/// Returns the orders. The channel closes with the input.
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
    // If the parent has ended, standard input has ended too, which ends this process.
    let mut output = io::stdout().lock();
    drop(output.write_all(line(report).as_bytes()).and_then(|()| output.flush()));
}

/// Whether the next holder of the lock must pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Linger {
    No,
    Wanted(Point),
    Doing,
}

/// State shared by the workers of a process.
#[derive(Debug)]
struct Shop {
    node: Node,
    part: Part,
    linger: watch::Sender<Linger>,
    rest: watch::Sender<bool>,
}

impl Shop {
    /// Pauses a lock holder at this point if the parent has requested it.
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
            // The wait cannot fail, because `self` owns the sender.
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
                Some(Order::Start(_)) => return Err("received two orders to start".to_owned()),
                Some(Order::Linger { at }) => { shop.linger.send_replace(Linger::Wanted(at)); },
                Some(Order::GoOn) => { shop.linger.send_replace(Linger::No); },
                Some(Order::Rest) => { shop.rest.send_replace(true); },
                Some(Order::Read) => { others.spawn(read(shop.node.client())); },
            },
            reason = shop.node.stopped() => return Err(format!("the node has stopped: {reason}")),
            Some(done) = workers.join_next() => {
                done.map_err(|fall| format!("a worker panicked: {fall}"))??;
                if workers.is_empty() {
                    say(&Report::Resting);
                }
            }
            Some(done) = others.join_next() => {
                done.map_err(|fall| format!("a task panicked: {fall}"))??;
            }
        }
    }
    workers.shutdown().await;
    others.shutdown().await;
    let shop = Arc::into_inner(shop).expect("no other task holds a reference");
    let mut hanging = shop.node.shutdown().await.hanging;
    let patience = tokio::time::Instant::now() + THREADS_PATIENCE;
    while tokio::time::Instant::now() < patience && !hanging.is_empty() {
        tokio::time::sleep(PAUSE).await;
        hanging.retain(|name| is_alive(name));
    }
    match &hanging[..] {
        [] => Ok(()),
        _ => Err(format!("threads are still running: {}", hanging.join(", "))),
    }
}

/// Returns whether this process still has a thread with this name, if the operating system tells.
fn is_alive(name: &str) -> bool {
    /// Length to which Linux truncates thread names.
    const NAME_BYTES_MAX: usize = 15;
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return true };
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let kept = name.get(..NAME_BYTES_MAX).unwrap_or(name);
    // A thread that has just ended cannot be read, so it is skipped.
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

/// Runs a worker until it is ordered to rest. Returns an error only for problems that must end the demo.
async fn work(shop: Arc<Shop>, number: u32) -> Result<(), String> {
    let worker = Worker::new(&shop.part.member, shop.part.life, number);
    let lost = |why: String| say(&Report::Lost { worker: worker.clone(), why });
    let mut ledger = LedgerClient::connect(&shop.part.ledger)
        .await
        .map_err(|error| format!("cannot reach the ledger: {error}"))?;
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
                        Trouble::Store(error) => lost(format!("cannot read the counter: {error}")),
                        Trouble::Fatal(why) => return Err(why),
                    }
                }
                match guard.release().await {
                    Ok(Released::Now | Released::StillHeld { .. }) => {}
                    Ok(Released::AlreadyLost(loss)) => lost(format!("the lock was lost: {loss}")),
                    Err(error) => lost(format!("cannot release the lock: {error}")),
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

/// Reason why an increment has failed.
enum Trouble {
    /// The counter could not be read.
    Store(Error),
    /// The demo cannot continue.
    Fatal(String),
}

/// Makes one increment under the lock: reads the counter, writes to the ledger, then to the store.
async fn increment(
    shop: &Shop,
    guard: &Guard,
    ledger: &mut LedgerClient,
    op: OpId,
) -> Result<(), Trouble> {
    let token = Fence(guard.token());
    // Writes of earlier holders precede their releases, and the grant follows them. This replica has applied the grant,
    // so a local read at its revision is sufficient.
    let read = shop.node.client().get(COUNT).at_least(guard.token().revision());
    let count = count_of(read.await.map_err(Trouble::Store)?).map_err(Trouble::Fatal)? + 1;

    shop.stay_if_wanted(Point::BeforeLedger, &op, token).await;
    let append = Append { op: op.clone(), token };
    match ledger.append(&append).await {
        Ok(Ruling::Accepted) => {}
        Ok(Ruling::Refused { highest }) => {
            say(&Report::LedgerRefused { op: op.clone(), token, highest });
        }
        Err(error) => {
            return Err(Trouble::Fatal(format!("lost the connection to the ledger: {error}")));
        }
    }
    shop.stay_if_wanted(Point::BeforeStore, &op, token).await;
    say(&write(guard, op, count).await.map_err(Trouble::Fatal)?);
    Ok(())
}

/// Writes the increment if the lock is still held. Retries after an unknown outcome. The increment's key, which must
/// not exist, prevents it from being applied twice.
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
    let why =
        doubt.map_or_else(|| "too busy at every attempt".to_owned(), |error| error.to_string());
    Ok(Report::Unknown { op, why })
}

/// Reads everything at one linearizable revision, and reports it.
async fn read(kv: Client) -> Result<(), String> {
    // Requests whose callers have given up leave the queue soon, in the background.
    let patience = tokio::time::Instant::now() + LINE_PATIENCE;
    while tokio::time::Instant::now() < patience && !line_of(&kv).await?.kvs.is_empty() {
        tokio::time::sleep(PAUSE).await;
    }
    let failed = |error: Error| format!("cannot read the store: {error}");
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
    line.await.map_err(|error| format!("cannot read the store: {error}"))
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
    std::str::from_utf8(bytes).map_err(|_| format!("{} is not valid UTF-8", bytes.escape_ascii()))
}

fn unreadable(row: &bowline::KeyValue) -> String {
    let (key, value) = (row.key.escape_ascii(), row.value.escape_ascii());
    format!("unexpected row: {key} = {value}")
}
