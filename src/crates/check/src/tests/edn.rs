//! Tests of the Jepsen format: good and bad histories of each dialect, and invalid input.

use crate::edn::{self, Dialect};
use crate::lines::Written;
use crate::{
    Budget, Level, ListTxn, Model, MutexCall, MutexModel, QueueModel, Register, RegisterTxn,
    Verdict, cycles, linear,
};

fn searched<M: Model>(model: &M, dialect: Dialect, text: &str) -> Verdict
where
    M::Call: Written<Reply = M::Reply>,
{
    let lines = edn::read::<M::Call>(text.as_bytes(), dialect).unwrap();
    linear::check(model, &lines.history, Budget::default())
}

fn register(text: &str) -> Verdict {
    searched(&Register::default(), Dialect::Register, text)
}

fn set(text: &str) -> Verdict {
    let lines = edn::read::<RegisterTxn>(text.as_bytes(), Dialect::Set).unwrap();
    cycles::registers(&lines.history, Level::StrictSerializable)
}

fn lists(text: &str) -> Verdict {
    let lines = edn::read::<ListTxn>(text.as_bytes(), Dialect::ListAppend).unwrap();
    cycles::lists(&lines.history, Level::StrictSerializable)
}

/// Checks that every prefix of the good lines passes, and that adding the bad line makes a violation.
fn judged(check: impl Fn(&str) -> Verdict, good: &str, bad: &str) {
    let verdict = check(good);
    assert!(verdict.is_ok(), "{verdict}\n{good}");
    let verdict = check(&format!("{good}\n{bad}"));
    assert!(verdict.violation().is_some(), "{verdict}\n{good}\n{bad}");
}

#[test]
fn edn_register_history_is_checked() {
    let good = r#"
        ; a comment, and a nemesis
        {:type :info, :f :start, :value nil, :process :nemesis, :time 1, :index 0}
        {:type :invoke, :f :write, :value 1, :process 0, :time 10, :index 1}
        {:type :ok, :f :write, :value 1, :process 0, :time 20, :index 2}
        {:type :invoke, :f :cas, :value [1 2], :process 1, :time 30, :index 3}
        {:type :invoke, :f :read, :value nil, :process 2, :time 31, :index 4}
        {:type :info, :f :cas, :value [1 2], :process 1, :time 40, :index 5, :error [:timeout "10 s"]}
        {:type :ok, :f :read, :value 2, :process 2, :time 41, :index 6}
        {:type :invoke, :f :cas, :value [9 3], :process 0, :time 50, :index 7}
        {:type :fail, :f :cas, :value [9 3], :process 0, :time 51, :index 8}"#;
    let bad = "{:type :invoke, :f :read, :value nil, :process 0, :index 9}
               {:type :ok, :f :read, :value 1, :process 0, :index 10}";
    judged(register, good, bad);
    let bad = "{:type :invoke, :f :cas, :value [1 2], :process 0, :index 9}
               {:type :ok, :f :cas, :value [1 2], :process 0, :index 10}";
    judged(register, good, bad);
}

#[test]
fn edn_registers_with_versions_are_checked_per_key() {
    let good = "[{:type :invoke, :f :write, :value [\"a\" [nil 1]], :process 0}
        {:type :ok, :f :write, :value [\"a\" [1 1]], :process 0}
        {:type :invoke, :f :write, :value [5 [nil 7]], :process 1}
        {:type :ok, :f :write, :value [5 [1 7]], :process 1}
        {:type :invoke, :f :cas, :value [\"a\" [nil [1 3]]], :process 1}
        {:type :ok, :f :cas, :value [\"a\" [2 [1 3]]], :process 1}
        {:type :invoke, :f :read, :value [\"a\" [nil nil]], :process 0}
        {:type :ok, :f :read, :value [\"a\" [2 3]], :process 0}]";
    let bad = "[{:type :invoke, :f :read, :value [5 [nil nil]], :process 0}
        {:type :ok, :f :read, :value [5 [2 3]], :process 0}]";
    judged(register, good, bad);
    // Registers without versions, one per key, as `jepsen.independent` writes them. The operations are Clojure records.
    let good = "#jepsen.history.Op{:type :invoke, :f :write, :value [0 1], :process 0}
        #jepsen.history.Op{:type :ok, :f :write, :value [0 1], :process 0}
        #jepsen.history.Op{:type :invoke, :f :cas, :value [0 [1 2]], :process 0}
        #jepsen.history.Op{:type :ok, :f :cas, :value [0 [1 2]], :process 0}";
    let bad = "#jepsen.history.Op{:type :invoke, :f :read, :value [0 nil], :process 0}
        #jepsen.history.Op{:type :ok, :f :read, :value [0 1], :process 0}";
    judged(register, good, bad);
}

#[test]
fn edn_set_history_is_checked() {
    let good = "{:type :invoke, :f :add, :value 0, :process 0}
        {:type :ok, :f :add, :value 0, :process 0}
        {:type :invoke, :f :add, :value 1, :process 1}
        {:type :info, :f :add, :value 1, :process 1}
        {:type :invoke, :f :add, :value 2, :process 0}
        {:type :fail, :f :add, :value 2, :process 0}
        {:type :invoke, :f :read, :value nil, :process 2}
        {:type :ok, :f :read, :value #{0 1}, :process 2}";
    for found in ["#{1}", "[0]", "(0 1 2)", "#{0 1 9}", "nil"] {
        let bad = format!(
            "{{:type :invoke, :f :read, :value nil, :process 0}}
             {{:type :ok, :f :read, :value {found}, :process 0}}"
        );
        judged(set, good, &bad);
    }
    let good = "{:type :invoke, :f :add, :value [7 1], :process 0}
        {:type :ok, :f :add, :value [7 1], :process 0}
        {:type :invoke, :f :read, :value [8 nil], :process 0}
        {:type :ok, :f :read, :value [8 #{}], :process 0}";
    let bad = "{:type :invoke, :f :read, :value [7 nil], :process 0}
        {:type :ok, :f :read, :value [7 []], :process 0}";
    judged(set, good, bad);
}

#[test]
fn edn_list_history_is_checked_by_its_reads() {
    let good = "{:type :invoke, :f :txn, :value [[:append :x 1] [:r :y nil]], :process 0}
        {:type :ok, :f :txn, :value [[:append :x 1] [:r :y nil]], :process 0}
        {:type :invoke, :f :txn, :value [[:append :x 2]], :process 1}
        {:type :info, :f :txn, :value [[:append :x 2]], :process 1}
        {:type :invoke, :f :txn, :value [[:r :x nil]], :process 2}
        {:type :ok, :f :txn, :value [[:r :x [1 2]]], :process 2}";
    for found in ["nil", "[2]", "[2 1]", "[1]"] {
        let bad = format!(
            "{{:type :invoke, :f :txn, :value [[:r :x nil]], :process 0}}
             {{:type :ok, :f :txn, :value [[:r :x {found}]], :process 0}}"
        );
        judged(lists, good, &bad);
    }
}

#[test]
fn edn_register_txn_queue_and_lock_histories_are_checked() {
    let registers = |text: &str| {
        let lines = edn::read::<RegisterTxn>(text.as_bytes(), Dialect::WriteRead).unwrap();
        cycles::registers(&lines.history, Level::StrictSerializable)
    };
    let good = "{:type :invoke, :f :txn, :value [[:w 1 1] [:r 2 nil]], :process 0}
        {:type :ok, :f :txn, :value [[:w 1 1] [:r 2 nil]], :process 0}";
    let bad = "{:type :invoke, :f :txn, :value [[:r 1 nil]], :process 0}
        {:type :ok, :f :txn, :value [[:r 1 nil]], :process 0}";
    judged(registers, good, bad);
    let queue = |text: &str| searched(&QueueModel, Dialect::Queue, text);
    let good = "{:type :invoke, :f :enqueue, :value 1, :process 0}
        {:type :ok, :f :enqueue, :value 1, :process 0}
        {:type :invoke, :f :dequeue, :value nil, :process 0}
        {:type :ok, :f :dequeue, :value 1, :process 0}";
    let bad = "{:type :invoke, :f :dequeue, :value nil, :process 1}
        {:type :ok, :f :dequeue, :value 1, :process 1}";
    judged(queue, good, bad);
    let lock = |text: &str| searched(&MutexModel::default(), Dialect::Lock, text);
    let good = "{:type :invoke, :f :acquire, :value nil, :process 0}
        {:type :ok, :f :acquire, :value nil, :process 0}";
    let bad = "{:type :invoke, :f :acquire, :value nil, :process 1}
        {:type :ok, :f :acquire, :value nil, :process 1}";
    judged(lock, good, bad);
}

#[test]
fn malformed_edn_is_rejected_with_its_line() {
    let cases = [
        ("{:type :invoke", "line 1: missing } for the form that begins at line 1"),
        ("\n\n]", "line 3: unmatched ]"),
        ("{:type :invoke, :f}", "line 1: a map has a key without a value"),
        ("7", "line 1: 7 is not a map"),
        ("{:type :invoke, :process 0}", "line 1: :f is missing"),
        ("{:type :invoke, :f :read}", "line 1: :process is missing"),
        (
            "{:type :info, :f :start, :process :nemesis}\n{:type :invoke, :f :read, :process \"0\"}",
            "line 2: :process is \"0\", neither a number nor :nemesis",
        ),
        (
            "{:type :invoke, :f :read, :process :client}",
            "line 1: :process is :client, neither a number nor :nemesis",
        ),
        (
            "{:type :invoke, :f :read, :process nil}",
            "line 1: :process is nil, neither a number nor :nemesis",
        ),
        ("{:type \"ok\", :f :read, :process 0}", "line 1: :type is \"ok\", not a keyword"),
        ("{:type :ok, :f :read, :process 0}", "line 1: process 0 has no open call to complete"),
        (
            "{:type :invoke, :f :read, :process 0}\n{:type :invoke, :f :read, :process 0}",
            "line 2: process 0 calls before its previous call has ended",
        ),
        (
            "{:type :gone, :f :read, :process 0}",
            "line 1: :type is :gone, not :invoke, :ok, :fail or :info",
        ),
        ("\n{:type :invoke, :f :fly, :process 0}", "line 2: unknown :f :fly"),
        (
            "{:type :invoke, :f :cas, :value 7, :process 0}",
            "line 1: :value of :cas is 7, not [old new]",
        ),
        (
            "{:type :invoke, :f :read, :process -1}",
            "line 1: the field `process` is -1, not a non-negative integer",
        ),
        ("{:a \"\\u12", "line 1: \\u needs four hexadecimal digits"),
    ];
    for (text, expected) in cases {
        let read = edn::read::<crate::RegisterCall>(text.as_bytes(), Dialect::Register);
        assert_eq!(read.unwrap_err().to_string(), expected, "{text}");
    }
    let deep = "[".repeat(100_000);
    let read = edn::read::<MutexCall>(deep.as_bytes(), Dialect::Lock);
    assert!(read.unwrap_err().to_string().contains("more than 64 deep"));
    let twice = "{:type :invoke, :f :add, :value 1, :process 0}\n{:type :invoke, :f :add, :value 1, :process 1}";
    let read = edn::read::<RegisterTxn>(twice.as_bytes(), Dialect::Set);
    assert!(read.unwrap_err().to_string().starts_with("line 2: duplicate element 1"));
}

#[test]
fn edn_integers_may_have_the_suffix_n() {
    let good = "{:type :invoke, :f :write, :value 7N, :process 0N}
        {:type :ok, :f :write, :value 7N, :process 0}
        {:type :invoke, :f :cas, :value [7 -8N], :process 0}
        {:type :ok, :f :cas, :value [7 -8N], :process 0}";
    let bad = "{:type :invoke, :f :read, :value nil, :process 1}
        {:type :ok, :f :read, :value \"-8N\", :process 1}";
    judged(register, good, bad);
}

#[test]
fn edn_set_read_must_be_a_collection() {
    for found in ["7", ":x", "\"#{1}\"", "{1 2}", "true"] {
        let text = format!(
            "{{:type :invoke, :f :read, :value nil, :process 0}}
             {{:type :ok, :f :read, :value {found}, :process 0}}"
        );
        let read = edn::read::<RegisterTxn>(text.as_bytes(), Dialect::Set);
        let expected =
            format!("line 1: the value of the read is {found}, not a set, a vector or a list");
        assert_eq!(read.unwrap_err().to_string(), expected);
    }
    let keyed = "{:type :invoke, :f :read, :value [8 nil], :process 0}
        {:type :ok, :f :read, :value [8 7], :process 0}";
    assert!(edn::read::<RegisterTxn>(keyed.as_bytes(), Dialect::Set).is_err());
}

#[test]
fn each_map_of_an_edn_vector_keeps_its_line() {
    let text = "; all in one
        [{:type :invoke, :f :write, :value 7, :process 0}
        {:type :ok, :f :write, :value 7, :process 0} #_ {:type
        :gone}

        {:type :invoke, :f :read, :value nil, :process 1}]";
    let read = |text: &str| edn::read::<crate::RegisterCall>(text.as_bytes(), Dialect::Register);
    assert_eq!(read(text).unwrap().numbers, [2, 6]);
    let listed = text.replace('[', "(").replace(']', ")");
    assert_eq!(read(&listed).unwrap().numbers, [2, 6]);
    let error = read(&text.replace(":read", ":fly")).unwrap_err();
    assert_eq!(error.to_string(), "line 6: unknown :f :fly");
    let error = read(&text.replace(":process 1", ":client 1")).unwrap_err();
    assert_eq!(error.to_string(), "line 6: :process is missing");
}

#[test]
fn unused_edn_forms_are_skipped() {
    let text = "#_{:type :bogus} {:type :invoke, :f :write, :value #inst \"2026\", :process 0,
        :extra #{1.5 \\c true 7/3 10000000000000000000N sym/bol #_ #_ 1 2}} ,,,
        {:f :write :type :ok :process 0 :value \"20\\u0032\\n6\" :nested {:a (1 2 {:b []})}}";
    let lines = edn::read::<crate::RegisterCall>(text.as_bytes(), Dialect::Register).unwrap();
    let call = crate::RegisterCall::Write(Some("2026".into()));
    assert_eq!(lines.history[0].call, call);
    assert_eq!(lines.numbers, [1]);
}
