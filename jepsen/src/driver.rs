//! Runs a node in its own process: `DIR NAME NAME=ADDRESS,... [POINT:HITS]`.
//!
//! The process reads orders from its standard input and writes replies to its standard output. When the input ends,
//! the process completes all earlier orders and shuts down. [`wire`] defines the format of the lines.

use std::error::Error as StdError;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bowline::env::{Point, Points};
use bowline::{
    Blocking, Client, Config, Effect, Error, KeyRange, LeaseId, Node, Op, Revision, Role,
};

use crate::client;
use crate::dice::number_in;
use crate::fault_injection::FaultInjection;
use crate::fleet::{DEADLINE_MS, DOORS, ELECTION_MS, JOIN, LISTEN, REPLACES, SESSION_MS};
use crate::nemesis::WARM_COPY;
use crate::slots::Slots;
use crate::wire::{self, Answer, Order, Row, Rows};

/// Maximum number of orders that run concurrently. Calls of clients do not count, because each has its own thread.
const WORKERS: usize = 16;

/// The cluster token of all members.
const TOKEN: &str = "jepsen";

/// Runs a node until the standard input ends.
///
/// # Errors
///
/// Returns an error if the arguments are invalid, or if the node does not start or does not shut down.
pub fn main(words: &[String]) -> Result<(), Box<dyn StdError>> {
    let [dir, name, members, armed @ ..] = words else {
        return Err("usage: DIR NAME NAME=ADDRESS,... [POINT:HITS]".into());
    };
    #[cfg(bowline_mutants)]
    if let Ok(mutant) = std::env::var("BOWLINE_MUTANT") {
        bowline::mutant::Mutant::named(&mutant).ok_or("unknown mutant")?.plant_everywhere();
    }
    let members: Vec<(&str, &str)> =
        members.split(',').filter_map(|member| member.split_once('=')).collect();
    let trap = Arc::new(Trap::default());
    for armed in armed {
        let (point, hits) = armed.split_once(':').ok_or("POINT:HITS")?;
        trap.arm(wire::point_named(point).ok_or("unknown crash point")?, hits.parse()?);
    }
    let doors = Arc::new(FaultInjection::default());
    if let Ok(words) = std::env::var(DOORS) {
        doors.order(&words)?;
    }
    let config = config(dir, name, members).env(doors.env(trap.clone()));
    let node = match Node::start(config).block() {
        Ok(node) => node,
        Err(error) => {
            say(&format!("stopped it did not start: {error}"));
            return Err(error.into());
        }
    };
    say("ready");
    serve(&node, &trap, &doors);
    let mut hanging = node.shutdown().block().hanging;
    let begun = Instant::now();
    while begun.elapsed() < END_WITHIN && !hanging.is_empty() {
        hanging.retain(|name| is_alive(name));
        thread::sleep(LOOK_EVERY);
    }
    match hanging[..] {
        [] => Ok(()),
        _ => Err(format!("threads did not end: {hanging:?}").into()),
    }
}

/// Returns whether this process still has a thread with this name.
fn is_alive(name: &str) -> bool {
    /// Maximum length of a thread name on Linux.
    const NAME_BYTES_MAX: usize = 15;
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return true };
    // A thread that ends in the meantime cannot be read.
    let names =
        threads.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    let kept = name.get(..NAME_BYTES_MAX).unwrap_or(name);
    names.into_iter().any(|comm| comm.trim_end() == kept)
}

fn config(dir: &str, name: &str, members: Vec<(&str, &str)>) -> Config {
    let election_ms = number_in(ELECTION_MS).unwrap_or(400);
    let mut config = Config::new(dir, name)
        .cluster_token(TOKEN)
        .heartbeat(Duration::from_millis(election_ms / 8))
        .election_timeout(Duration::from_millis(election_ms))
        .log_segment_bytes(64 << 10)
        .snapshot_log_bytes(64 << 10);
    config = match std::env::var(JOIN) {
        // The first address is the node's own address, so it is not used to join.
        Ok(addresses) => {
            let mut addresses = addresses.split(',');
            let own = addresses.next().unwrap_or_default().to_owned();
            config.join(addresses.map(str::to_owned)).advertise(own)
        }
        Err(_) => config.members(members),
    };
    if let Ok(name) = std::env::var(REPLACES) {
        config = config.replacing(name);
    }
    if std::env::var(WARM_COPY).is_ok() {
        config = config.warm_copy(true);
    }
    if let Ok(listen) = std::env::var(LISTEN) {
        config = config.listen(listen);
    }
    if let Some(millis) = number_in(SESSION_MS) {
        config = config.session_ttl(Duration::from_millis(millis));
    }
    if let Some(millis) = number_in(DEADLINE_MS) {
        config = config.call_deadline(Duration::from_millis(millis));
    }
    config
}

/// Maximum time until the threads of a node have ended after a shutdown, even if the disk is busy. The shutdown itself
/// waits one second for the threads. This time is shorter than [`LIMIT`](crate::process::LIMIT), so that the process
/// can report the remaining threads before the harness stops waiting.
const END_WITHIN: Duration = Duration::from_secs(50);

/// TTL of the leases that orders grant.
const LONG: Duration = Duration::from_secs(3600);

/// Interval between two checks whether the node has stopped by itself.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Separator between the reason for which a node has stopped and the number of failed write and sync calls of its log.
pub(crate) const FAILURES: &str = "; calls of its log that have failed: ";

/// Runs orders until the input ends.
fn serve(node: &Node, trap: &Trap, doors: &FaultInjection) {
    let slots = &Slots::default();
    let (sender, receiver) = mpsc::channel::<(String, Order)>();
    let receiver = Mutex::new(receiver);
    let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Ok((id, order)) = next() {
                    say(&format!("{id} {}", carry_out(node, order).words()));
                }
            });
        }
        scope.spawn(move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some(reason) = node.stop_reason() {
                    let failures = match doors.order("failures") {
                        Ok(Some(failures)) if failures > 0 => format!("{FAILURES}{failures}"),
                        _ => String::new(),
                    };
                    return say(&format!("stopped {reason}{failures}"));
                }
            }
        });
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match line.split_once(' ').and_then(|(id, words)| Some((id, Order::parse(words)?))) {
                Some((id, Order::Arm(point, hits))) => {
                    trap.arm(point, hits);
                    say(&format!("{id} {}", Answer::Armed.words()));
                }
                Some((id, Order::Look)) => say(&format!("{id} {}", status(node).words())),
                Some((id, Order::Fault(words))) => {
                    let answer = match doors.order(&words) {
                        Ok(None) => Answer::Armed,
                        Ok(Some(number)) => Answer::Done(number),
                        Err(why) => Answer::Refused(why),
                    };
                    say(&format!("{id} {}", answer.words()));
                }
                Some((id, Order::Call(call))) => {
                    let id = id.to_owned();
                    scope.spawn(move || {
                        let answer = client::carry_out(node, slots, *call);
                        say(&format!("{id} {}", answer.words()));
                    });
                }
                Some((id, order)) => drop(sender.send((id.to_owned(), order))),
                None => say(&format!("stopped invalid order: {line}")),
            }
        }
        drop((sender, end));
    });
}

fn carry_out(node: &Node, order: Order) -> Answer {
    let kv = node.client();
    let answer = match order {
        Order::Write(key) => write(&kv, &key),
        Order::Put(key) => kv.put(key, "v").block().map(|put| Answer::Done(put.revision.get())),
        Order::Delete(key) => {
            kv.delete(key).block().map(|reply| Answer::Done(reply.revision.get()))
        }
        Order::Grant => kv.grant(LONG).block().map(|lease| Answer::Done(lease.id.get())),
        Order::Revoke(lease) => match LeaseId::new(lease) {
            Some(lease) => kv.revoke(lease).block().map(|reply| Answer::Done(reply.deleted)),
            None => Ok(Answer::Refused("0 is not a lease id".to_owned())),
        },
        Order::Compact(revision) => {
            kv.compact(Revision(revision)).block().map(|now| Answer::Done(now.get()))
        }
        Order::Rows => rows(&kv),
        Order::Status => kv.get("status").block().map(|_| status(node)),
        Order::Arm(..) | Order::Look | Order::Fault(_) | Order::Call(_) => {
            Ok(Answer::Refused("order handled elsewhere".to_owned()))
        }
    };
    answer.unwrap_or_else(|error| match error.effect() {
        Effect::NotApplied => Answer::Refused(error.to_string()),
        Effect::Unknown => Answer::Unknown(error.to_string()),
        Effect::Applied => Answer::Applied(error.to_string()),
    })
}

fn status(node: &Node) -> Answer {
    let status = node.status();
    let leads = status.role == Role::Leader;
    let leader = status.leader.map(|leader| leader.get());
    Answer::Status { leads, term: status.term.get(), leader }
}

fn write(kv: &Client, key: &str) -> Result<Answer, Error> {
    let (value, tally) = (wire::value_of(key), wire::tally_of(key));
    let txn = kv.txn().then(Op::put(key.to_owned(), value)).then(Op::put(tally, key.to_owned()));
    Ok(Answer::Done(txn.commit().block()?.revision.get()))
}

fn rows(kv: &Client) -> Result<Answer, Error> {
    let reply = kv.range(KeyRange::all()).block()?;
    let row = |row: &bowline::KeyValue| Row {
        key: String::from_utf8_lossy(&row.key).into_owned(),
        revision: row.mod_revision.get(),
        version: row.version,
        value: wire::hash(&row.value),
    };
    let rows = reply.kvs.iter().map(row).collect();
    Ok(Answer::Rows(Rows { revision: reply.revision.get(), rows }))
}

/// Kills the process at its armed point.
#[derive(Default)]
struct Trap {
    armed: Mutex<Option<(Point, u64)>>,
}

impl Trap {
    fn arm(&self, point: Point, hits: u64) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some((point, hits));
    }
}

impl Points for Trap {
    fn reach(&self, reached: Point) {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((point, hits)) = armed.as_mut().filter(|(point, _)| *point == reached) else {
            return;
        };
        *hits = hits.saturating_sub(1);
        if *hits == 0 {
            say(&format!("dies {point:?}"));
            let me = rustix::process::getpid();
            let killed = rustix::process::kill_process(me, rustix::process::Signal::KILL);
            // This thread must do nothing after this point, however late the signal arrives.
            while killed.is_ok() {
                thread::park();
            }
        }
    }
}

/// Writes a line. If the harness is gone, the error is ignored, because the input ends as well.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}
