//! A workload of watches: some clients write, some watch. Every watch must yield each change from its start revision
//! on exactly once and in order, must yield revisions as a whole, and must yield nothing else. A client whose watch
//! was interrupted starts a new watch after the last revision that it has seen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bowline_check::watch::{self, Keys, Received, RecordedEvent, RecordedWatchCall, WatchReply};
use bowline_check::{At, History, Operation, Outcome, Value};

use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Change, Reply};
use crate::fleet::Compaction;
use crate::ledger::Book;
use crate::run::BACK_WITHIN;

pub(super) const KIND: Kind = Kind {
    name: "watch",
    about: "watches yield every change once, in order, in complete revisions, and resume after interruptions",
    least: &[("write", 60), ("events", 60)],
    clients: 3,
    control: None,
    make: || Box::new(Watches::default()),
};

const PREFIX: &str = "w/";
/// End of the range of the prefix.
const PREFIX_END: &str = "w0";
const KEYS: u64 = 5;
const WAIT_MS: u64 = 300;
/// Process number of compactions in reports.
const NEMESIS: u64 = u64::MAX;
/// Part of the message of a watch whose start was compacted, before the oldest available revision.
const COMPACTED: &str = "has been compacted; the oldest left is";

/// The workload.
#[derive(Default)]
struct Watches {
    book: Book<RecordedWatchCall, WatchReply>,
    next: AtomicU64,
    /// Streams that did not progress far enough.
    late: Mutex<Vec<String>>,
    compactions: Mutex<Vec<Compaction>>,
}

impl Watches {
    fn report_problem(&self, why: String) {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(why);
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
            Reply::Swapped { revision, .. } => Ok(WatchReply::Changed { revision }),
            reply => Err(Miss::nonsense(&reply)),
        };
        let holds = |key: String| (key.into(), Some(Value::from(value.as_str())));
        let call = RecordedWatchCall::Change { rows: keys.into_iter().map(holds).collect() };
        drop(caller.operation(&self.book, "write", "", call, write));
    }
}

/// A client. The first client of each member watches, the others write.
struct Hand<'a> {
    watches: &'a Watches,
    watches_itself: bool,
    slot: Option<String>,
    slots: u64,
    /// Revision up to which everything was received.
    until: u64,
}

impl Hand<'_> {
    fn watch(&mut self, caller: &mut Caller<'_>) {
        match self.slot.clone() {
            None => self.begin(caller),
            Some(slot) => self.hear(caller, slot),
        }
    }

    /// Begins another stream after the last received revision.
    fn begin(&mut self, caller: &mut Caller<'_>) {
        self.slots += 1;
        let slot = format!("{}.{}", caller.client, self.slots);
        let start = self.until + 1;
        let call = Call::Watch { slot: slot.clone(), prefix: PREFIX.to_owned(), from: start };
        let keys = Keys::Range(PREFIX.into(), Some(PREFIX_END.into()));
        let stream = slot.as_str().into();
        let watch = RecordedWatchCall::Watch { stream, keys, start: Some(start), only: None };
        let mut gone = None;
        let begun = caller.operation(&self.watches.book, "watch", "", watch, |caller| {
            if let Err(miss) = caller.call(&call) {
                // The error is recorded as a stream whose only message is the compaction.
                gone = oldest_left(&miss);
                gone.ok_or(miss)?;
            }
            Ok(WatchReply::Watching { at: None })
        });
        match (begun, gone) {
            (Ok(_), None) => self.slot = Some(slot),
            (Ok(_), Some(oldest)) => self.compacted(caller, slot, oldest),
            (Err(_), _) => self.broken(caller, slot),
        }
    }

    fn hear(&mut self, caller: &mut Caller<'_>, slot: String) {
        let call = Call::Events { slot: slot.clone(), wait_ms: WAIT_MS };
        match caller.timed("events", |caller| caller.call(&call)).result {
            Ok(Reply::Events { events, until }) => {
                let event = |change: Change| RecordedEvent {
                    revision: change.revision,
                    key: change.key.into(),
                    value: change.value.map(|value| Value::from(value.as_str())),
                    previous: None,
                    created: None,
                };
                let events: Vec<RecordedEvent> = events.into_iter().map(event).collect();
                if !events.is_empty() {
                    self.received(caller, &slot, Received::Events { events, more: false });
                }
                if until > 0 {
                    self.received(caller, &slot, Received::Progress(until));
                }
                self.until = self.until.max(until);
            }
            Ok(_) => self.broken(caller, slot),
            Err(miss) => match oldest_left(&miss) {
                Some(oldest) => self.compacted(caller, slot, oldest),
                None => self.broken(caller, slot),
            },
        }
    }

    /// Records a message received now.
    fn received(&self, caller: &Caller<'_>, slot: &str, received: Received) {
        let (book, now) = (&self.watches.book, caller.now());
        let index =
            book.begin(caller.client, "", now, RecordedWatchCall::Receive { stream: slot.into() });
        book.end(index, Outcome::Ok { at: At(now), reply: WatchReply::Received(received) });
    }

    /// Records that a stream ended with an error. Events that did not arrive are sent again to the next watch.
    fn broken(&mut self, caller: &mut Caller<'_>, slot: String) {
        caller.forget(slot);
        self.slot = None;
    }

    /// Records that the start of the stream was compacted. The next stream starts after the compacted revisions.
    fn compacted(&mut self, caller: &mut Caller<'_>, slot: String, oldest: u64) {
        self.received(caller, &slot, Received::Compacted(oldest));
        self.broken(caller, slot);
        self.until = self.until.max(oldest.saturating_sub(1));
    }
}

/// Returns the oldest available revision in the message of a watch whose start was compacted.
fn oldest_left(miss: &Miss) -> Option<u64> {
    let (Miss::Failed(why) | Miss::Unknown(why)) = miss;
    why.split_once(COMPACTED)?.1.trim().parse().ok()
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
        // After the member is back, everything up to the current revision must arrive.
        let home = caller.member;
        let list = Call::List { prefix: PREFIX.to_owned() };
        let there = caller.call_until_answered(&list, BACK_WITHIN);
        caller.member = home;
        let last = match last_of(&there) {
            Ok(last) => last,
            Err(why) => return self.watches.report_problem(format!("watch on m{home}: {why}")),
        };
        let begun = Instant::now();
        while self.until < last && begun.elapsed() < BACK_WITHIN {
            self.watch(caller);
        }
        if self.until < last {
            let until = self.until;
            self.watches
                .report_problem(format!("the watch on m{home} ended at {until} instead of {last}"));
        }
    }
}

/// Returns the last revision in a list of rows. Each watch must reach it.
fn last_of(there: &Result<Reply, Miss>) -> Result<u64, String> {
    match there {
        Ok(Reply::Rows { rows, .. }) => Ok(rows.iter().map(|row| row.modified).max().unwrap_or(0)),
        other => Err(format!("cannot read the final revision: {other:?}")),
    }
}

impl Workload for Watches {
    fn hears_of(&self, compactions: Vec<Compaction>) {
        *self.compactions.lock().unwrap_or_else(PoisonError::into_inner) = compactions;
    }

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
        let judge = |history: &History<_, _>| watch::check(&watch::WatchRecord::default(), history);
        // A requested compaction may be effective from its call on, whether or not it was confirmed.
        let compactions = self.compactions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let compaction = |Compaction { called, revision }| {
            Operation::unknown(called, RecordedWatchCall::Compact { revision }).by(NEMESIS)
        };
        let mut history: History<_, _> = compactions.into_iter().map(compaction).collect();
        history.extend(self.book.history());
        vec![
            Exhibit::new("watches", "--model watch", history, judge),
            Exhibit::problems("ends of watches", late),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Judgement;

    /// Checks a stream from revision 1 that reports at time 20 that everything before 5 was compacted, with these
    /// compactions requested.
    fn told(compactions: &[(u64, u64)]) -> Judgement {
        let watches = Watches::default();
        let to =
            |(called, revision): &(u64, u64)| Compaction { called: *called, revision: *revision };
        watches.hears_of(compactions.iter().map(to).collect());
        let keys = Keys::Range(PREFIX.into(), Some(PREFIX_END.into()));
        let watch =
            RecordedWatchCall::Watch { stream: "s".into(), keys, start: Some(1), only: None };
        let index = watches.book.begin(1, "", 10, watch);
        let reply = WatchReply::Watching { at: None };
        watches.book.end(index, Outcome::Ok { at: At(11), reply });
        let index =
            watches.book.begin(1, "", 20, RecordedWatchCall::Receive { stream: "s".into() });
        let reply = WatchReply::Received(Received::Compacted(5));
        watches.book.end(index, Outcome::Ok { at: At(20), reply });
        watches.exhibits().remove(0).judge().judgement
    }

    #[test]
    fn compacted_watch_is_valid_only_after_a_compaction_request() {
        assert!(matches!(told(&[(15, 5)]), Judgement::Ok(_)), "{:?}", told(&[(15, 5)]));
        assert!(matches!(told(&[(12, 7)]), Judgement::Ok(_)));
        for compactions in [&[][..], &[(15, 4)], &[(21, 5)]] {
            let said = told(compactions);
            assert!(matches!(said, Judgement::Violation(_)), "{compactions:?}: {said:?}");
        }
    }

    #[test]
    fn oldest_revision_is_parsed_from_the_watch_error() {
        let said = "required revision 3 has been compacted; the oldest left is 17";
        assert_eq!(oldest_left(&Miss::Failed(said.to_owned())), Some(17));
        assert_eq!(oldest_left(&Miss::Failed("the watch has ended".to_owned())), None);
    }

    #[test]
    fn failed_final_read_leaves_the_last_revision_unknown() {
        let rows = Reply::Rows { revision: 9, rows: Vec::new() };
        assert_eq!(last_of(&Ok(rows)), Ok(0));
        assert!(last_of(&Err(Miss::Failed("no quorum".to_owned()))).is_err());
        assert!(last_of(&Ok(Reply::Number(1))).is_err());
    }
}
