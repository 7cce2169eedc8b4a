//! Watches: some clients write, some watch. Every watch yields each change since its first revision once, in
//! order, no revision torn, nothing else; whoever watches again after a break goes on where it was.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bowline::check::watch::{self, Event, Keys, Received, WatchCall, WatchReply};
use bowline::check::{At, History, Outcome, Value};

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Change, Reply};
use crate::ledger::Book;
use crate::run::BACK_WITHIN;

pub(super) const KIND: Kind = Kind {
    name: "watch",
    about: "watches yield every change once, in order, whole revisions, and go on after a break",
    least: &[("write", 60), ("events", 60)],
    clients: 3,
    control: None,
    make: || Box::new(Watches::default()),
};

const PREFIX: &str = "w/";
/// What comes right behind all that begins so.
const PREFIX_END: &str = "w0";
const KEYS: u64 = 5;
const WAIT_MS: u64 = 300;
/// What a watch says before the oldest revision that is left, if it asked for an older one.
const COMPACTED: &str = "has been compacted; the oldest left is";

/// See the module.
#[derive(Default)]
struct Watches {
    book: Book<WatchCall, WatchReply>,
    next: AtomicU64,
    /// Streams that did not come far enough.
    late: Mutex<Vec<String>>,
}

impl Watches {
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
            Reply::Swapped { revision, .. } => Ok(WatchReply::Changed { revision }),
            reply => Err(Miss::nonsense(&reply)),
        };
        let holds = |key: String| (key.into(), Some(Value::from(value.as_str())));
        let call = WatchCall::Change { rows: keys.into_iter().map(holds).collect() };
        drop(caller.operation(&self.book, "write", "", call, write));
    }
}

/// The first client of each member watches, the others write.
struct Hand<'a> {
    watches: &'a Watches,
    watches_itself: bool,
    slot: Option<String>,
    slots: u64,
    /// Everything up to here has been yielded.
    until: u64,
}

impl Hand<'_> {
    fn watch(&mut self, caller: &mut Caller<'_>) {
        match self.slot.clone() {
            None => self.begin(caller),
            Some(slot) => self.hear(caller, slot),
        }
    }

    /// Another stream, behind what the last one has yielded.
    fn begin(&mut self, caller: &mut Caller<'_>) {
        self.slots += 1;
        let slot = format!("{}.{}", caller.client, self.slots);
        let start = self.until + 1;
        let call = Call::Watch { slot: slot.clone(), prefix: PREFIX.to_owned(), from: start };
        let keys = Keys::Range(PREFIX.into(), Some(PREFIX_END.into()));
        let stream = slot.as_str().into();
        let watch = WatchCall::Watch { stream, keys, start: Some(start), only: None };
        let begin = |caller: &mut Caller<'_>| caller.call(&call);
        let begun = caller.operation(&self.watches.book, "watch", "", watch, |caller| {
            begin(caller).map(|_| WatchReply::Watching { at: None })
        });
        match begun {
            Ok(_) => self.slot = Some(slot),
            Err(miss) => self.broken(caller, slot, &miss),
        }
    }

    fn hear(&mut self, caller: &mut Caller<'_>, slot: String) {
        let call = Call::Events { slot: slot.clone(), wait_ms: WAIT_MS };
        match caller.timed("events", |caller| caller.call(&call)).result {
            Ok(Reply::Events { events, until }) => {
                let event = |change: Change| Event {
                    revision: change.revision,
                    key: change.key.into(),
                    value: change.value.map(|value| Value::from(value.as_str())),
                    previous: None,
                    created: None,
                };
                let events: Vec<Event> = events.into_iter().map(event).collect();
                if !events.is_empty() {
                    self.received(caller, &slot, Received::Events { events, more: false });
                }
                if until > 0 {
                    self.received(caller, &slot, Received::Progress(until));
                }
                self.until = self.until.max(until);
            }
            Ok(reply) => self.broken(caller, slot, &Miss::nonsense(&reply)),
            Err(miss) => self.broken(caller, slot, &miss),
        }
    }

    /// Takes down what was told, as of now.
    fn received(&self, caller: &Caller<'_>, slot: &str, received: Received) {
        let (book, now) = (&self.watches.book, caller.now());
        let index = book.begin(caller.client, "", now, WatchCall::Receive { stream: slot.into() });
        book.end(index, Outcome::Ok { at: At(now), reply: WatchReply::Received(received) });
    }

    /// What was yielded and did not arrive is yielded again to the next watch.
    fn broken(&mut self, caller: &mut Caller<'_>, slot: String, miss: &Miss) {
        caller.forget(slot);
        self.slot = None;
        let (Miss::Failed(why) | Miss::Unknown(why)) = miss;
        let oldest = why.split_once(COMPACTED).map(|(_, oldest)| oldest.trim().parse::<u64>());
        if let Some(Ok(oldest)) = oldest {
            // It could not go on; the next stream begins behind that.
            self.until = self.until.max(oldest - 1);
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
        // Everything up to what is there now must come, as soon as the member is back.
        let home = caller.member;
        let list = Call::List { prefix: PREFIX.to_owned() };
        let rows = match caller.insist(&list, BACK_WITHIN) {
            Ok(Reply::Rows { rows, .. }) => rows,
            _ => Vec::new(),
        };
        caller.member = home;
        let last = rows.iter().map(|row| row.modified).max().unwrap_or(0);
        let begun = Instant::now();
        while self.until < last && begun.elapsed() < BACK_WITHIN {
            self.watch(caller);
        }
        if self.until < last {
            let late = format!("the watch on m{home} ends at {} instead of {last}", self.until);
            self.watches.late.lock().unwrap_or_else(PoisonError::into_inner).push(late);
        }
    }
}

impl Workload for Watches {
    fn client<'a>(&'a self, number: u64) -> Box<dyn Client + 'a> {
        Box::new(Hand {
            watches: self,
            watches_itself: number.is_multiple_of(KIND.clients),
            slot: None,
            slots: 0,
            until: 0,
        })
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = |history: &History<_, _>| watch::check(&watch::Watch::default(), history);
        vec![
            Exhibit::new("watches", "--model watch", self.book.history(), judge),
            Exhibit::complaints("ends of watches", late),
        ]
    }
}
