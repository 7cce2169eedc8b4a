//! Watches: some clients write, some watch. Every watch yields each change since its first revision once, in
//! order, no revision torn, nothing else; whoever watches again after a break goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bowline::check::{History, Outcome};
use serde::Serialize;

use super::{Client, Judgement, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Change, Reply};
use crate::ledger::{Book, lines};

pub(super) const KIND: Kind = Kind {
    name: "watch",
    about: "watches yield every change once, in order, whole revisions, and go on after a break",
    least: &[("write", 60), ("events", 60)],
    clients: 3,
    is_control: false,
    make: || Box::new(Watches::default()),
};

const PREFIX: &str = "w/";
const KEYS: u64 = 5;
const WAIT_MS: u64 = 300;
/// What a watch says before the oldest revision that is left, if it asked for an older one.
const COMPACTED: &str = "has been compacted; the oldest left is";
/// How often a watcher asks, in the end, until it has seen everything.
const LAST_ASKS_MAX: usize = 100;

/// Two rows that are written in one transaction.
#[derive(Clone, Debug, Serialize)]
struct Write {
    value: String,
    keys: Vec<String>,
}

/// What one watcher has seen: everything from one revision to another.
#[derive(Clone, Debug, Default, Serialize)]
struct Stream {
    from: u64,
    until: u64,
    events: Vec<Change>,
    /// Where a batch began below what had been yielded already.
    steps_back: Vec<(u64, u64)>,
    /// It could not go on, since what came next was compacted; another stream begins behind that.
    was_compacted: bool,
}

/// See the module.
#[derive(Default)]
struct Watches {
    writes: Book<Write, u64>,
    next: AtomicU64,
    streams: Mutex<Vec<Stream>>,
    last: AtomicU64,
}

impl Watches {
    fn keep(&self, stream: Stream) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    fn write(&self, caller: &mut Caller<'_>) {
        let value = format!("v{}", self.next.fetch_add(1, Ordering::Relaxed));
        let first = caller.dice.below(KEYS);
        let mut keys = vec![format!("{PREFIX}{first}")];
        if caller.dice.below(2) == 0 {
            keys.push(format!("{PREFIX}{}", (first + 1) % KEYS));
        }
        let put = keys.iter().map(|key| (key.clone(), value.clone())).collect();
        let commit = Call::Commit { when: Vec::new(), put };
        let write = |caller: &mut Caller<'_>| match caller.call(&commit)? {
            Reply::Swapped { revision, .. } => Ok(revision),
            reply => Err(Miss::nonsense(&reply)),
        };
        let call = Write { value, keys };
        drop(caller.operation(&self.writes, "write", "", call, write));
    }
}

/// The first client of each member watches, the others write.
struct Hand<'a> {
    watches: &'a Watches,
    watches_itself: bool,
    slot: Option<String>,
    slots: u64,
    stream: Stream,
}

impl Hand<'_> {
    fn watch(&mut self, caller: &mut Caller<'_>) {
        let Some(slot) = &self.slot else {
            self.slots += 1;
            let slot = format!("{}.{}", caller.client, self.slots);
            let from = self.stream.until + 1;
            let call = Call::Watch { slot: slot.clone(), prefix: PREFIX.to_owned(), from };
            match caller.timed("watch", |caller| caller.call(&call)).result {
                Ok(_) => self.slot = Some(slot),
                Err(miss) => self.broken(caller, slot, &miss),
            }
            return;
        };
        let slot = slot.clone();
        let call = Call::Events { slot: slot.clone(), wait_ms: WAIT_MS };
        match caller.timed("events", |caller| caller.call(&call)).result {
            Ok(Reply::Events { events, until }) => {
                let stream = &mut self.stream;
                if let Some(first) = events.first().filter(|event| event.revision <= stream.until) {
                    stream.steps_back.push((stream.until, first.revision));
                }
                stream.until = stream.until.max(until);
                stream.events.extend(events);
            }
            Ok(reply) => self.broken(caller, slot, &Miss::nonsense(&reply)),
            Err(miss) => self.broken(caller, slot, &miss),
        }
    }

    /// What was yielded and did not arrive is yielded again to the next watch.
    fn broken(&mut self, caller: &mut Caller<'_>, slot: String, miss: &Miss) {
        caller.forget(slot);
        self.slot = None;
        let (Miss::Failed(why) | Miss::Unknown(why)) = miss;
        let oldest = why.split_once(COMPACTED).and_then(|(_, oldest)| oldest.trim().parse().ok());
        if let Some(oldest) = oldest {
            let next = Stream { from: oldest, until: oldest - 1, ..Stream::default() };
            let stream = std::mem::replace(&mut self.stream, next);
            self.watches.keep(Stream { was_compacted: true, ..stream });
        }
    }
}

impl Client for Hand<'_> {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if self.watches_itself {
            self.watch(caller);
        } else {
            self.watches.write(caller);
        }
    }

    fn end(&mut self, caller: &mut Caller<'_>) {
        if !self.watches_itself {
            return;
        }
        // Everything up to what is there now must come.
        let list = Call::List { prefix: PREFIX.to_owned() };
        let rows = match caller.call(&list) {
            Ok(Reply::Rows { rows, .. }) => rows,
            _ => Vec::new(),
        };
        let last = rows.iter().map(|row| row.modified).max().unwrap_or(0);
        self.watches.last.fetch_max(last, Ordering::Relaxed);
        for _ in 0..LAST_ASKS_MAX {
            if self.stream.until >= last {
                break;
            }
            self.watch(caller);
        }
        self.watches.keep(std::mem::take(&mut self.stream));
    }
}

impl Workload for Watches {
    fn client<'a>(&'a self, number: u64) -> Box<dyn Client + 'a> {
        Box::new(Hand {
            watches: self,
            watches_itself: number.is_multiple_of(KIND.clients),
            slot: None,
            slots: 0,
            stream: Stream { from: 1, ..Stream::default() },
        })
    }

    fn judge(&self) -> Judgement {
        let history = self.writes.history();
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let last = self.last.load(Ordering::Relaxed);
        let events: usize = streams.iter().map(|stream| stream.events.len()).sum();
        let well = format!("{} writes, {events} events", history.len());
        Judgement::of_complaints(complaints(&history, &streams, last), well)
    }

    fn lines(&self) -> String {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let line = |stream: &Stream| serde_json::to_string(stream).unwrap_or_default() + "\n";
        lines(&self.writes.history()) + &streams.iter().map(line).collect::<String>()
    }
}

/// What no watch should have yielded, or should have and has not.
fn complaints(history: &History<Write, u64>, streams: &[Stream], last: u64) -> Vec<String> {
    let mut complaints = Vec::new();
    // By their value, since each is written once.
    let writes: BTreeMap<&str, _> = history.iter().map(|op| (op.call.value.as_str(), op)).collect();
    let mut truth: BTreeMap<u64, BTreeSet<(String, String)>> = BTreeMap::new();
    for (number, stream) in streams.iter().enumerate() {
        if stream.until < last && !stream.was_compacted {
            complaints.push(format!("watch {number} ends at {} instead of {last}", stream.until));
        }
        for (until, first) in &stream.steps_back {
            complaints.push(format!("watch {number} yields {first} after it was at {until}"));
        }
        let pairs = stream.events.windows(2);
        for pair in pairs.filter(|pair| pair[1].revision < pair[0].revision) {
            let (one, other) = (pair[0].revision, pair[1].revision);
            complaints.push(format!("watch {number} yields {other} behind {one}"));
        }
        let mut seen: BTreeMap<u64, BTreeSet<(String, String)>> = BTreeMap::new();
        for event in &stream.events {
            let Some(value) = &event.value else {
                complaints.push(format!("watch {number} yields a deletion of {}", event.key));
                continue;
            };
            match writes.get(value.as_str()).map(|write| (&write.outcome, &write.call.keys)) {
                Some((Outcome::Ok { reply, .. }, keys))
                    if *reply == event.revision && keys.contains(&event.key) => {}
                Some((Outcome::Unknown { .. }, keys)) if keys.contains(&event.key) => {}
                _ => {
                    complaints.push(format!("watch {number} yields {event:?}: nobody wrote it so"))
                }
            }
            let row = (event.key.clone(), value.clone());
            if !seen.entry(event.revision).or_default().insert(row) {
                complaints.push(format!("watch {number} yields {event:?} twice"));
            }
        }
        for (revision, rows) in seen {
            let value = rows.first().map_or("", |(_, value)| value);
            let whole = writes.get(value).map_or(0, |write| write.call.keys.len());
            if rows.len() != whole {
                complaints.push(format!("watch {number} yields a part of {revision}: {rows:?}"));
            }
            let before = truth.entry(revision).or_insert_with(|| rows.clone());
            if *before != rows {
                complaints.push(format!(
                    "at {revision} watch {number} yields {rows:?}, another {before:?}"
                ));
            }
        }
    }
    for (number, stream) in streams.iter().enumerate() {
        let seen: BTreeSet<u64> = stream.events.iter().map(|event| event.revision).collect();
        let acknowledged = history.iter().filter_map(|write| match write.outcome {
            Outcome::Ok { reply, .. } => Some(reply),
            _ => None,
        });
        let must = acknowledged.chain(truth.keys().copied());
        let missed: BTreeSet<u64> = must
            .filter(|revision| (stream.from..=stream.until).contains(revision))
            .filter(|revision| !seen.contains(revision))
            .collect();
        if !missed.is_empty() {
            complaints.push(format!("watch {number} never yields {missed:?}"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use bowline::check::Operation;

    use super::*;

    fn event(revision: u64, key: &str) -> Change {
        Change { key: key.to_owned(), value: Some(format!("v{revision}")), revision }
    }

    fn found(events: &[Change]) -> usize {
        let write = |at: u64, keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            Operation::ok(at, at, Write { value: format!("v{at}"), keys }, at)
        };
        let history = vec![write(2, &["a", "b"]), write(3, &["a"])];
        let events = events.to_vec();
        let stream = Stream { from: 1, until: 3, events, ..Stream::default() };
        complaints(&history, &[stream], 3).len()
    }

    #[test]
    fn a_gap_a_torn_revision_a_double_and_a_wrong_order_are_seen() {
        assert_eq!(found(&[event(2, "a"), event(2, "b"), event(3, "a")]), 0);
        assert_eq!(found(&[event(2, "a"), event(2, "b")]), 1);
        assert_eq!(found(&[event(2, "a"), event(3, "a")]), 1);
        assert_eq!(found(&[event(2, "a"), event(2, "b"), event(3, "a"), event(3, "a")]), 1);
        assert_eq!(found(&[event(3, "a"), event(2, "a"), event(2, "b")]), 1);
        assert_eq!(found(&[event(2, "a"), event(2, "b"), event(3, "b")]), 1);
    }
}
