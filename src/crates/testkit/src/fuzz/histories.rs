//! Fuzz target for the checkers: a history that can be read is written back unchanged, and the order of its lines
//! does not change the verdict.

use bowline_check::edn::{self, Dialect};
use bowline_check::intervals::{self, Holds, Leases};
use bowline_check::lines::{self, LineError, Lines, Written};
use bowline_check::page::Page;
use bowline_check::watch::{self, WatchRecord};
use bowline_check::{
    Budget, ElectionModel, History, Kv, Level, ListTxn, Model, MutexModel, QueueModel, Register,
    RegisterCall, RegisterTxn, SemaphoreModel, Total, Verdict, cycles, linear, total,
};

use super::Came;

const STEPS: u64 = 20_000;

/// Maximum number of operations that are checked. More operations take long and find no more bugs.
const OPERATIONS_MAX: usize = 40;

/// Derives choices from the bytes of the input. When the input is used up, all numbers are 0.
struct Feed<'a>(&'a [u8]);

impl Feed<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    /// Returns a number below `end`, which is at most 256.
    fn below(&mut self, end: u64) -> u64 {
        u64::from(self.byte()) % end
    }

    /// Returns true with a probability of one in `times`.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }
}

/// Runs one input. The first byte selects the checker.
pub(super) fn histories(data: &[u8]) -> Came {
    let Some((model, text)) = data.split_first() else { return Came::Refused };
    let made;
    let text = match text.split_first() {
        Some((0xff, orders)) => {
            made = made_up(model % 16, &mut Feed(orders));
            made.as_bytes()
        }
        _ => text,
    };
    let level = Level::ALL[usize::from(model / 16) % Level::ALL.len()];
    match model % 16 {
        0 => searched(&Register::default(), text),
        1 => searched(&MutexModel::default(), text),
        2 => searched(&MutexModel { is_fenced: true, ..MutexModel::default() }, text),
        3 => searched(&SemaphoreModel { permits: 2 }, text),
        4 => searched(&QueueModel, text),
        5 => searched(&Kv::default(), text),
        6 => searched(&ElectionModel::default(), text),
        7 => checked(text, false, |history| total::check(&Total::default(), history)),
        8 => checked_reversed(text, false, backwards, |history| {
            watch::check(&WatchRecord::default(), history)
        }),
        9 => checked(text, false, |history| intervals::holds(&Holds::default(), history)),
        10 => {
            let rules = Leases { late: Some(5), drift_percent: 10, slack: 1 };
            checked(text, false, |history| intervals::leases(&rules, history))
        }
        15 => jepsens(text),
        11 | 12 => checked(text, false, |history| cycles::lists(history, level)),
        _ => checked(text, false, |history| cycles::registers(history, level)),
    }
}

/// Returns templates for the calls of a model and their replies. `$v` stands for a value, `$k` for a key, `$n` for a
/// number, `$u` for a unique number, and `$b` for a boolean.
fn calls(model: u8) -> &'static [(&'static str, &'static str)] {
    const REGISTER: &[(&str, &str)] = &[
        (r#""call":"read""#, r#","result":$v"#),
        (r#""call":"write","value":$v"#, ""),
        (r#""call":"cas","expect":$v,"value":$v"#, r#","swapped":$b"#),
    ];
    const LOCK: &[(&str, &str)] = &[
        (r#""call":"acquire","owner":$n"#, r#","acquired":$b"#),
        (r#""call":"release","owner":$n"#, r#","released":$b"#),
    ];
    const FENCED: &[(&str, &str)] = &[
        (r#""call":"acquire","owner":$n"#, r#","acquired":true,"token":$n"#),
        (r#""call":"release","owner":$n"#, r#","released":$b"#),
    ];
    const SEMAPHORE: &[(&str, &str)] = &[
        (r#""call":"acquire","owner":$n,"permits":$n"#, r#","acquired":$b"#),
        (r#""call":"release","owner":$n,"permits":$n"#, r#","released":$b"#),
    ];
    const QUEUE: &[(&str, &str)] =
        &[(r#""call":"put","value":$n"#, ""), (r#""call":"take""#, r#","result":$v"#)];
    const KV: &[(&str, &str)] = &[
        (r#""call":"put","key":$k,"value":$n"#, r#","revision":$n"#),
        (r#""call":"get","key":$k"#, r#","revision":$n,"result":$v"#),
        (r#""call":"delete","key":$k"#, r#","revision":$n,"deleted":$b"#),
        (r#""call":"cas","key":$k,"expect":$n,"value":$n"#, r#","revision":$n,"swapped":$b"#),
    ];
    const ELECTION: &[(&str, &str)] = &[
        (r#""call":"campaign","candidate":$n,"value":$n"#, r#","elected":$b"#),
        (r#""call":"proclaim","candidate":$n,"value":$n"#, r#","leads":$b"#),
        (r#""call":"resign","candidate":$n"#, r#","leads":$b"#),
        (r#""call":"expire","candidate":$n"#, ""),
        (r#""call":"leader""#, r#","candidate":$n,"value":$n"#),
    ];
    const WATCH: &[(&str, &str)] = &[
        (r#""call":"change","rows":[{"key":$k,"value":$v}]"#, r#","revision":$n"#),
        (r#""call":"compact","revision":$n"#, ""),
        (r#""call":"watch","stream":$n,"key":$k,"start":$n"#, r#","at":$n"#),
        (
            r#""call":"receive","stream":$n"#,
            r#","events":[{"revision":$n,"key":$k,"value":$v}],"more":$b"#,
        ),
        (r#""call":"receive","stream":$n"#, r#","progress":$n"#),
    ];
    const HOLDS: &[(&str, &str)] = &[
        (r#""call":"hold","owner":$n,"token":$n"#, r#","lost":$b"#),
        (r#""call":"hold","owner":$n,"kind":"permits","permits":$n"#, r#","lost":$b"#),
        (r#""call":"hold","owner":$n,"kind":"read""#, ""),
    ];
    const LEASES: &[(&str, &str)] = &[
        (r#""call":"grant","lease":$n,"ttl":$n"#, ""),
        (r#""call":"renew","lease":$n"#, r#","there":$b"#),
        (r#""call":"revoke","lease":$n"#, r#","there":$b"#),
        (r#""call":"look","lease":$n"#, r#","there":$b"#),
    ];
    const LISTS: &[(&str, &str)] = &[
        (r#""call":"txn","steps":[["append",$k,$u],["read",$k]]"#, r#","results":[[$n,$n]]"#),
        (r#""call":"txn","steps":[["append",$k,$u]]"#, ""),
        (r#""call":"txn","steps":[["read",$k],["read",$k]]"#, r#","results":[[$n],[]]"#),
    ];
    const WRITES: &[(&str, &str)] = &[
        (r#""call":"txn","steps":[["write",$k,$u],["read",$k]]"#, r#","results":[$v]"#),
        (r#""call":"txn","steps":[["read",$k],["read",$k]]"#, r#","results":[$v,$v]"#),
    ];
    match model {
        0 => REGISTER,
        1 => LOCK,
        2 => FENCED,
        3 => SEMAPHORE,
        4 => QUEUE,
        5 | 7 => KV,
        6 => ELECTION,
        8 => WATCH,
        9 => HOLDS,
        10 => LEASES,
        11 | 12 => LISTS,
        _ => WRITES,
    }
}

/// Builds valid lines from the input bytes.
fn made_up(model: u8, feed: &mut Feed<'_>) -> String {
    let (mut text, mut now, mut unique) = (String::new(), 0, 0);
    while !feed.is_empty() {
        let calls = calls(model);
        let (call, reply) = calls[feed.below(calls.len() as u64) as usize];
        now += feed.below(4);
        let end = now + feed.below(6);
        let (outcome, reply) = match feed.byte() % 8 {
            0 => ("unknown", ""),
            1 => ("failed", ""),
            _ => ("ok", reply),
        };
        let end = if call.contains("receive") { now } else { end };
        let fields = format!("{call}{reply}");
        let mut parts = fields.split('$');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (what, rest) = part.split_at(1);
            unique += 1;
            filled += &match what {
                "b" => feed.once_in(2).to_string(),
                "k" => format!("\"{}\"", ["a", "b"][feed.below(2) as usize]),
                "v" if feed.once_in(3) => "null".to_owned(),
                "u" => unique.to_string(),
                _ => (1 + feed.below(4)).to_string(),
            };
            filled += rest;
        }
        let process = feed.below(3);
        text += &format!(
            "{{\"process\":{process},\"invoke\":{now},\"complete\":{end},\"outcome\":\"{outcome}\",{filled}}}\n"
        );
    }
    text
}

/// Reads the input as Jepsen's notation, which either fails or yields a history.
fn jepsens(text: &[u8]) -> Came {
    let Some((dialect, text)) = text.split_first() else { return Came::Refused };
    match dialect % 4 {
        0 => match edn::read::<RegisterCall>(text, Dialect::Register) {
            Ok(lines) if !lines.history.is_empty() => Came::Through,
            _ => Came::Refused,
        },
        1 => transactions(edn::read::<ListTxn>(text, Dialect::ListAppend)),
        2 => transactions(edn::read::<RegisterTxn>(text, Dialect::Set)),
        _ => transactions(edn::read::<RegisterTxn>(text, Dialect::WriteRead)),
    }
}

fn transactions<C, R>(read: Result<Lines<C, R>, LineError>) -> Came {
    let Ok(lines) = read else { return Came::Refused };
    assert_eq!(lines.history.len(), lines.numbers.len());
    Came::Through
}

fn searched<M: Model>(model: &M, text: &[u8]) -> Came
where
    M::Call: Written<Reply = M::Reply> + Clone,
    M::Reply: Clone,
{
    let budget = || Budget { steps: STEPS, configurations: 20_000, stop: None };
    checked(text, true, |history| linear::check(model, history, budget()))
}

fn checked<C: Written + Clone>(
    text: &[u8],
    stands_alone: bool,
    check: impl Fn(&History<C, C::Reply>) -> Verdict,
) -> Came
where
    C::Reply: Clone,
{
    checked_reversed(text, stands_alone, |history| history.reverse(), check)
}

/// Sorts the latest operations first. Operations at the same moment keep the order of their lines.
fn backwards<C, R>(history: &mut History<C, R>) {
    history.sort_by_key(|operation| std::cmp::Reverse(operation.invoked));
}

/// Checks a history, and checks it again after `turn` has reordered it in a way that must not matter.
fn checked_reversed<C: Written + Clone>(
    text: &[u8],
    stands_alone: bool,
    turn: impl Fn(&mut History<C, C::Reply>),
    check: impl Fn(&History<C, C::Reply>) -> Verdict,
) -> Came
where
    C::Reply: Clone,
{
    let Ok(lines) = lines::read::<C>(text) else { return Came::Refused };
    let mut history = lines.history;
    let written: Vec<String> = history.iter().map(lines::line).collect();
    let again = lines::read::<C>(written.join("\n").as_bytes()).expect("its own lines");
    assert_eq!(again.history.iter().map(lines::line).collect::<Vec<_>>(), written);
    if history.is_empty() {
        return Came::Refused;
    }
    history.truncate(OPERATIONS_MAX);
    let verdict = check(&history);
    assert_eq!(format!("{:?}", check(&history)), format!("{verdict:?}"), "two verdicts");
    if let Some(reason) = verdict.violation() {
        assert!(reason.operations.iter().all(|index| *index < history.len()));
        let page = Page::new("a history").of(&history, reason);
        assert!(page.ends_with("</html>\n"));
        if stands_alone {
            let alone = reason.operations.iter().map(|index| history[*index].clone()).collect();
            assert!(!check(&alone).is_ok(), "they alone contradict nothing: {reason:?}");
        }
    }
    let mut turned = history;
    turn(&mut turned);
    let other = check(&turned);
    let is_decided = |verdict: &Verdict| verdict.is_ok() || verdict.violation().is_some();
    if is_decided(&verdict) && is_decided(&other) {
        assert_eq!(other.is_ok(), verdict.is_ok(), "the lines' order makes a difference");
    }
    Came::Through
}

/// Histories with a known verdict.
const KNOWN: [(u8, &str); 12] = [
    (0, include_str!("../../../check/src/tests/histories/register.txt")),
    (1, include_str!("../../../check/src/tests/histories/mutex.txt")),
    (2, include_str!("../../../check/src/tests/histories/mutex.txt")),
    (3, include_str!("../../../check/src/tests/histories/semaphore.txt")),
    (4, include_str!("../../../check/src/tests/histories/queue.txt")),
    (5, include_str!("../../../check/src/tests/histories/kv.txt")),
    (6, include_str!("../../../check/src/tests/histories/election.txt")),
    (7, include_str!("../../../check/src/tests/histories/total.txt")),
    (8, include_str!("../../../check/src/tests/histories/watch.txt")),
    (9, include_str!("../../../check/src/tests/histories/holds.txt")),
    (10, include_str!("../../../check/src/tests/histories/leases.txt")),
    (11 + 5 * 16, include_str!("../../../check/src/tests/histories/list_append.txt")),
];

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let jepsens = [
        "\x00[{:type :invoke, :f :cas, :value [5 [1 2]], :process 0}]",
        "\x01#a.b{:type :invoke, :f :txn, :value [[:append :x 1] [:r 2 nil]], :process 0}",
        "\x02{:type :invoke, :f :add, :value \"a\\u0041\", :process 1} ; a comment",
        "\x03{:type :invoke, :f :txn, :value ([:w 1 1]), :process 0, :x #{1 2.5 \\c}}",
    ];
    let jepsens = jepsens.map(|text| [&[15], text.as_bytes()].concat());
    let mut seeds = Vec::from(jepsens);
    for (model, text) in KNOWN {
        let sections = text.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
        for (_, body) in sections.step_by(3).take(6) {
            seeds.push([&[model], body.as_bytes()].concat());
        }
        // Input bytes that build valid lines.
        let orders = |salt: u8| (1..80).map(move |n: u8| n.wrapping_mul(37).wrapping_add(salt));
        for salt in [model, model.wrapping_mul(91)] {
            seeds.push([model, 0xff].into_iter().chain(orders(salt)).collect());
        }
    }
    seeds
}
