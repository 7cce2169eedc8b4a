//! Runs `bowline check` as a process: output, exit codes, and the commands of its documentation page.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

const FINE: &str = r#"{"process":1,"object":"x","invoke":1,"complete":2,"outcome":"ok","call":"write","value":7}
# a word in between

{"process":2,"object":"x","invoke":3,"complete":4,"outcome":"ok","call":"read","result":7}
"#;

const STALE: &str = r#"# a register
{"process":1,"object":"x","invoke":1,"complete":2,"outcome":"ok","call":"write","value":7}
{"process":3,"object":"y","invoke":1,"complete":2,"outcome":"ok","call":"write","value":9}
{"process":2,"object":"x","invoke":3,"complete":4,"outcome":"ok","call":"read","result":null}
"#;

/// A directory of the test, removed on drop.
struct Place(TempDir);

impl Place {
    fn new(test: &str) -> Self {
        Self(TempDir::with_prefix(format!("bowline-check-{test}-")).unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn with(self, name: &str, text: &str) -> Self {
        fs::write(self.at(name), text).unwrap();
        self
    }

    fn run(&self, arguments: &str) -> Output {
        self.run_with(arguments, "")
    }

    /// Runs the command with the given standard input.
    fn run_with(&self, arguments: &str, input: &str) -> Output {
        let mut command = Command::new(BOWLINE);
        command.arg("check").args(arguments.split_whitespace()).current_dir(self.0.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The write fails if the command exits without reading its input, which does not matter.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns exit code, standard output and standard error.
fn parts(output: &Output) -> (Option<i32>, &str, &str) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn valid_history_is_ok() {
    let place = Place::new("fine").with("h.jsonl", FINE);
    let output = place.run("h.jsonl --model register");
    assert_eq!(parts(&output), (Some(0), "          ok 2 operations, linearizable\n", ""));
    let output = place.run("h.jsonl --model register --json");
    let expected = "{\"operations\":2,\"promise\":\"linearizable\",\"verdict\":\"ok\"}\n";
    assert_eq!(parts(&output), (Some(0), expected, ""));
}

#[test]
fn a_violation_names_its_operations_and_their_lines() {
    let place = Place::new("stale").with("h.jsonl", STALE);
    let output = place.run("h.jsonl --model register");
    let (code, printed, complaint) = parts(&output);
    assert_eq!((code, complaint), (Some(1), ""));
    assert!(printed.starts_with("   violation object \"x\": "), "{printed}");
    assert!(printed.contains("\n   operation #0, line 2: {\"process\":1,"), "{printed}");
    assert!(printed.contains("\n   operation #2, line 4: {\"process\":2,"), "{printed}");
    assert!(!printed.contains("line 3"), "{printed}");

    let output = place.run("h.jsonl --model register --json");
    assert_eq!(output.status.code(), Some(1));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["verdict"], &printed["object"]), (&"violation".into(), &"x".into()));
    assert_eq!(
        (&printed["reason"][1]["index"], &printed["reason"][1]["line"]),
        (&2.into(), &4.into())
    );
    assert_eq!(printed["reason"][1]["operation"]["result"], Value::Null);
}

#[test]
fn a_history_is_read_from_standard_input() {
    let place = Place::new("input");
    let output = place.run_with("- --model register", FINE);
    assert_eq!(parts(&output).0, Some(0));
    let output = place.run_with("- --model register", "{}\n");
    let (code, printed, complaint) = parts(&output);
    assert_eq!((code, printed), (Some(2), ""));
    assert!(
        complaint.starts_with("error: standard input: line 1: the field `invoke` is missing\n"),
        "{complaint}"
    );
}

#[test]
fn violation_writes_a_page() {
    let place = Place::new("page").with("h.jsonl", STALE).with("fine.jsonl", FINE);
    let output = place.run("h.jsonl --model register --page why.html");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).ends_with("        page why.html\n"), "{output:?}");
    let page = fs::read_to_string(place.at("why.html")).unwrap();
    assert!(page.contains("<p class=\"title\">h.jsonl</p>"));
    let output = place.run("fine.jsonl --model register --page none.html");
    assert_eq!(output.status.code(), Some(0));
    assert!(!place.at("none.html").exists());
    let output = place.run("h.jsonl --model register --page no/such/dir.html");
    let (code, _, complaint) = parts(&output);
    assert_eq!(code, Some(2));
    assert!(complaint.contains("cannot write the page no/such/dir.html: "), "{complaint}");
}

#[test]
fn unreadable_input_is_named_with_a_hint() {
    let place = Place::new("unreadable").with("h.jsonl", STALE);
    let table = [
        ("none.jsonl --model register", "", "error: cannot open none.jsonl: No such file"),
        (
            "h.jsonl --model queue",
            "",
            "error: h.jsonl: line 2: the model has no call `write`\nthe calls of queue are put and take; \
             if the history is of another kind, pass its --model",
        ),
        ("- --model register", "{\"invoke\":1", "error: standard input: line 1: invalid JSON"),
        (
            "- --model register",
            "\n{\"invoke\":3,\"complete\":2,\"outcome\":\"ok\",\"call\":\"read\",\"result\":1}",
            "error: standard input: line 2: `complete` (2) is before `invoke` (3)\nboth must be times",
        ),
        (
            "- --model mutex",
            "{\"invoke\":1,\"outcome\":\"unknown\",\"call\":\"acquire\"}",
            "error: standard input: line 1: the field `owner` is missing\nthe fields of mutex are in docs/assurance/checkers.md",
        ),
        (
            "- --model list-append",
            "{\"invoke\":1,\"outcome\":\"unknown\",\"call\":\"txn\",\"steps\":[[\"write\",\"x\",1]]}",
            "error: standard input: line 1: the field `steps` is [\"write\",\"x\",1], not an array of [\"append\"",
        ),
        (
            "- --model register",
            "{\"invoke\":1,\"outcome\":\"unknown\",\"call\":\"read\",\"key\":\"a\"}",
            "error: standard input: line 1: unknown field `key`\n",
        ),
    ];
    for (arguments, input, expected) in table {
        let output = place.run_with(arguments, input);
        let (code, printed, complaint) = parts(&output);
        assert_eq!((code, printed), (Some(2), ""), "{arguments}");
        assert!(complaint.starts_with(expected), "{complaint}");
    }
}

#[test]
fn invalid_arguments_list_the_valid_ones() {
    let place = Place::new("usage").with("h.jsonl", FINE);
    let table = [
        ("h.jsonl", "--model"),
        ("h.jsonl --model regsiter", "[possible values: register, "),
        (
            "h.jsonl --model list-append --level good",
            "use one of read-uncommitted, read-committed, ",
        ),
        ("--model register", "<FILE>"),
    ];
    for (arguments, expected) in table {
        let output = place.run(arguments);
        let (code, printed, complaint) = parts(&output);
        assert_eq!((code, printed), (Some(2), ""), "{arguments}");
        assert!(complaint.contains(expected), "{arguments}: {complaint}");
    }
    let output = place.run("--help");
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for word in ["list-append", "--page", "Exit codes: 0 ok; 1 violation;", "standard input"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

#[test]
fn budget_exhaustion_is_undecided_and_exits_with_3() {
    let mut history = String::new();
    for n in 0..12 {
        let write = r#""invoke":1,"complete":100,"outcome":"ok","call":"write""#;
        let read = r#""invoke":1,"complete":100,"outcome":"ok","call":"read""#;
        history.push_str(&format!("{{{write},\"value\":{n}}}\n{{{read},\"result\":{n}}}\n"));
    }
    history.push_str(r#"{"invoke":101,"complete":102,"outcome":"ok","call":"read","result":-1}"#);
    let place = Place::new("budget").with("h.jsonl", &history);
    let output = place.run("h.jsonl --model register --steps 1000");
    let (code, printed, _) = parts(&output);
    assert_eq!(code, Some(3));
    assert!(
        printed.contains("undecided") && printed.contains("try again with more --steps"),
        "{printed}"
    );
    let output = place.run("h.jsonl --model register --steps 1000 --json");
    assert_eq!(output.status.code(), Some(3));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["verdict"], "undecided");
    let output = place.run("h.jsonl --model register --seconds 0");
    let (code, printed, _) = parts(&output);
    assert_eq!(code, Some(3));
    assert!(printed.contains("try again with more --seconds"), "{printed}");
}

#[test]
fn history_without_answers_is_undecided() {
    let place = Place::new("nothing")
        .with("empty.jsonl", "")
        .with("words.jsonl", "# nobody called anything\n\n")
        .with(
            "lost.jsonl",
            "{\"invoke\":1,\"outcome\":\"unknown\",\"call\":\"write\",\"value\":7}\n",
        )
        .with("empty.edn", "")
        .with("nemesis.edn", "[{:type :info, :f :start, :process :nemesis}]");
    let cases = [
        ("empty.jsonl --model register", 0),
        ("empty.jsonl --model holds", 0),
        ("words.jsonl --model revisions", 0),
        ("lost.jsonl --model register", 1),
        ("empty.edn --model set", 0),
        ("nemesis.edn --model register", 0),
    ];
    for (arguments, operations) in cases {
        let output = place.run(arguments);
        let (code, printed, _) = parts(&output);
        assert_eq!(code, Some(3), "{arguments}: {printed}");
        let words = format!("undecided {operations} operations, and no operation was answered");
        assert!(
            printed.contains(&words) && printed.contains("not a pass"),
            "{arguments}: {printed}"
        );
        let output = place.run(&format!("{arguments} --json"));
        assert_eq!(output.status.code(), Some(3), "{arguments}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&printed["verdict"], &printed["operations"]),
            (&"undecided".into(), &operations.into())
        );
        assert_eq!(printed["why"], "no operation was answered");
    }
}

#[test]
fn map_without_a_process_is_an_error() {
    let printed = "{:type :invoke, :f :write, :value 1, :client 0}\n{:type :ok, :f :write, :value 1, :client 0}";
    let place = Place::new("process").with("h.edn", printed);
    let output = place.run("h.edn --model register");
    let (code, _, complaint) = parts(&output);
    assert_eq!(code, Some(2));
    assert!(complaint.contains("line 1: :process is missing"), "{complaint}");
}

#[test]
fn transactions_are_checked_at_the_requested_level() {
    let skew = r#"{"invoke":1,"complete":9,"outcome":"ok","call":"txn","steps":[["read","x"],["append","y",1]],"results":[[]]}
{"invoke":1,"complete":9,"outcome":"ok","call":"txn","steps":[["read","y"],["append","x",1]],"results":[[]]}
"#;
    let place = Place::new("levels").with("h.jsonl", skew);
    let output = place.run("h.jsonl --model list-append");
    let (code, printed, _) = parts(&output);
    assert_eq!(code, Some(1));
    assert!(
        printed.contains("(G2)") && printed.contains("#0 before #1: it read x as []"),
        "{printed}"
    );
    let output = place.run("h.jsonl --model list-append --level snapshot-isolation");
    assert_eq!(parts(&output), (Some(0), "          ok 2 operations, snapshot-isolation\n", ""));
    let again = format!("{skew}{skew}");
    let output = place.run_with("- --model list-append", &again);
    let (code, printed, _) = parts(&output);
    assert_eq!(code, Some(3));
    assert!(printed.contains("let each transaction write values of its own"), "{printed}");
}

#[test]
fn missing_token_is_an_error_where_other_lines_have_tokens() {
    let ok = r#""invoke":1,"complete":2,"outcome":"ok""#;
    let acquired = format!("# a lock\n{{{ok},\"call\":\"acquire\",\"owner\":1}}\n");
    let elected = format!("\n{{{ok},\"call\":\"campaign\",\"candidate\":1,\"value\":1}}\n");
    let edn = "{:type :invoke, :f :acquire, :process 0}\n\n{:type :ok, :f :acquire, :process 0}\n\
        {:type :invoke, :f :release, :process 0}\n{:type :ok, :f :release, :process 0}\n";
    let place = Place::new("tokens")
        .with("lock.jsonl", &acquired)
        .with("election.jsonl", &elected)
        .with("lock.edn", edn);
    let table = [
        ("lock.jsonl --model fenced", 2),
        ("lock.jsonl --model mutex --fenced", 2),
        ("lock.jsonl --model reentrant --fenced", 2),
        ("election.jsonl --model election --fenced", 2),
        ("lock.edn --model mutex --fenced", 1),
    ];
    for (arguments, line) in table {
        let output = place.run(arguments);
        let (code, printed, complaint) = parts(&output);
        assert_eq!((code, printed), (Some(2), ""), "{arguments}: {complaint}");
        let file = arguments.split(' ').next().unwrap();
        let expected = format!(
            "error: {file}: line {line}: the field `token` is missing\nwith --fenced, each hold and each leadership must \
             have a token; to check a history without tokens, use --model mutex, or omit --fenced"
        );
        assert!(complaint.starts_with(&expected), "{arguments}: {complaint}");
    }
    for arguments in ["lock.jsonl --model mutex", "lock.edn --model mutex"] {
        assert_eq!(place.run(arguments).status.code(), Some(0), "{arguments}");
    }
    // A model without tokens ignores them.
    let fenced = acquired.replace("\"owner\":1", "\"owner\":1,\"token\":7");
    assert_eq!(place.run_with("- --model mutex", &fenced).status.code(), Some(0));
}

#[test]
fn session_order_is_checked_only_with_processes() {
    let printed = r#"{"process":0,"invoke":1,"complete":2,"outcome":"ok","call":"txn","steps":[["append","x",1]]}
{"invoke":3,"complete":4,"outcome":"ok","call":"txn","steps":[["read","x"]],"results":[[]]}
"#;
    let place = Place::new("sessions").with("h.jsonl", printed);
    let session = "h.jsonl --model list-append --level session-serializable";
    let output = place.run(session);
    let (code, printed, complaint) = parts(&output);
    assert_eq!((code, printed), (Some(2), ""), "{complaint}");
    let expected = "error: h.jsonl: line 2: the field `process` is missing\nsession-serializable compares the operations \
        of each process: name the process in each line";
    assert!(complaint.starts_with(expected), "{complaint}");
    for (level, expected) in [("serializable", 0), ("strict-serializable", 1)] {
        let output = place.run(&format!("h.jsonl --model list-append --level {level}"));
        assert_eq!(output.status.code(), Some(expected), "{level}");
    }
    let other = fs::read_to_string(place.at("h.jsonl"))
        .unwrap()
        .replace("{\"invoke\"", "{\"process\":1,\"invoke\"");
    let place = Place::new("two-sessions").with("h.jsonl", &other);
    assert_eq!(place.run(session).status.code(), Some(0));
    let own = other.replace("\"process\":1", "\"process\":0");
    let place = Place::new("one-session").with("h.jsonl", &own);
    assert_eq!(place.run(session).status.code(), Some(1));
}

#[test]
fn transactions_without_reads_are_undecided() {
    let added = "{:type :invoke, :f :add, :value 0, :process 0}\n{:type :ok, :f :add, :value 0, :process 0}\n\
        {:type :invoke, :f :read, :value nil, :process 1}\n";
    let appended =
        r#"{"invoke":1,"complete":2,"outcome":"ok","call":"txn","steps":[["append","x",1]]}"#;
    let place = Place::new("unread")
        .with("set.edn", &format!("{added}{{:type :info, :f :read, :process 1}}"))
        .with("read.edn", &format!("{added}{{:type :ok, :f :read, :value #{{0}}, :process 1}}"))
        .with(
            "none.edn",
            "{:type :invoke, :f :read, :process 1}\n{:type :ok, :f :read, :process 1}",
        )
        .with("lists.jsonl", appended);
    for (arguments, operations) in
        [("set.edn --model set", 2), ("lists.jsonl --model list-append", 1)]
    {
        let output = place.run(arguments);
        let (code, printed, _) = parts(&output);
        assert_eq!(code, Some(3), "{arguments}: {printed}");
        let words = format!("undecided {operations} operations, and no read was answered");
        assert!(
            printed.contains(&words) && printed.contains("not a pass"),
            "{arguments}: {printed}"
        );
        let output = place.run(&format!("{arguments} --json"));
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&printed["verdict"], &printed["why"]),
            (&"undecided".into(), &"no read was answered".into())
        );
    }
    for arguments in ["read.edn --model set", "none.edn --model set"] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {output:?}");
    }
}

/// Each model accepts a history in its format and checks it.
#[test]
fn each_model_checks_its_own_history() {
    let ok =
        |fields: &str| format!("{{\"invoke\":1,\"complete\":2,\"outcome\":\"ok\",{fields}}}\n");
    let table = [
        ("register --first 7", r#""call":"read","result":7"#, r#""call":"read","result":8"#),
        ("cas --first a", r#""call":"read","result":"a""#, r#""call":"read","result":null"#),
        (
            "kv --first-revision 5",
            r#""call":"get","key":"a","result":null,"revision":5"#,
            r#""call":"get","key":"a","result":null,"revision":1"#,
        ),
        ("queue", r#""call":"take","result":null"#, r#""call":"take","result":1"#),
        ("mutex", r#""call":"acquire","owner":1"#, r#""call":"release","owner":1"#),
        ("reentrant --holds 2", r#""call":"acquire","owner":1"#, r#""call":"release","owner":1"#),
        ("fenced", r#""call":"acquire","owner":1,"token":1"#, r#""call":"release","owner":1"#),
        (
            "reentrant --fenced",
            r#""call":"acquire","owner":1,"token":1"#,
            r#""call":"release","owner":1"#,
        ),
        (
            "election",
            r#""call":"campaign","candidate":1,"value":1"#,
            r#""call":"resign","candidate":1"#,
        ),
        (
            "revisions",
            r#""call":"put","key":"a","value":1,"revision":2"#,
            r#""call":"put","key":"a","value":1,"revision":3"#,
        ),
        (
            "revisions --others",
            r#""call":"put","key":"a","value":1,"revision":3"#,
            r#""call":"put","key":"a","value":1,"revision":1"#,
        ),
        (
            "semaphore --permits 2",
            r#""call":"acquire","owner":1,"permits":2"#,
            r#""call":"acquire","owner":1,"permits":3"#,
        ),
        (
            "list-append",
            r#""call":"txn","steps":[["read","x"]],"results":[[]]"#,
            r#""call":"txn","steps":[["read","x"]],"results":[[1]]"#,
        ),
        (
            "write-read",
            r#""call":"txn","steps":[["read","x"]],"results":[null]"#,
            r#""call":"txn","steps":[["read","x"]],"results":[1]"#,
        ),
    ];
    let place = Place::new("models");
    for (model, good, bad) in table {
        for (fields, expected) in [(good, 0), (bad, 1)] {
            let output = place.run_with(&format!("- --model {model}"), &ok(fields));
            assert_eq!(output.status.code(), Some(expected), "{model} {fields}: {output:?}");
        }
    }
}

/// Models that need several lines: each history passes with its options, and fails without them.
#[test]
fn clock_models_take_their_bounds_from_the_options() {
    let ok = |fields: &str, invoke: u64, complete: u64| {
        format!("{{\"invoke\":{invoke},\"complete\":{complete},\"outcome\":\"ok\",{fields}}}\n")
    };
    let hold = |owner: u64| format!("\"call\":\"hold\",\"owner\":{owner}");
    let holds = ok(&hold(1), 1, 5) + &ok(&hold(2), 4, 9);
    let leases = ok(r#""call":"grant","lease":7,"ttl":100"#, 0, 1)
        + &ok(r#""call":"look","lease":7,"there":false"#, 92, 93);
    let watch = ok(r#""call":"watch","stream":"w","key":"a","start":2"#, 1, 2)
        + &ok(
            r#""call":"receive","stream":"w","events":[{"revision":2,"key":"a","value":1}]"#,
            3,
            3,
        );
    let table = [
        ("holds", "--slack 2", holds),
        ("leases", "--drift 10", leases),
        ("watch", "--others", watch),
    ];
    let place = Place::new("clock");
    for (model, promise, history) in table {
        for (promise, expected) in [("", 1), (promise, 0)] {
            let output = place.run_with(&format!("- --model {model} {promise}"), &history);
            assert_eq!(output.status.code(), Some(expected), "{model} {promise}: {output:?}");
        }
    }
}

#[test]
fn jepsen_history_is_checked() {
    let edn = "{:type :invoke, :f :write, :value 7, :process 0, :time 1, :index 0}
{:type :ok, :f :write, :value 7, :process 0, :time 2, :index 1}
{:type :invoke, :f :read, :value nil, :process 1, :time 3, :index 2}
{:type :ok, :f :read, :value nil, :process 1, :time 4, :index 3}
";
    let place = Place::new("edn").with("h.edn", edn).with("h", edn);
    let output = place.run("h.edn --model register --page why.html");
    let (code, printed, _) = parts(&output);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("line 1") && printed.contains("line 3"), "{printed}");
    assert!(fs::read_to_string(place.at("why.html")).unwrap().ends_with("</html>\n"));
    let output = place.run("h --edn --model queue");
    let (code, _, complaint) = parts(&output);
    assert_eq!(code, Some(2));
    assert!(complaint.contains("line 1: unknown :f :write"), "{complaint}");
    assert!(complaint.contains("Jepsen histories"), "{complaint}");
    let output = place.run("h --model set");
    assert!(parts(&output).2.contains("must be EDN"));
    let output = place.run("h.edn --model watch");
    assert!(parts(&output).2.contains("this model has no EDN format"));
}
