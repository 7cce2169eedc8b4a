//! Histories with a known verdict, from `histories/*.txt`. A section begins with `## good: name`, or with
//! `## bad [operations]: name` and the smallest reason, followed by JSON lines.

use crate::intervals::{self, HoldCall, Holds, Leases};
use crate::lines::{self, LineError, Written};
use crate::watch::{self, RecordedWatchCall, WatchRecord};
use crate::{
    Budget, ElectionCall, ElectionModel, History, Kv, KvCall, Model, MutexModel, QueueModel,
    Register, RegisterCall, SemaphoreModel, Total, Verdict, linear, total,
};

const ELECTION: &str = include_str!("histories/election.txt");
const HOLDS: &str = include_str!("histories/holds.txt");
const HOLDS_SHARED: &str = include_str!("histories/holds_shared.txt");
const KV: &str = include_str!("histories/kv.txt");
const LEASES: &str = include_str!("histories/leases.txt");
const MUTEX: &str = include_str!("histories/mutex.txt");
const QUEUE: &str = include_str!("histories/queue.txt");
const REENTRANT: &str = include_str!("histories/reentrant.txt");
const REGISTER: &str = include_str!("histories/register.txt");
const SEMAPHORE: &str = include_str!("histories/semaphore.txt");
const TOTAL: &str = include_str!("histories/total.txt");
const WATCH: &str = include_str!("histories/watch.txt");

/// Checks each history of a file. Returns the numbers of good and bad ones.
fn judge<C: Written>(text: &str, check: impl Fn(&History<C, C::Reply>) -> Verdict) -> [usize; 2] {
    let (mut good, mut bad, mut wrong) = (0, 0, Vec::new());
    for section in text.split("\n## ").skip(1) {
        let (header, body) = section.split_once('\n').unwrap();
        let (expected, name) = header.split_once(": ").unwrap();
        let history = lines::read::<C>(body.as_bytes())
            .unwrap_or_else(|error| panic!("{name}: {error}"))
            .history;
        let verdict = check(&history);
        let said = match verdict.violation() {
            None if verdict.is_ok() => "good".to_owned(),
            None => "undecided".to_owned(),
            Some(reason) => format!("bad {:?}", reason.operations),
        };
        if said != expected {
            wrong.push(format!("{name}: {verdict}"));
        }
        if verdict.is_ok() {
            good += 1
        } else {
            bad += 1
        }
        // Writing the history reproduces its lines.
        let mut written = Vec::new();
        lines::write(&history, &mut written).unwrap();
        let again = lines::read::<C>(&written[..]).map(|lines| lines.history);
        assert_eq!(again.map(|again| lines_of(&again)).unwrap(), lines_of(&history), "{name}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(good >= 4 && bad >= 4, "{good} good, {bad} bad");
    [good, bad]
}

fn searched<M: Model>(model: &M, text: &str) -> [usize; 2]
where
    M::Call: Written<Reply = M::Reply>,
{
    judge(text, |history| linear::check(model, history, Budget::default()))
}

fn lines_of<C: Written>(history: &History<C, C::Reply>) -> Vec<String> {
    history.iter().map(lines::line).collect()
}

#[test]
fn registers() {
    searched(&Register::default(), REGISTER);
}

#[test]
fn mutexes() {
    searched(&MutexModel::default(), MUTEX);
}

#[test]
fn reentrant_fenced_mutexes() {
    searched(&MutexModel { holds_max: 2, is_fenced: true }, REENTRANT);
}

#[test]
fn semaphores() {
    searched(&SemaphoreModel { permits: 3 }, SEMAPHORE);
}

#[test]
fn queues() {
    searched(&QueueModel, QUEUE);
}

#[test]
fn elections() {
    searched(&ElectionModel { is_fenced: true }, ELECTION);
}

#[test]
fn election_model_without_fencing_ignores_tokens() {
    let said = r#"{"invoke":1,"complete":2,"outcome":"ok","call":"campaign","candidate":"a","value":"A","token":5}
{"invoke":3,"complete":4,"outcome":"ok","call":"resign","candidate":"a"}
{"invoke":5,"complete":6,"outcome":"ok","call":"campaign","candidate":"b","value":"B","token":4}
{"invoke":7,"complete":8,"outcome":"ok","call":"leader","candidate":"b","value":"B","token":9}"#;
    let history = lines::read::<ElectionCall>(said.as_bytes()).unwrap().history;
    let judged =
        |is_fenced| linear::check(&ElectionModel { is_fenced }, &history, Budget::default());
    assert!(judged(false).is_ok(), "{}", judged(false));
    assert!(judged(true).violation().is_some());
}

#[test]
fn stores_with_revisions() {
    searched(&Kv::default(), KV);
}

#[test]
fn stores_are_checked_by_revision_order() {
    judge(TOTAL, |history| total::check(&Total::default(), history));
    // The search has the same verdict, though perhaps a shorter reason.
    for section in TOTAL.split("\n## ").skip(1) {
        let (header, body) = section.split_once('\n').unwrap();
        let history = lines::read::<KvCall>(body.as_bytes()).unwrap().history;
        let verdict = linear::check(&Kv::default(), &history, Budget::default());
        assert_eq!(verdict.is_ok(), header.starts_with("good"), "{header}: {verdict}");
    }
}

#[test]
fn watch_streams() {
    judge(WATCH, |history| watch::check(&WatchRecord::default(), history));
}

#[test]
fn holds() {
    let rules = Holds { permits: 2, ..Holds::default() };
    judge(HOLDS, |history| intervals::holds(&rules, history));
}

#[test]
fn shared_and_delayed_holds_allow_for_clock_skew() {
    let rules = Holds {
        is_reentrant: true,
        slack: 2,
        lock_delay: 20,
        drift_percent: 10,
        ..Holds::default()
    };
    judge(HOLDS_SHARED, |history| intervals::holds(&rules, history));
}

#[test]
fn lost_hold_keeps_its_clock_tolerance() {
    let overlapping = r#"{"invoke":10,"complete":20,"outcome":"ok","call":"hold","owner":1,"lost":true}
{"invoke":19,"complete":30,"outcome":"ok","call":"hold","owner":2}"#;
    let history = lines::read::<HoldCall>(overlapping.as_bytes()).unwrap().history;
    let judged = |slack, lock_delay| {
        intervals::holds(&Holds { slack, lock_delay, ..Holds::default() }, &history)
    };
    assert!(judged(2, 0).is_ok() && judged(2, 1).is_ok(), "{}", judged(2, 1));
    assert_eq!(judged(2, 2).violation().map(|why| why.rule), Some("lock delay"));
    assert_eq!(judged(0, 0).violation().map(|why| why.rule), Some("exclusion"));
}

#[test]
fn leases() {
    let rules = Leases { drift_percent: 10, slack: 1, late: Some(50) };
    judge(LEASES, |history| intervals::leases(&rules, history));
}

#[test]
fn each_kind_has_more_than_100_fixtures() {
    let all = [
        REGISTER,
        MUTEX,
        REENTRANT,
        SEMAPHORE,
        QUEUE,
        ELECTION,
        KV,
        TOTAL,
        WATCH,
        HOLDS,
        HOLDS_SHARED,
        LEASES,
    ];
    let count = |what| all.iter().map(|text| text.matches(what).count()).sum::<usize>();
    let (good, bad) = (count("\n## good: "), count("\n## bad ["));
    assert!(good > 100 && bad > 100, "{good} good, {bad} bad");
}

/// Returns the error for an invalid second line.
fn complaint<C: Written>(line: &str) -> String {
    let text = format!("# the first line\n{line}\n");
    lines::read::<C>(text.as_bytes()).map(|_| ()).expect_err(line).to_string()
}

#[test]
fn malformed_line_is_named_with_its_error() {
    let table = [
        (r#"{"invoke":1"#, "line 2: invalid JSON: EOF while parsing an object at line 1 column 11"),
        ("[1]", "line 2: not a JSON object"),
        ("{}", "line 2: the field `invoke` is missing"),
        (r#"{"invoke":-1}"#, "line 2: the field `invoke` is -1, not a non-negative integer"),
        (r#"{"invoke":1.5}"#, "line 2: the field `invoke` is 1.5, not a non-negative integer"),
        (
            r#"{"invoke":1,"process":"a"}"#,
            r#"line 2: the field `process` is "a", not a non-negative integer"#,
        ),
        (r#"{"invoke":1,"object":7}"#, "line 2: the field `object` is 7, not a string"),
        (r#"{"invoke":5,"complete":4}"#, "line 2: `complete` (4) is before `invoke` (5)"),
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
            "line 2: unknown field `resutl`",
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"read","result":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}"#,
            "line 2: the field `result` is [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,..., not a 64-bit signed integer, a string or null",
        ),
        (
            r#"{"invoke":1,"outcome":"ok","call":"read","result":1}"#,
            "line 2: the field `complete` is missing",
        ),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"read","result":1,"result":2}"#,
            "line 2: duplicate field `result`",
        ),
        (r#"{"invoke":1,"inv\u006fke":2}"#, "line 2: duplicate field `invoke`"),
        (
            r#"{"invoke":1,"complete":2,"outcome":"ok","call":"cas","expect":1,"value":2,"swapped":1}"#,
            "line 2: the field `swapped` is 1, not true or false",
        ),
    ];
    for (line, expected) in table {
        assert_eq!(complaint::<RegisterCall>(line), expected);
    }
}

#[test]
fn duplicate_field_is_detected_per_object() {
    let change = |rows: &str| {
        format!(r#"{{"invoke":1,"outcome":"unknown","call":"change","rows":[{rows}]}}"#)
    };
    let said = change(r#"{"key":"a","value":"value"},{"key":"a","value":"\",\"key\":"}"#);
    assert!(lines::read::<RecordedWatchCall>(said.as_bytes()).is_ok(), "{said}");
    let said = change(r#"{"key":"a","value":1},{"key":"b","value":1, "value" :2}"#);
    let expected = "line 2: duplicate field `value`";
    assert_eq!(complaint::<RecordedWatchCall>(&said), expected);
}

#[test]
fn overlong_line_is_not_read_into_memory() {
    let mut text = b"{\"invoke\":1,\"object\":\"".to_vec();
    text.resize(2 * lines::LINE_BYTES_MAX, b'x');
    let error: LineError = lines::read::<RegisterCall>(&text[..]).unwrap_err();
    assert_eq!(error.to_string(), "line 1: longer than 1048576 bytes");
}
