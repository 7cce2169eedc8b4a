//! Tests that a string names one key in every call, and that prefixes need explicit methods.

use bowline::{Blocking, Bytes, Compare, KeyRange, Op, TxnResult};

use crate::stage::{lasting, session};

/// The key that the calls name, and another key with that prefix.
const KEYS: [&str; 2] = ["k/", "k/1"];

fn keys(rows: &[bowline::KeyValue]) -> Vec<&[u8]> {
    rows.iter().map(|row| &row.key[..]).collect()
}

#[test]
fn a_string_names_one_key() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let mut watch = kv.watch("k/").block().unwrap();
    for key in [KEYS[1], KEYS[0]] {
        kv.put(key, "v").block().unwrap();
    }
    assert_eq!(watch.next().block().unwrap().unwrap().events[0].kv.key, "k/");
    assert_eq!(kv.get("k/").block().unwrap().unwrap().key, "k/");
    assert_eq!(keys(&kv.range("k/").block().unwrap().kvs), [b"k/"]);
    assert_eq!(kv.estimated_len("k/", 10), 0, "a single key counts for none");
    let caller = bowline::auth::Caller { user: None, revision: kv.access().revision() };
    assert_eq!(keys(&kv.as_user(caller).range("k/").block().unwrap().kvs), [b"k/"]);
    // Only `k/1` is written again.
    kv.put(KEYS[1], "w").block().unwrap();
    for holds in [
        Compare::exists("k/"),
        Compare::version("k/").eq(1u64),
        Compare::value("k/").eq("v"),
        Compare::lease("k/").eq(0u64),
        Compare::missing("k"),
    ] {
        let reply = kv.txn().when(holds).then(Op::range("k/")).then(Op::get("k/")).commit();
        let reply = reply.block().unwrap();
        assert!(reply.succeeded);
        for result in reply.results {
            let TxnResult::Range(range) = result else { panic!("{result:?}") };
            assert_eq!(keys(&range.kvs), [b"k/"]);
        }
    }
    assert_eq!(KeyRange::from("k/"), KeyRange::key("k/"));
    kv.txn().then(Op::delete("k/")).commit().block().unwrap();
    assert_eq!(keys(&kv.range(KeyRange::all()).block().unwrap().kvs), [b"k/1"]);
    kv.put("k/", "v").block().unwrap();
    assert_eq!(kv.delete("k/").block().unwrap().deleted, 1);
    assert_eq!(keys(&kv.range(KeyRange::all()).block().unwrap().kvs), [b"k/1"]);
}

#[test]
fn a_method_with_prefix_in_its_name_takes_a_prefix() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let mut watch = kv.watch_prefix("k/").block().unwrap();
    for key in KEYS {
        kv.put(key, "v").block().unwrap();
    }
    let first = watch.next().block().unwrap().unwrap();
    assert_eq!(first.events[0].kv.key, "k/");
    if first.events.len() == 1 {
        assert_eq!(watch.next().block().unwrap().unwrap().events[0].kv.key, "k/1");
    }
    assert_eq!(keys(&kv.get_prefix("k/").block().unwrap().kvs), [&b"k/"[..], b"k/1"]);
    let view = kv.cached_prefix("k/").block().unwrap().view().unwrap();
    assert_eq!((view.len(), view.prefix(b"k/1").count()), (2, 1));
    assert_eq!(kv.with_prefix("k").get("/1").block().unwrap().unwrap().key, "/1");
    assert_eq!(kv.sequential_prefix("s/").put("").block().unwrap().key, "s/0000000000");
    assert_eq!(kv.delete_prefix("k/").block().unwrap().deleted, 2);
}

#[test]
fn lock_name_is_one_lock_and_a_prefix_lists_many() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let locks = cluster.node(0).locks();
    let held = ["jobs", "jobs/1"].map(|name| session.mutex(name).lock().block().unwrap());
    let names = |prefix: &'static str| {
        let listed = locks.list_prefix(prefix).unwrap();
        listed.into_iter().map(|lock| lock.name).collect::<Vec<_>>()
    };
    assert_eq!(names("jobs"), ["jobs", "jobs/1"]);
    assert_eq!(names("jobs/"), ["jobs/1"]);
    assert_eq!(names(""), ["jobs", "jobs/1"]);
    assert_eq!(locks.of("jobs").unwrap().queue.len(), 1);
    assert_eq!(locks.of("jobs/").unwrap().queue.len(), 0);
    drop(held);
}

#[test]
fn calls_take_keys_and_values_in_the_form_that_the_program_has() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let (text, bytes) = (String::from("k"), Bytes::from("k"));
    let raw: &[u8; 1] = b"k";
    for put in [
        kv.put(&text, text.as_str()),
        kv.put(text.clone(), &text),
        kv.put(&bytes, raw),
        kv.put(bytes.clone(), raw.to_vec()),
        kv.put(*raw, raw.as_slice()),
    ] {
        put.block().unwrap();
        let row = kv.get(&text).block().unwrap().unwrap();
        assert_eq!((row.key_text(), row.text()), (Ok("k"), Ok("k")));
    }
    assert_eq!(kv.get(raw).block().unwrap().unwrap().version, 5);
    let when = [Compare::value(&text).eq(&bytes), Compare::exists(&bytes)];
    let txn = kv.txn().when_all(when).then(Op::get(&text)).then(Op::put(&text, &bytes));
    assert!(txn.commit().block().unwrap().succeeded);
    assert_eq!(kv.get_prefix(&text).block().unwrap().count, 1);
    assert_eq!(kv.range(&text).block().unwrap().count, 1);
    assert_eq!(kv.range("a"..&text).block().unwrap().count, 0);
    assert_eq!(kv.range("a"..="k").block().unwrap().count, 1);
    assert_eq!(kv.range(..).block().unwrap().count, 1);
    drop((kv.watch(&text).block().unwrap(), kv.watch(&text..).block().unwrap()));

    let session = session(&cluster, 0);
    let names = ["a", "b"].map(String::from);
    drop(session.mutex(&text).lock().block().unwrap());
    drop(session.lock_all(&names).block().unwrap());
    drop(session.election(&text).campaign(&bytes).block().unwrap());
    kv.queue(&text).put_many(&names).block().unwrap();
    assert_eq!(session.queue(&text).take().block().unwrap().text(), Ok("a"));
    kv.cell(&text).set(&bytes).block().unwrap();
    assert_eq!(kv.cell(&text).get().block().unwrap().unwrap().text(), Ok("k"));
}

#[test]
fn a_value_that_is_not_text_is_an_error_with_its_key() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    kv.put("raw", [b'a', 0xff]).block().unwrap();
    kv.put([0xfe], "12x").block().unwrap();
    let read = |key: &[u8]| kv.get(key).block().unwrap().unwrap();
    let why = read(b"raw").text().unwrap_err();
    assert_eq!((&why.key[..], &why.value[..]), (&b"raw"[..], &b"a\xff"[..]));
    assert!(why.to_string().contains("\"raw\": the value is not UTF-8 text: invalid byte at 1"));
    let why = read(&[0xfe]).parse::<u32>().unwrap_err();
    assert_eq!(why.to_string(), r#"cannot decode the row "\xfe": invalid digit found in string"#);
    assert!(read(&[0xfe]).key_text().unwrap_err().to_string().contains("the key is not"));
    let error = bowline::Error::from(why);
    assert_eq!((error.effect(), error.is_transient()), (bowline::Effect::NotApplied, false));

    let session = session(&cluster, 0);
    kv.queue("q").put([0xff]).block().unwrap();
    assert!(kv.queue("q").items().block().unwrap()[0].text().is_err());
    let why = session.queue("q").take().block().unwrap().text().unwrap_err();
    assert!(why.key.starts_with(b"q/item/"));
}
