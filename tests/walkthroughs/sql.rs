//! Locks on a SQL database: a unique key, a row that is locked, a version column.

use bowline::{Client, Compare, Error, Op, Revision, Wait};

use crate::stage::{another_session, lasting, session, stand_in_line};

/// `INSERT` under a unique key: who comes second is told so at once.
fn insert(kv: &Client, key: &str, owner: &str) -> Result<bool, Error> {
    let txn = kv
        .txn()
        .when(Compare::missing(key.to_owned()))
        .then(Op::put(key.to_owned(), owner.to_owned()));
    Ok(txn.commit().wait()?.succeeded)
}

#[test]
fn the_insert_of_a_unique_key_succeeds_once_and_does_not_wait() {
    let cluster = lasting(3);
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    assert!(insert(&a, "locks/report", "a").unwrap());
    assert!(!insert(&b, "locks/report", "b").unwrap());
    a.delete("locks/report").wait().unwrap();
    assert!(insert(&b, "locks/report", "b").unwrap());
}

/// `SELECT ... FOR UPDATE`, work, `COMMIT`: the write and the end of the lock are one step.
#[test]
fn a_row_selected_for_update_is_free_when_its_connection_dies() {
    let cluster = lasting(3);
    let first = another_session(&cluster, 0, "connection");
    let guard = first.mutex("rows/42").lock().wait().unwrap();
    let second = session(&cluster, 1);
    let waiting = stand_in_line(&second, cluster.node(1), "rows/42");
    first.close().wait().unwrap();
    let next = waiting.finish().unwrap();
    assert!(!guard.is_held());
    next.txn().then(Op::put("row 42", "2")).commit().wait().unwrap();
    next.release().wait().unwrap();
}

/// `UPDATE ... WHERE version = ?`, again until it is so.
fn increment(kv: &Client, key: &str) {
    loop {
        let row = kv.get(key.to_owned()).wait().unwrap();
        let count: u64 =
            row.as_ref().map_or(0, |row| std::str::from_utf8(&row.value).unwrap().parse().unwrap());
        let seen = row.map_or(Revision(0), |row| row.mod_revision);
        let txn = kv
            .txn()
            .when(Compare::mod_revision(key.to_owned()).eq(seen))
            .then(Op::put(key.to_owned(), (count + 1).to_string()));
        if txn.commit().wait().unwrap().succeeded {
            return;
        }
    }
}

#[test]
fn a_version_column_loses_no_update() {
    let cluster = lasting(3);
    std::thread::scope(|scope| {
        for member in 0..3 {
            let kv = cluster.node(member).client();
            scope.spawn(move || (0..10).for_each(|_| increment(&kv, "stock")));
        }
    });
    let row = cluster.node(0).client().get("stock").wait().unwrap().unwrap();
    assert_eq!((&row.value[..], row.version), (&b"30"[..], 30));
}

/// The columns for owner and time: who holds and since when is in the line, for everybody to read.
#[test]
fn owner_and_time_stand_in_the_line() {
    let cluster = lasting(3);
    let guard = another_session(&cluster, 0, "billing-7").mutex("rows/42").lock();
    let guard = guard.why("monthly invoice").wait().unwrap();
    let line = session(&cluster, 1).mutex("rows/42");
    cluster.all_at(guard.token().revision()).wait().unwrap();
    let line = line.line().unwrap();
    assert_eq!(line[0].label.as_deref(), Some("billing-7"));
    assert_eq!((&line[0].key, line[0].since), (guard.key(), guard.since()));
}
