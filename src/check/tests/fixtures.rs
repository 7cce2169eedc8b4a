//! Histories whose verdict is known, as `histories/*.txt` tells them: `## good: name`, or `## bad [operations]: name`
//! with the smallest reason, and then JSON lines.

use crate::check::lines::{self, LineError, Written};
use crate::check::{Budget, Kv, Mutex, Queue, Register, Semaphore, linear};

fn judge<M: Written>(model: &M, text: &str) {
    let (mut good, mut bad) = (0, 0);
    for section in text.split("## ").skip(1) {
        let (header, body) = section.split_once('\n').unwrap();
        let (expected, name) = header.split_once(": ").unwrap();
        let history = lines::read::<M>(body.as_bytes())
            .unwrap_or_else(|error| panic!("{name}: {error}"))
            .history;
        let verdict = linear::check(model, &history, Budget::default());
        let said = match verdict.violation() {
            None if verdict.is_ok() => "good".to_owned(),
            None => "undecided".to_owned(),
            Some(reason) => format!("bad {:?}", reason.operations),
        };
        assert_eq!(said, expected, "{name}: {verdict}");
        if verdict.is_ok() {
            good += 1
        } else {
            bad += 1
        }
        // It is written as it was read.
        let mut written = Vec::new();
        lines::write::<M>(&history, &mut written).unwrap();
        let again = lines::read::<M>(&written[..]).map(|lines| lines.history);
        assert_eq!(
            again.map(|again| lines_of::<M>(&again)).unwrap(),
            lines_of::<M>(&history),
            "{name}"
        );
    }
    assert!(good >= 4 && bad >= 4, "{good} good, {bad} bad");
}

fn lines_of<M: Written>(history: &crate::check::History<M::Call, M::Reply>) -> Vec<String> {
    history.iter().map(lines::line::<M>).collect()
}

#[test]
fn registers() {
    judge(&Register::default(), include_str!("histories/register.txt"));
}

#[test]
fn mutexes() {
    judge(&Mutex::default(), include_str!("histories/mutex.txt"));
}

#[test]
fn reentrant_fenced_mutexes() {
    let model = Mutex { holds_max: 2, is_fenced: true };
    judge(&model, include_str!("histories/reentrant.txt"));
}

#[test]
fn semaphores() {
    judge(&Semaphore { permits: 3 }, include_str!("histories/semaphore.txt"));
}

#[test]
fn queues() {
    judge(&Queue, include_str!("histories/queue.txt"));
}

#[test]
fn stores_with_revisions() {
    judge(&Kv::default(), include_str!("histories/kv.txt"));
}

/// What is said of a bad second line.
fn complaint<M: Written>(line: &str) -> String {
    let text = format!("# the first line\n{line}\n");
    lines::read::<M>(text.as_bytes()).map(|_| ()).expect_err(line).to_string()
}

#[test]
fn a_bad_line_is_named_with_what_is_wrong_with_it() {
    let table = [
        (
            r#"{"invoke":1"#,
            "line 2: it is no JSON: EOF while parsing an object at line 1 column 11",
        ),
        ("[1]", "line 2: it is no JSON object"),
        ("{}", "line 2: the field `invoke` is missing"),
        (r#"{"invoke":-1}"#, "line 2: the field `invoke` is -1, not a whole number from 0"),
        (r#"{"invoke":1.5}"#, "line 2: the field `invoke` is 1.5, not a whole number from 0"),
        (
            r#"{"invoke":1,"process":"a"}"#,
            r#"line 2: the field `process` is "a", not a whole number from 0"#,
        ),
        (r#"{"invoke":1,"object":7}"#, "line 2: the field `object` is 7, not a text"),
        (r#"{"invoke":5,"complete":4}"#, "line 2: it completes at 4, before it is invoked at 5"),
        (r#"{"invoke":1,"complete":2,"outcome":"ok"}"#, "line 2: the field `call` is missing"),
        (r#"{"invoke":1,"complete":2,"call":"read"}"#, "line 2: the field `outcome` is missing"),
        (
            r#"{"invoke":1,"complete":2,"outcome":"fine","call":"read"}"#,
            r#"line 2: the field `outcome` is "fine", not "ok", "failed" or "unknown""#,
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"raed","result":1}"#,
            "line 2: the model has no call `raed`",
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"read"}"#,
            "line 2: the field `result` is missing",
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"read","resutl":1,"result":1}"#,
            "line 2: nobody knows the field `resutl` here",
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"read","result":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}"#,
            "line 2: the field `result` is [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,..., not a whole number below 2^63, a text or null",
        ),
        (
            r#"{"invoke":1,"outcome":"ok","call":"read","result":1}"#,
            "line 2: the field `complete` is missing",
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"cas","expect":1,"value":2,"swapped":1}"#,
            "line 2: the field `swapped` is 1, not true or false",
        ),
    ];
    for (line, expected) in table {
        assert_eq!(complaint::<Register>(line), expected);
    }
}

#[test]
fn a_line_without_an_end_is_not_read_into_memory() {
    let mut text = b"{\"invoke\":1,\"object\":\"".to_vec();
    text.resize(2 * lines::LINE_BYTES_MAX, b'x');
    let error: LineError = lines::read::<Register>(&text[..]).unwrap_err();
    assert_eq!(error.to_string(), "line 1: it is longer than 1048576 bytes");
}
