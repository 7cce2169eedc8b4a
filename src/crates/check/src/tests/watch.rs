//! Tests of the watch checker: random correct runs of a store and its streams pass, and the same runs with one fault
//! do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::small::Random;
use crate::lines;
use crate::watch::{
    self, Keys, Received, RecordedEvent, RecordedEventKind, RecordedWatchCall, WatchRecord,
    WatchReply,
};
use crate::{History, Operation, Outcome, Value};

const RUNS: u64 = 2_000;

type Recorded = History<RecordedWatchCall, WatchReply>;

/// Draws a correct run: changes, some of unknown outcome, and streams, some of which are interrupted and resumed.
fn run(random: &mut Random) -> Recorded {
    let mut history = Recorded::new();
    let mut rows: BTreeMap<Arc<str>, (Value, u64)> = BTreeMap::new();
    // All events of each revision.
    let mut events: Vec<Vec<RecordedEvent>> = Vec::new();
    for number in 0..6 + random.below(6) {
        let revision = events.len() as u64 + 2;
        let mut touched: Vec<Arc<str>> = Vec::new();
        for key in ["a", "b", "c"] {
            if random.below(3) == 0 {
                touched.push(key.into());
            }
        }
        let mut made = Vec::new();
        for key in touched {
            let value = match rows.contains_key(&key) && random.below(4) == 0 {
                true => None,
                false => Some(Value::from((number * 10) as i64)),
            };
            let before = rows.get(&key).cloned();
            let created = before.as_ref().map_or(revision, |(_, created)| *created);
            match &value {
                Some(value) => drop(rows.insert(key.clone(), (value.clone(), created))),
                None => drop(rows.remove(&key)),
            }
            let created = value.is_some().then_some(created);
            let previous = Some(before.map(|(value, _)| value));
            made.push(RecordedEvent { revision, key, value, previous, created });
        }
        if made.is_empty() {
            continue;
        }
        let rows = made.iter().map(|event| (event.key.clone(), event.value.clone())).collect();
        let (at, call) = (number, RecordedWatchCall::Change { rows });
        history.push(match random.below(5) {
            0 => Operation::unknown(at, call),
            _ => Operation::ok(at, at + 5, call, WatchReply::Changed { revision }),
        });
        events.push(made);
    }
    // One stream watches everything, so that every outcome becomes known.
    tell(random, &mut history, &events, "all", Keys::Range("a".into(), None), None);
    for stream in ["u", "v"] {
        let keys = match random.below(3) {
            0 => Keys::One("a".into()),
            1 => Keys::Range("a".into(), Some("c".into())),
            _ => Keys::Range("b".into(), None),
        };
        let only = match random.below(4) {
            0 => Some(RecordedEventKind::Put),
            1 => Some(RecordedEventKind::Delete),
            _ => None,
        };
        tell(random, &mut history, &events, stream, keys, only);
    }
    history
}

fn tell(
    random: &mut Random,
    history: &mut Recorded,
    events: &[Vec<RecordedEvent>],
    stream: &str,
    keys: Keys,
    only: Option<RecordedEventKind>,
) {
    let is_all = stream == "all";
    let last = events.len() as u64 + 1;
    let start = if is_all { 2 } else { 2 + random.below(3) };
    let stream: Arc<str> = stream.into();
    let mut at = 100;
    let watch = |start| RecordedWatchCall::Watch {
        stream: stream.clone(),
        keys: keys.clone(),
        start: Some(start),
        only,
    };
    let receive = RecordedWatchCall::Receive { stream: stream.clone() };
    let mut say = |history: &mut Recorded, received| {
        at += 1;
        let reply = WatchReply::Received(received);
        history.push(Operation::ok(at, at, receive.clone(), reply));
    };
    history.push(Operation::ok(100, 100, watch(start), WatchReply::Watching { at: None }));
    let mut batch: Vec<RecordedEvent> = Vec::new();
    for (place, made) in events.iter().enumerate() {
        let revision = place as u64 + 2;
        if revision < start {
            continue;
        }
        let asked = made.iter().filter(|event| {
            keys.contains(&event.key) && only.is_none_or(|only| only == event.kind())
        });
        batch.extend(asked.cloned());
        match random.below(4) {
            0 if !batch.is_empty() => {
                let events = std::mem::take(&mut batch);
                say(history, Received::Events { events, more: false });
            }
            1 if batch.len() > 1 && batch[0].revision < revision => {
                // Splits the batch in two, perhaps in the middle of a revision.
                let rest = batch.split_off(1);
                let more = rest[0].revision == batch[0].revision;
                let events = std::mem::replace(&mut batch, rest);
                say(history, Received::Events { events, more });
            }
            2 if batch.is_empty() => say(history, Received::Progress(revision)),
            _ => {}
        }
    }
    if !batch.is_empty() {
        say(history, Received::Events { events: batch, more: false });
    }
    say(history, Received::Progress(last));
}

/// Corrupts one message in a way that is always a fault. Returns `None` if the fault does not apply to the message.
fn spoil(random: &mut Random, history: &mut Recorded) -> Option<&'static str> {
    let known: Vec<u64> = history
        .iter()
        .filter_map(|operation| match operation.outcome {
            Outcome::Ok { reply: WatchReply::Changed { revision }, .. } => Some(revision),
            _ => None,
        })
        .collect();
    let told: Vec<usize> = (0..history.len())
        .filter(|index| {
            matches!(
                &history[*index].outcome,
                Outcome::Ok { reply: WatchReply::Received(Received::Events { .. }), .. }
            )
        })
        .collect();
    if told.is_empty() {
        return None;
    }
    let index = told[random.below(told.len() as u64) as usize];
    let Outcome::Ok { reply: WatchReply::Received(Received::Events { events, more }), .. } =
        &mut history[index].outcome
    else {
        return None;
    };
    let place = random.below(events.len() as u64) as usize;
    Some(match random.below(6) {
        0 => {
            let again = events[place].clone();
            events.push(again);
            "told twice"
        }
        // If no reply contains the revision, a missing event may go unnoticed.
        1 if known.contains(&events[place].revision) => {
            events.remove(place);
            "left out"
        }
        2 => {
            events[place].value = Some(Value::from("nobody's"));
            "another value"
        }
        3 => {
            events[place].previous = Some(Some(Value::from("nobody's")));
            "another value before"
        }
        4 if place > 0 && events[place].revision > events[place - 1].revision => {
            events.swap(place, place - 1);
            "in another order"
        }
        5 if *more => {
            *more = false;
            "torn"
        }
        _ => return None,
    })
}

#[test]
fn valid_watch_run_passes_and_each_fault_fails() {
    let mut spoilt: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..RUNS {
        let random = &mut Random(seed * 1_000_003);
        let mut history = run(random);
        let verdict = watch::check(&WatchRecord::default(), &history);
        assert!(verdict.is_ok(), "seed {seed}: {verdict}\n{history:#?}");
        let Some(fault) = spoil(random, &mut history) else { continue };
        let verdict = watch::check(&WatchRecord::default(), &history);
        let Some(reason) = verdict.violation() else {
            panic!("seed {seed}: {fault}, and {verdict}\n{history:#?}");
        };
        let told = reason.operations.iter().any(|index| reason.why.contains(&format!("#{index}")));
        assert!(told, "seed {seed}: {reason}");
        *spoilt.entry(fault).or_default() += 1;
    }
    assert!(spoilt.len() == 6 && spoilt.values().all(|count| *count > 10), "{spoilt:?}");
}

/// Checks a stream of a store that other programs change as well.
fn among_others(lines: &str) -> crate::Verdict {
    let history = lines::read::<RecordedWatchCall>(lines.as_bytes()).unwrap().history;
    watch::check(&WatchRecord { others: true }, &history)
}

#[test]
fn previous_value_may_be_foreign_unless_the_stream_saw_it() {
    let seen = |start: u64, told: &str, previous: &str| {
        among_others(&format!(
            r#"{{"invoke":1,"complete":2,"outcome":"ok","call":"change","rows":[{{"key":"a","value":5}}],"revision":8}}
{{"invoke":1,"complete":2,"outcome":"ok","call":"watch","stream":"w","key":"a","start":{start}}}
{{"invoke":3,"complete":4,"outcome":"ok","call":"change","rows":[{{"key":"a","value":1}}],"revision":10}}
{{"invoke":9,"complete":9,"outcome":"ok","call":"receive","stream":"w","events":[{told}{{"revision":10,"key":"a","value":1,"previous":{previous}}}]}}"#
        ))
    };
    let told = r#"{"revision":8,"key":"a","value":5},"#;
    for previous in ["5", "7", "null"] {
        let verdict = seen(9, "", previous);
        assert!(verdict.is_ok(), "{previous}: {verdict}");
    }
    assert!(seen(8, told, "5").is_ok());
    let verdict = seen(8, told, "7");
    assert_eq!(verdict.violation().map(|why| why.rule), Some("previous"), "{verdict}");
    // The stream itself reports that the value was 7.
    let others = r#"{"revision":8,"key":"a","value":5},{"revision":9,"key":"a","value":7},"#;
    assert!(seen(8, others, "7").is_ok());
}

#[test]
fn possible_foreign_deletion_is_required_once_reported() {
    let deleted = |other: &str| {
        among_others(&format!(
            r#"{{"invoke":1,"complete":2,"outcome":"ok","call":"change","rows":[{{"key":"a","value":5}}],"revision":8}}
{{"invoke":3,"complete":4,"outcome":"ok","call":"change","rows":[{{"key":"a","value":null}},{{"key":"b","value":1}}],"revision":10}}
{{"invoke":1,"complete":2,"outcome":"ok","call":"watch","stream":"v","key":"a","end":null,"start":10}}
{{"invoke":9,"complete":9,"outcome":"ok","call":"receive","stream":"v","events":[{other}{{"revision":10,"key":"b","value":1}}]}}
{{"invoke":1,"complete":2,"outcome":"ok","call":"watch","stream":"w","key":"a","end":null,"start":10}}
{{"invoke":9,"complete":9,"outcome":"ok","call":"receive","stream":"w","events":[{{"revision":10,"key":"b","value":1}}]}}"#
        ))
    };
    let verdict = deleted("");
    assert!(verdict.is_ok(), "{verdict}");
    let verdict = deleted(r#"{"revision":10,"key":"a","value":null},"#);
    assert_eq!(verdict.violation().map(|why| why.rule), Some("atomic"), "{verdict}");
}
