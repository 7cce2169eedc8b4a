//! The process of a node. It reads orders from its standard input and writes answers to its standard output. When the
//! input ends, the process completes all earlier orders and shuts down. [`wire`] defines the format of the lines.

use std::io::{BufRead, Write};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Blocking, Client, Effect, Error, KeyRange, LeaseId, Node, Op, Revision, Role};

use crate::client;
use crate::slots::Slots;
use crate::wire::{self, Answer, Message, Order, Row, Rows};

/// Maximum number of orders that run concurrently. Calls of clients do not count, because each has its own thread.
const WORKERS: usize = 16;

/// Maximum time until the threads of a node have ended after a shutdown, even if the disk is busy. The shutdown itself
/// waits one second for the threads. This time is shorter than [`LIMIT`](crate::process::LIMIT), so that the process
/// can report the remaining threads before the harness stops waiting.
const END_WITHIN: Duration = Duration::from_secs(50);

/// TTL of the leases that orders grant.
const LONG: Duration = Duration::from_secs(3600);

/// Interval between two checks whether the node has stopped by itself.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Shuts a node down, and waits until its threads have ended.
///
/// # Errors
///
/// Returns the names of the threads that do not end.
pub fn shut_down(node: Node) -> Result<(), String> {
    let mut hanging = node.shutdown().block().hanging;
    let begun = Instant::now();
    while begun.elapsed() < END_WITHIN && !hanging.is_empty() {
        hanging.retain(|name| is_alive(name));
        thread::sleep(CHECK_INTERVAL);
    }
    match hanging[..] {
        [] => Ok(()),
        _ => Err(format!("threads did not end: {hanging:?}")),
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

/// Runs orders until the input ends. `extra` carries out the orders that concern the process and not the node, and
/// `stopped` completes the reason for which the node has stopped.
pub fn serve(
    node: &Node,
    extra: &(dyn Fn(&Order) -> Answer + Sync),
    stopped: &(dyn Fn(String) -> String + Sync),
) {
    let slots = &Slots::default();
    let (sender, receiver) = mpsc::channel::<(u64, Order)>();
    let receiver = Mutex::new(receiver);
    let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Ok((id, order)) = next() {
                    say(&Message::Answer(id, carry_out(node, order)));
                }
            });
        }
        scope.spawn(move || {
            while ended.recv_timeout(CHECK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some(reason) = node.stop_reason() {
                    return say(&Message::Stopped(stopped(reason.to_string())));
                }
            }
        });
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok((id, order @ (Order::Arm(..) | Order::Fault(_)))) => {
                    say(&Message::Answer(id, extra(&order)));
                }
                Ok((id, Order::Look)) => say(&Message::Answer(id, status(node))),
                Ok((id, Order::Call(call))) => {
                    scope.spawn(move || {
                        say(&Message::Answer(id, client::carry_out(node, slots, *call)));
                    });
                }
                Ok(order) => drop(sender.send(order)),
                Err(_) => say(&Message::Stopped(format!("invalid order: {line}"))),
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

/// Writes a message to standard output. If the parent is gone, the error is ignored, because the input ends as well.
pub fn say(message: &Message) {
    let line = serde_json::to_string(message).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}
