//! Tests of typed values: what is stored, and rows that cannot be decoded.

use bowline::coordination::CellUpdate;
use bowline::kv::RevisionBounds;
use bowline::typed::{Codec, Typed, TypedCell, TypedEvent, TypedRange};
use bowline::{Blocking, Bytes, Effect, Error, KeyRange, Revision, SortOrder, SortTarget};
use serde::{Deserialize, Serialize};

use crate::stage::{lasting, session};

#[derive(Clone, Serialize, Deserialize, PartialEq, Debug)]
struct Rate {
    per_second: u32,
    note: Option<String>,
}

fn rate(per_second: u32) -> Rate {
    Rate { per_second, note: None }
}

/// Even numbers as decimal text.
#[derive(Clone)]
struct Even;

impl Codec<u32> for Even {
    fn encode(&self, value: &u32) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        if value.is_multiple_of(2) { Ok(value.to_string().into()) } else { Err("it is odd".into()) }
    }

    fn decode(&self, bytes: &[u8]) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
        Ok(std::str::from_utf8(bytes)?.parse()?)
    }
}

#[test]
fn typed_values_are_stored_as_plain_json() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let rates = kv.typed::<Rate>("rates/");
    rates.put("eu", rate(1)).block().unwrap();
    assert_eq!(
        kv.get("rates/eu").block().unwrap().unwrap().value,
        r#"{"per_second":1,"note":null}"#
    );
    kv.put("rates/us", r#" {"note": "x", "per_second": 2} "#).block().unwrap();
    let us = rates.get("us").block().unwrap().unwrap();
    assert_eq!((us.value.per_second, us.version, us.key), (2, 1, "us".into()));
    assert_eq!(rates.get("none").local().block(), Ok(None));
    let all = rates.range(..).block().unwrap();
    assert_eq!(all.iter().map(|row| row.as_ref().unwrap().value.per_second).sum::<u32>(), 3);
    assert_eq!(rates.delete("eu".."ev").block().unwrap().deleted, 1);
    // A folder with an empty name contains only the keys in the scope of its client.
    let all = kv.with_prefix("rates/").typed::<Rate>("").range(..).block().unwrap();
    assert_eq!(all.len(), 1);
}

#[test]
fn row_that_does_not_decode_is_an_error_with_its_bytes() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let rates = kv.typed::<Rate>("rates/");
    let put = kv.put("rates/bad", "{").block().unwrap().revision;
    let why = match rates.get("bad").block() {
        Err(Error::Decode(why)) => *why,
        other => panic!("{other:?}"),
    };
    assert_eq!((&why.key[..], &why.value[..]), (&b"bad"[..], &b"{"[..]));
    assert_eq!((why.full_key(), why.mod_revision), ("rates/bad".into(), Some(put)));
    assert!(why.to_string().starts_with("cannot decode the row \"rates/bad\": EOF"), "{why}");
    // If the client has a prefix, full keys consist of the prefix of the client, the name of the folder, and the key.
    let inner = kv.with_prefix("ra").typed::<Rate>("tes/");
    let same = inner.range(..).block().unwrap()[0].clone().unwrap_err();
    assert_eq!((same.key.clone(), same.full_key()), ("bad".into(), "rates/bad".into()));
    let mut watch = rates.watch(..).from(put).block().unwrap();
    assert_eq!(watch.next().block().unwrap().unwrap().events, [Err(why.clone())]);
    rates.put("good", rate(1)).block().unwrap();
    let rows = rates.range(..).block().unwrap();
    assert_eq!((rows[0].as_ref().unwrap_err(), &rows[1].as_ref().unwrap().value), (&why, &rate(1)));

    assert_eq!(rates.cell("bad").get().block(), Err(why.clone().into()));
    let change = |_| panic!("the old value cannot be decoded");
    assert!(matches!(rates.cell("bad").update(change).block(), Err(Error::Decode(_))));
    // A program can delete the row with the key and the revision in the error. The row is not deleted if it was
    // repaired meanwhile.
    let delete =
        || rates.client().compare_and_delete(&why.key, why.mod_revision.unwrap()).block().unwrap();
    assert!(delete().is_done());
    rates.put("bad", rate(2)).block().unwrap();
    assert!(!delete().is_done());
}

#[test]
fn undecodable_row_is_an_error_of_its_key_and_does_not_stop_the_view() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let rates = kv.typed::<Rate>("rates/");
    rates.put("a", rate(1)).block().unwrap();
    kv.put("rates/bad", "{").block().unwrap();
    kv.put("ratesz", "outside").block().unwrap();
    let mut cached = rates.cached().block().unwrap();
    let value = |key: &str| cached.get(key).map(|row| row.map(|row| row.value.per_second));
    assert_eq!((value("a"), value("none")), (Ok(Some(1)), Ok(None)));
    let Err(Error::Decode(why)) = value("bad") else { panic!("it is not JSON") };
    assert_eq!((&why.key[..], why.full_key()), (&b"bad"[..], "rates/bad".into()));

    let before = cached.view().unwrap();
    assert_eq!(before.get("bad").unwrap_err(), *why);
    assert_eq!(before.get("a").unwrap().unwrap().value, rate(1));
    assert_eq!(before.get("none"), Ok(None));
    let bad: Vec<_> = before.undecodable().cloned().collect();
    assert_eq!((bad, before.len()), (vec![*why.clone()], 2));
    assert!(before.keys().eq(["a", "bad"]) && !before.is_empty());
    assert_eq!(before.iter().map(|row| row.is_ok()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(before.prefix(b"b").filter(|row| row.is_err()).count(), 1);

    // The view continues: with changes to good rows, and with the repaired row.
    let put = rates.put("bad", rate(2)).block().unwrap().revision;
    let after = cached.changed().block().unwrap();
    assert_eq!((after.undecodable().count(), after.revision() >= put), (0, true));
    assert_eq!(after.get("bad").unwrap().unwrap().value, rate(2));
    assert_eq!(after.iter().flatten().map(|row| row.value.per_second).sum::<u32>(), 3);
    let put = kv.put("rates/a", "x").block().unwrap().revision;
    let last = cached.clone().wait_for(put).block().unwrap();
    assert_eq!(last.get("a").unwrap_err().mod_revision, Some(put));
    assert!(cached.changed().block().is_ok() && cached.revision().unwrap() >= put);
    assert_eq!(before.get("a").unwrap().unwrap().value, rate(1), "an old view stays as it is");
}

/// A program keeps handles in a struct without naming the codec.
struct Handles {
    rates: Typed<Rate>,
    first: TypedCell<Rate>,
}

#[test]
fn codec_of_a_handle_is_json_by_default() {
    let cluster = lasting(1);
    let rates = cluster.node(0).client().typed("rates/");
    let handles = Handles { first: rates.cell("first"), rates };
    handles.first.set(rate(1)).block().unwrap();
    assert_eq!(handles.rates.get("first").block().unwrap().unwrap().value, rate(1));
}

#[test]
fn typed_range_is_read_in_pages_at_one_revision() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let even = kv.typed_with("even/", Even);
    for key in ["a", "b", "c", "d"] {
        even.put(key, 2).block().unwrap();
    }
    let last = kv.put("even/bad", "x").block().unwrap().revision;
    kv.put("evez", "outside").block().unwrap();
    let mut keys = Vec::new();
    let mut page = even.range(..).limit(2).revision(last).block().unwrap();
    assert_eq!((page.count, page.revision), (5, last.next()));
    loop {
        for row in &page {
            keys.push(row.as_ref().map_or_else(|why| why.key.clone(), |row| row.key.clone()));
        }
        even.put("e", 4).block().unwrap();
        let Some(key) = page.last_key().filter(|_| page.more).cloned() else { break };
        let rest = even.range(KeyRange::all().after(key)).limit(2).skip_count();
        page = rest.revision(last).block().unwrap();
    }
    assert_eq!(keys, ["a", "b", "bad", "c", "d"]);
    let rest = even.range(KeyRange::all().after("e")).block().unwrap();
    assert_eq!((rest.len(), rest.more, rest.count, rest.last_key()), (0, false, 0, None));
    assert_eq!(even.range(..).limit_bytes(1).block().unwrap().len(), 1);
    assert_eq!(even.range(""..).block().unwrap().count, 6);
}

#[test]
fn watch_continues_after_a_row_that_does_not_decode() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let rates = kv.typed::<Rate>("rates/");
    let begun = rates.put("a", rate(1)).block().unwrap().revision;
    let mut watch = rates.watch(..).from(begun).block().unwrap();
    kv.put("rates/a", "x").block().unwrap();
    rates.put("a", rate(2)).block().unwrap();
    let last = rates.delete("a").block().unwrap().revision;
    let mut events = Vec::new();
    while events.len() < 4 {
        let batch = watch.next().block().unwrap().unwrap();
        assert!(batch.revision >= begun);
        events.extend(batch.events);
    }
    let put = |event: &Result<TypedEvent<Rate>, _>| match event {
        Ok(TypedEvent::Put(row)) => row.value.per_second,
        other => panic!("{other:?}"),
    };
    assert_eq!((put(&events[0]), put(&events[2])), (1, 2));
    assert_eq!(events[1].as_ref().unwrap_err().value, "x");
    assert_eq!(events[3], Ok(TypedEvent::Delete { key: "a".into(), revision: last }));
    assert_eq!(events[0].as_ref().unwrap().key_text(), Ok("a"));
    assert_eq!(events[3].as_ref().unwrap().key_text(), Ok("a"));
    rates.put([0xff], rate(3)).block().unwrap();
    let why = rates.get([0xff]).block().unwrap().unwrap().key_text().unwrap_err().to_string();
    assert!(why.contains("the key is not UTF-8 text"), "{why}");
}

#[test]
fn value_without_an_encoding_is_not_written() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let numbers = kv.typed_with("n/", Even);
    let why = numbers.put("a", 3).block().unwrap_err();
    assert_eq!(why.to_string(), "not applied: cannot encode the value for \"n/a\": it is odd");
    assert_eq!((why.effect(), why.is_transient()), (Effect::NotApplied, false));
    assert!(numbers.cell("a").set(3).block().is_err());
    assert!(numbers.cell("a").compare_and_set(Revision(0), 3).block().is_err());
    assert!(numbers.cell("a").update(|_| 3).block().is_err());
    assert!(numbers.cell("a").try_update(|_| CellUpdate::Put(3, ())).block().is_err());
    assert!(numbers.queue("q").put(3).priority(1).block().is_err());
    assert!(numbers.queue("q").put_many([2, 3]).block().is_err());
    assert!(numbers.queue("q").put_op(&3, 0).is_err());
    assert_eq!(kv.range(..).block().unwrap().count, 0);
    numbers.put("a", 4).block().unwrap();
    assert_eq!(numbers.get("a").block().unwrap().unwrap().value, 4);
}

#[test]
fn typed_cell_updates_and_reports_changes() {
    let cluster = lasting(1);
    let cell = cluster.node(0).client().typed::<Vec<u32>>("c/").cell("list");
    assert_eq!(cell.get().block(), Ok(None));
    let first = cell.update(|old| old.unwrap_or(vec![1])).block().unwrap();
    assert_eq!(cell.changed(Revision(0)).block().unwrap(), Some(first.clone()));
    let push = |old: Option<Vec<u32>>| [old.unwrap(), vec![2]].concat();
    assert_eq!(cell.clone().update(push).block().unwrap().value, [1, 2]);
    assert!(!cell.compare_and_set(first.version, vec![]).block().unwrap().is_done());
    cell.set(vec![7]).block().unwrap();
    assert_eq!(cell.get().block().unwrap().unwrap().value, [7]);
    let once = |old: Option<Vec<u32>>| match old.unwrap() {
        old if old.contains(&8) => CellUpdate::Keep(old.len()),
        old => CellUpdate::Put([old, vec![8]].concat(), 0),
    };
    assert_eq!(cell.try_update(once).block(), Ok(0));
    let version = cell.get().block().unwrap().unwrap().version;
    assert_eq!(cell.try_update(once).block(), Ok(2));
    assert_eq!(cell.get().block().unwrap().unwrap().version, version, "nothing was written");
}

#[test]
fn typed_items_are_taken_with_their_value_or_the_reason() {
    let cluster = lasting(1);
    let (kv, session) = (cluster.node(0).client(), session(&cluster, 0));
    let jobs = kv.with_prefix("app/").typed::<Rate>("").queue("jobs");
    let taker = jobs.taker(&session).attempts_max(3);
    jobs.put(rate(1)).block().unwrap();
    jobs.put_many([&rate(2), &rate(3)]).block().unwrap();
    kv.queue("app/jobs").put("x").block().unwrap();
    kv.txn()
        .then(kv.typed::<Rate>("").queue("app/jobs").put_op(&rate(4), 0).unwrap())
        .commit()
        .block()
        .unwrap();
    for expected in [Some(1), Some(2), Some(3), None, Some(4)] {
        let job = taker.take().block().unwrap();
        match (job.value, expected) {
            (Ok(value), Some(expected)) => assert_eq!(value, rate(expected)),
            (Err(why), None) => {
                assert_eq!(why.value, "x");
                assert!(why.key.starts_with(b"app/jobs/item/"));
            }
            other => panic!("{other:?}"),
        }
        job.delivery.ack().block().unwrap();
    }
    assert!(taker.try_take().block().unwrap().is_none());
}

#[test]
fn typed_conditional_writes_encode_their_values() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let even = kv.typed_with("even/", Even);
    assert!(even.put_if_absent("a", 2).block().unwrap().is_done());
    assert!(!even.put_if_absent("a", 4).block().unwrap().is_done());
    let seen = even.get("a").block().unwrap().unwrap().mod_revision;
    assert!(even.compare_and_set("a", seen, 6).block().unwrap().is_done());
    assert!(!even.compare_and_set("a", seen, 8).block().unwrap().is_done());
    assert_eq!(kv.get("even/a").block().unwrap().unwrap().value, "6");
    // A value that cannot be encoded writes nothing.
    let before = kv.revision();
    let [absent, set] = [
        even.put_if_absent("b", 3).block().unwrap_err(),
        even.compare_and_set("a", seen, 3).block().unwrap_err(),
    ];
    for (error, bad) in [(absent, "even/b"), (set, "even/a")] {
        assert!(matches!(&error, Error::Encode { key, .. } if key == bad), "{error}");
        assert_eq!(error.effect(), Effect::NotApplied);
    }
    assert_eq!(kv.revision(), before);
}

#[test]
fn typed_range_has_the_options_of_an_untyped_one() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let even = kv.typed_with("even/", Even);
    let first = even.put("a", 2).block().unwrap().revision;
    even.put("b", 4).block().unwrap();
    even.put("c", 6).block().unwrap();
    even.put("a", 8).block().unwrap();
    let values = |rows: TypedRange<u32>| {
        rows.into_iter().map(|row| row.unwrap().value).collect::<Vec<u32>>()
    };
    assert_eq!(values(even.range(..).block().unwrap()), [8, 4, 6]);
    assert_eq!(values(even.range(..).limit(2).block().unwrap()), [8, 4]);
    assert_eq!(values(even.range(..).revision(first).block().unwrap()), [2]);
    let newest = even.range("b".."d").sort(SortTarget::Mod, SortOrder::Descend).local();
    assert_eq!(values(newest.block().unwrap()), [6, 4]);
    let later = RevisionBounds { mod_min: Some(first.next()), ..RevisionBounds::default() };
    assert_eq!(values(even.range("a".."c").bounds(later).at_least(first).block().unwrap()), [8, 4]);
}

#[test]
fn dead_letters_of_a_typed_queue_are_typed_and_can_be_requeued() {
    let cluster = lasting(1);
    let (kv, session) = (cluster.node(0).client(), session(&cluster, 0));
    let jobs = kv.with_prefix("app/").queue("jobs").typed::<Rate>();
    let taker = jobs.taker(&session);
    jobs.put(rate(1)).block().unwrap();
    kv.queue("app/jobs").put("x").block().unwrap();
    let items = jobs.items().block().unwrap();
    assert_eq!(items[0].value, Ok(rate(1)));
    let why = items[1].value.as_ref().unwrap_err();
    assert_eq!((&why.value[..], why.key.starts_with(b"jobs/item/")), (&b"x"[..], true));
    for _ in 0..2 {
        taker.take().block().unwrap().delivery.dead_letter("no paper").block().unwrap();
    }
    let dead = jobs.dead_letters();
    assert_eq!(dead.name(), "app/jobs/dead");
    let letters = dead.items().block().unwrap();
    assert_eq!((&letters[0].value, letters[1].value.is_err()), (&Ok(rate(1)), true));
    assert_eq!(letters[0].dead_letter.as_ref().unwrap().reason, "no paper");
    assert!(jobs.limit(1).requeue(&letters[0].id).block().unwrap());
    assert!(jobs.limit(1).put(rate(2)).block().is_err());
    let job = taker.take().block().unwrap();
    assert_eq!((job.value.unwrap(), job.delivery.attempt()), (rate(1), 1));
    job.delivery.ack().block().unwrap();
    // The taker of the dead-letter queue decodes too.
    let letter = dead.taker(&session).take().block().unwrap();
    assert_eq!(letter.value.unwrap_err().value, "x");
    letter.delivery.ack().block().unwrap();
    assert!(dead.is_empty().block().unwrap());
}

#[test]
fn typed_result_is_written_with_the_acknowledgement() {
    let cluster = lasting(1);
    let (kv, session) = (cluster.node(0).client(), session(&cluster, 0));
    let even = kv.with_prefix("app/").typed_with("even/", Even);
    let jobs = session.queue("jobs");
    jobs.put("a").block().unwrap();
    let job = jobs.take().block().unwrap();
    let why = even.put_op("a", &3).unwrap_err();
    assert!(matches!(&why, Error::Encode { key, .. } if key == "app/even/a"), "{why}");
    job.ack_with([even.put_op("a", &4).unwrap()]).block().unwrap();
    assert_eq!(even.get("a").block().unwrap().unwrap().value, 4);
    // Keys are complete under a lock, and in transactions of a client without a prefix.
    let guard = session.mutex("lock").lock().block().unwrap();
    guard.txn().then(even.put_op("b", &6).unwrap()).commit().block().unwrap();
    kv.txn().then(even.put_op("c", &8).unwrap()).commit().block().unwrap();
    let rows = even.range(..).block().unwrap();
    assert_eq!(rows.into_iter().map(|row| row.unwrap().value).collect::<Vec<_>>(), [4, 6, 8]);
}
