//! Locks on a SQL database: a unique key, a locked row, a version column.

use bowline::{Blocking, Client, LockError, Op, coordination::Expected};

use crate::stage::{Begun, another_session, lasting, session, stand_in_line, until_places};

/// `INSERT` with a unique key: the second client is rejected at once.
#[test]
fn unique_key_insert_succeeds_once_without_waiting() {
    let cluster = lasting(3);
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    let insert = |kv: &Client, owner: &'static str| {
        kv.put_if_absent("locks/report", owner).block().unwrap().is_done()
    };
    assert!(insert(&a, "a"));
    assert!(!insert(&b, "b"));
    assert!(a.compare_and_delete("locks/report", Expected::value("a")).block().unwrap().is_done());
    assert!(insert(&b, "b"));
}

/// `SELECT ... FOR UPDATE`, work, `COMMIT`: the lock ends with its connection.
#[test]
fn select_for_update_lock_is_freed_when_its_connection_dies() {
    let cluster = lasting(3);
    let first = another_session(&cluster, 0, "connection");
    let guard = first.mutex("rows/42").lock().block().unwrap();
    let second = session(&cluster, 1);
    let waiting = stand_in_line(&second, cluster.node(1), "rows/42");
    first.close().block().unwrap();
    let next = waiting.finish().unwrap();
    assert!(!guard.is_held());
    next.txn().then(Op::put("row 42", "2")).commit().block().unwrap();
    next.release().block().unwrap();
}

/// `UPDATE ... WHERE version = ?`, repeated until it succeeds.
#[test]
fn a_version_column_loses_no_update() {
    let cluster = lasting(3);
    let number = |value: &[u8]| std::str::from_utf8(value).unwrap().parse::<u64>().unwrap();
    std::thread::scope(|scope| {
        for member in 0..3 {
            let kv = cluster.node(member).client();
            scope.spawn(move || {
                let stock = kv.cell("stock");
                for _ in 0..5 {
                    // Do this once with a manual loop, and once with `Cell::update`.
                    loop {
                        let row = stock.get().block().unwrap();
                        let (count, seen) = match &row {
                            Some(row) => (number(&row.value), Expected::from(row.version)),
                            None => (0, Expected::Missing),
                        };
                        let swap = stock.compare_and_set(seen, (count + 1).to_string());
                        if swap.block().unwrap().is_done() {
                            break;
                        }
                    }
                    let add = |old: Option<&[u8]>| (old.map_or(0, number) + 1).to_string();
                    stock.update(add).block().unwrap();
                }
            });
        }
    });
    let row = cluster.node(0).client().get("stock").block().unwrap().unwrap();
    assert_eq!((&row.value[..], row.version), (&b"30"[..], 30));
}

/// The columns for owner and time: the queue shows the holder and the time of its acquisition to every client.
#[test]
fn owner_and_time_are_in_the_lock_queue() {
    let cluster = lasting(3);
    let guard = another_session(&cluster, 0, "billing-7").mutex("rows/42").lock();
    let guard = guard.reason("monthly invoice").block().unwrap();
    let line = session(&cluster, 1).mutex("rows/42");
    cluster.all_at(guard.token().revision()).block().unwrap();
    let line = line.queue().unwrap();
    assert_eq!(line[0].label.as_deref(), Some("billing-7"));
    assert_eq!((&line[0].key, line[0].since), (guard.key(), guard.since()));
    assert_eq!(line[0].reason, "monthly invoice");
    assert!(line[0].site.contains("sql.rs"), "{}", line[0].site);
}

/// `UPDATE`, `COMMIT`: the write and the release are one step.
#[test]
fn write_and_release_are_one_revision() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("rows/42").lock().block().unwrap();
    let key = guard.key().clone();
    let write = guard.txn().then(Op::put("row 42", "2"));
    let done = write.commit_and_release(guard).block().unwrap();
    let kv = cluster.node(1).client();
    let row = kv.get("row 42").block().unwrap().unwrap();
    assert_eq!(row.mod_revision, done.revision);
    let before = bowline::Revision(done.revision.get() - 1);
    assert!(kv.get(key.clone()).revision(before).block().unwrap().is_some());
    assert!(kv.get(key).revision(done.revision).block().unwrap().is_none());
}

/// Postgres and MySQL reject one transaction of a deadlock at once and report the cycle.
#[test]
fn deadlock_is_rejected_with_its_chain() {
    let cluster = lasting(3);
    let (one, two) = (session(&cluster, 0), session(&cluster, 1));
    let (left, right) = (one.owner("left"), two.owner("right"));
    let _a = one.mutex("a").lock().owner(&left).block().unwrap();
    let b = two.mutex("b").lock().owner(&right).block().unwrap();
    let waiting = Begun::new(one.mutex("b").lock().owner(&left));
    until_places(cluster.node(1), "b", 2);
    let newest = cluster.node(1).client().range("any").block().unwrap().revision;
    cluster.all_at(newest).block().unwrap();
    let error = two.mutex("a").lock().owner(&right).block().unwrap_err();
    let LockError::Deadlock { cycle } = error else { panic!("{error}") };
    let steps: Vec<_> = cycle.iter().map(|step| (&*step.owner, &step.lock[..])).collect();
    assert_eq!(steps, [("right", &b"a"[..]), ("left", &b"b"[..])]);
    b.release().block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
}
