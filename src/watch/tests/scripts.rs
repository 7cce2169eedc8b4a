//! Scripted tests of what a watch yields.
//!
//! ```text
//! put K V; put K V; del RANGE     one transaction, shown and published
//! apply put K V; ...              the same, shown to readers and not yet published
//! publish                         publish what was applied
//! install put K V; ... | compact R  install the state after these commands
//! installed                       report the install to the hub
//! compact R | close
//! watch NAME RANGE [from R] [prev] [noput] [nodelete]
//! recv NAME | progress NAME | drop NAME | resume NAME
//! ```
//! A range is `k`, a prefix `k*`, `a..c` or `a..`.

use std::collections::BTreeMap;
use std::task::Poll;

use super::World;
use crate::model::{Event, EventKind, KeyRange, Op, Revision};
use crate::watch::{Filter, WatchError, WatchLimits, WatchRequest, Watcher};

const CASES: &[(&str, &[(&str, &str)])] = &[
    (
        "a watch without a start yields what happens after its creation",
        &[
            ("put a 1", ""),
            ("watch w a", "created at 2"),
            ("recv w", "nothing"),
            ("put a 2", ""),
            ("put b 2", ""),
            ("recv w", "3 put a=2 | through 4"),
            ("recv w", "nothing"),
        ],
    ),
    (
        "a watch from the past yields history and then what is new, without a seam",
        &[
            ("put a 1", ""),
            ("put a 2", ""),
            ("watch w a from 2", "created at 3"),
            ("put a 3", ""),
            ("recv w", "2 put a=1, 3 put a=2, 4 put a=3 | through 4"),
            ("put a 4", ""),
            ("recv w", "5 put a=4 | through 5"),
        ],
    ),
    (
        "a watch from the future yields nothing earlier",
        &[
            ("watch w a from 4", "created at 1"),
            ("put a 2", ""),
            ("put a 3", ""),
            ("recv w", "nothing"),
            ("resume w", "4"),
            ("put a 4", ""),
            ("recv w", "4 put a=4 | through 4"),
        ],
    ),
    (
        "a watch from the first revision yields everything",
        &[
            ("watch w a.. from 1", "created at 1"),
            ("recv w", "nothing"),
            ("put a 2", ""),
            ("recv w", "2 put a=2 | through 2"),
        ],
    ),
    (
        "all changes of one revision come together, those of other keys do not",
        &[
            ("watch p a*", "created at 1"),
            ("watch q b", "created at 1"),
            ("put a1 x; put b y; put a2 z", ""),
            ("recv p", "2 put a1=x, 2 put a2=z | through 2"),
            ("recv q", "2 put b=y | through 2"),
        ],
    ),
    (
        "a range ends before its end, and an empty one yields nothing",
        &[
            ("watch w b..d", "created at 1"),
            ("watch e d..b", "created at 1"),
            ("put a 1; put b 1; put c 1; put d 1", ""),
            ("recv w", "2 put b=1, 2 put c=1 | through 2"),
            ("recv e", "nothing"),
        ],
    ),
    (
        "filters hold for history and for what is new",
        &[
            ("put a 1", ""),
            ("del a", ""),
            ("watch p a from 2 noput", "created at 3"),
            ("watch d a from 2 nodelete", "created at 3"),
            ("recv p", "3 del a | through 3"),
            ("recv d", "2 put a=1 | through 3"),
            ("put a 2", ""),
            ("del a", ""),
            ("recv p", "5 del a | through 5"),
            ("recv d", "4 put a=2 | through 5"),
        ],
    ),
    (
        "the row before comes for those who ask, from history and live",
        &[
            ("put a 1", ""),
            ("put a 2", ""),
            ("watch p a from 3 prev", "created at 3"),
            ("watch q a from 3", "created at 3"),
            ("recv p", "3 put a=2 before 1 | through 3"),
            ("recv q", "3 put a=2 | through 3"),
            ("del a", ""),
            ("recv p", "4 del a before 2 | through 4"),
            ("recv q", "4 del a | through 4"),
        ],
    ),
    (
        "a start below the compacted revision is rejected, the compacted revision itself is not",
        &[
            ("put a 1", ""),
            ("put a 2", ""),
            ("del a", ""),
            ("compact 4", ""),
            ("watch w a from 3", "created at 4"),
            ("watch e a from 4", "created at 4"),
            ("recv w", "compacted: asked 3, oldest 4"),
            ("recv w", "end"),
            ("recv e", "4 del a | through 4"),
            ("recv e", "nothing"),
        ],
    ),
    (
        "compaction does not touch a watch that keeps up",
        &[
            ("watch w a", "created at 1"),
            ("put a 1", ""),
            ("put a 2", ""),
            ("compact 3", ""),
            ("recv w", "2 put a=1, 3 put a=2 | through 3"),
            ("recv w", "nothing"),
        ],
    ),
    (
        "a watch that fell behind continues from history",
        &[
            ("watch w a", "created at 1"),
            ("put a 1", ""),
            ("put a 2", ""),
            ("put a 3", ""),
            ("put a 4", ""),
            ("recv w", "2 put a=1, 3 put a=2 | through 3"),
            ("put a 5", ""),
            ("recv w", "4 put a=3, 5 put a=4, 6 put a=5 | through 6"),
            ("put a 6", ""),
            ("recv w", "7 put a=6 | through 7"),
        ],
    ),
    (
        "a watch that fell behind and was overtaken by compaction reports where",
        &[
            ("watch w a", "created at 1"),
            ("put a 1", ""),
            ("put a 2", ""),
            ("put a 3", ""),
            ("put a 4", ""),
            ("compact 5", ""),
            ("recv w", "2 put a=1, 3 put a=2 | through 3"),
            ("resume w", "4"),
            ("recv w", "compacted: asked 4, oldest 5"),
            ("recv w", "end"),
        ],
    ),
    (
        "progress is answered at once where nothing is owed",
        &[
            ("watch w a", "created at 1"),
            ("put b 1", ""),
            ("progress w", ""),
            ("recv w", "none | through 2"),
            ("recv w", "nothing"),
        ],
    ),
    (
        "progress is answered after everything before it was yielded",
        &[
            ("watch w a", "created at 1"),
            ("put a 1", ""),
            ("put a 2", ""),
            ("put a 3", ""),
            ("put b 4", ""),
            ("progress w", ""),
            ("recv w", "2 put a=1, 3 put a=2 | through 3"),
            ("recv w", "4 put a=3 | through 5"),
            ("recv w", "none | through 5"),
            ("recv w", "nothing"),
        ],
    ),
    (
        "a watch in the future reports its progress without pretending to have been there",
        &[
            ("watch w a from 9", "created at 1"),
            ("put a 1", ""),
            ("progress w", ""),
            ("recv w", "none | through 2"),
            ("resume w", "9"),
        ],
    ),
    (
        "nothing is yielded before it is published, except to who reads history anyway",
        &[
            ("watch w a", "created at 1"),
            ("watch h a from 1", "created at 1"),
            ("apply put a 1", ""),
            ("recv w", "nothing"),
            ("recv h", "2 put a=1 | through 2"),
            ("publish", ""),
            ("recv w", "2 put a=1 | through 2"),
            ("recv h", "nothing"),
        ],
    ),
    (
        "a watch begins after what its maker may have read, published or not",
        &[
            ("apply put a 1", ""),
            ("watch w a", "created at 2"),
            ("publish", ""),
            ("recv w", "nothing"),
            ("put a 2", ""),
            ("recv w", "3 put a=2 | through 3"),
        ],
    ),
    (
        "a node that stops yields what is queued and says where to continue",
        &[
            ("watch w a", "created at 1"),
            ("watch f a from 7", "created at 1"),
            ("put a 1", ""),
            ("put b 1", ""),
            ("watch h a from 2", "created at 3"),
            ("close", ""),
            ("recv w", "2 put a=1 | through 3"),
            ("recv w", "closed: resume 4"),
            ("recv w", "end"),
            ("recv f", "closed: resume 7"),
            ("recv h", "closed: resume 2"),
            ("watch n a", "created at 3"),
            ("recv n", "closed: resume 4"),
        ],
    ),
    (
        "a watch that ended is continued by another without a gap or a repetition",
        &[
            ("watch w a", "created at 1"),
            ("put a 1", ""),
            ("recv w", "2 put a=1 | through 2"),
            ("resume w", "3"),
            ("drop w", ""),
            ("put a 2", ""),
            ("watch w a from 3", "created at 3"),
            ("recv w", "3 put a=2 | through 3"),
        ],
    ),
    (
        "what a later state brings is read by those whom it concerns, after what is queued for them",
        &[
            ("put a 1", ""),
            ("watch w a", "created at 2"),
            ("watch b b", "created at 2"),
            ("watch late a from 6", "created at 2"),
            ("put a 2", ""),
            ("install put a 3 | put c 1", ""),
            ("installed", ""),
            ("recv w", "3 put a=2 | through 3"),
            ("recv w", "4 put a=3 | through 5"),
            ("recv b", "nothing"),
            ("put a 4", ""),
            ("recv w", "6 put a=4 | through 6"),
            ("recv late", "6 put a=4 | through 6"),
        ],
    ),
    (
        "what a later state has forgotten is reported as compacted, but only to those who need it",
        &[
            ("put a 1", ""),
            ("watch w a", "created at 2"),
            ("watch edge a from 5", "created at 2"),
            ("watch late a from 7", "created at 2"),
            ("put a 2", ""),
            ("install put a 3 | put a 4 | put a 5 | compact 5", ""),
            ("installed", ""),
            ("recv w", "3 put a=2 | through 3"),
            ("recv w", "compacted: asked 4, oldest 5"),
            ("resume w", "4"),
            ("recv edge", "5 put a=4, 6 put a=5 | through 6"),
            ("recv late", "nothing"),
            ("put a 6", ""),
            ("recv edge", "7 put a=6 | through 7"),
            ("recv late", "7 put a=6 | through 7"),
        ],
    ),
    (
        "a watch that begins between the state and the news of it yields what comes after",
        &[
            ("put a 1", ""),
            ("install put a 2", ""),
            ("watch w a", "created at 3"),
            ("watch v a from 2", "created at 3"),
            ("recv v", "2 put a=1, 3 put a=2 | through 3"),
            ("installed", ""),
            ("recv w", "nothing"),
            ("put a 3", ""),
            ("recv w", "4 put a=3 | through 4"),
            ("recv v", "4 put a=3 | through 4"),
        ],
    ),
    (
        "what was applied and not delivered before a later state came is not lost",
        &[
            ("watch w a", "created at 1"),
            ("apply put a 1", ""),
            ("install put a 2", ""),
            ("installed", ""),
            ("recv w", "2 put a=1, 3 put a=2 | through 3"),
        ],
    ),
    (
        "a later state in which nothing has changed concerns nobody",
        &[
            ("put a 1", ""),
            ("watch w a", "created at 2"),
            ("install compact 2", ""),
            ("installed", ""),
            ("recv w", "nothing"),
            ("put a 2", ""),
            ("recv w", "3 put a=2 | through 3"),
        ],
    ),
    (
        "a revision larger than the queue is still whole",
        &[
            ("watch w a*", "created at 1"),
            ("put a1 1; put a2 2; put a3 3; put a4 4; put a5 5; put a6 6", ""),
            ("put a1 7", ""),
            (
                "recv w",
                "2 put a1=1, 2 put a2=2, 2 put a3=3, 2 put a4=4, 2 put a5=5, 2 put a6=6 | through 2",
            ),
            ("recv w", "3 put a1=7 | through 3"),
        ],
    ),
];

#[test]
fn scripts_yield_the_expected_output() {
    for (name, lines) in CASES {
        let event = size_of::<Event>() + 8;
        let mut script = Script {
            world: World::new(WatchLimits {
                queue_revisions_max: 2,
                queue_bytes_max: 4 * event,
                page_bytes_max: 1 << 10,
            }),
            watchers: BTreeMap::new(),
        };
        for (line, expected) in *lines {
            let found = script.run(line);
            assert_eq!(&found, expected, "\ncase: {name}\nline: {line}");
        }
    }
}

struct Script {
    world: World,
    watchers: BTreeMap<String, Watcher>,
}

impl Script {
    fn run(&mut self, line: &str) -> String {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "put" | "del" => self.world.change(ops(line)),
            "apply" => self.world.store().apply(ops(rest)),
            "publish" => self.world.store().publish(&self.world.hub),
            "compact" => self.world.store().compact(revision(rest)),
            "install" => self.world.store().install(|store| {
                for command in rest.split(" | ") {
                    match command.strip_prefix("compact ") {
                        Some(at) => store.compact(revision(at)),
                        None => store.apply(ops(command)),
                    }
                }
            }),
            "installed" => self.world.store().installed(&self.world.hub),
            "close" => self.world.hub.close("a test"),
            "watch" => return self.watch(rest),
            "recv" => return describe(self.watchers.get_mut(rest).unwrap()),
            "resume" => return self.watchers[rest].resume().to_string(),
            "progress" => self.watchers.get_mut(rest).unwrap().request_progress(),
            "drop" => drop(self.watchers.remove(rest)),
            other => panic!("no such verb: {other}"),
        }
        String::new()
    }

    fn watch(&mut self, line: &str) -> String {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let mut request = WatchRequest::new(range(words.next().unwrap()));
        while let Some(word) = words.next() {
            match word {
                "from" => request.from = words.next().map(revision),
                "prev" => request.prev_kv = true,
                "noput" => request.filter = Filter::NoPut,
                "nodelete" => request.filter = Filter::NoDelete,
                other => panic!("no such word: {other}"),
            }
        }
        let watcher = self.world.hub.watch(request);
        let created = format!("created at {}", watcher.created_at());
        self.watchers.insert(name.into(), watcher);
        created
    }
}

fn revision(word: &str) -> Revision {
    Revision(word.parse().unwrap())
}

fn range(word: &str) -> KeyRange {
    if let Some(prefix) = word.strip_suffix('*') {
        return KeyRange::prefix(prefix.to_owned());
    }
    match word.split_once("..") {
        Some((start, "")) => KeyRange::starting_at(start.to_owned()),
        Some((start, end)) => KeyRange::between(start.to_owned(), end.to_owned()),
        None => KeyRange::key(word.to_owned()),
    }
}

fn ops(line: &str) -> Vec<Op> {
    let op = |op: &str| match op.split(' ').collect::<Vec<_>>()[..] {
        ["put", key, value] => Op::put(key.to_owned(), value.to_owned()),
        ["del", keys] => Op::delete(range(keys)),
        _ => panic!("no such operation: {op}"),
    };
    line.split("; ").map(op).collect()
}

fn describe(watcher: &mut Watcher) -> String {
    match watcher.try_recv() {
        Poll::Pending => "nothing".into(),
        Poll::Ready(None) => "end".into(),
        Poll::Ready(Some(Err(WatchError::Compacted { asked, compacted }))) => {
            format!("compacted: asked {asked}, oldest {compacted}")
        }
        Poll::Ready(Some(Err(WatchError::Closed { resume, .. }))) => {
            format!("closed: resume {resume}")
        }
        Poll::Ready(Some(Err(WatchError::Denied))) => "denied".into(),
        Poll::Ready(Some(Ok(batch))) => {
            let events: Vec<String> = batch.events.iter().map(describe_event).collect();
            let events = if events.is_empty() { "none".into() } else { events.join(", ") };
            format!("{events} | through {}", batch.revision)
        }
    }
}

fn describe_event(event: &Event) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let before = event.prev.as_ref().map(|prev| format!(" before {}", text(&prev.value)));
    let what = match event.kind {
        EventKind::Put => format!("put {}={}", text(&event.kv.key), text(&event.kv.value)),
        EventKind::Delete => format!("del {}", text(&event.kv.key)),
    };
    format!("{} {what}{}", event.revision(), before.unwrap_or_default())
}
