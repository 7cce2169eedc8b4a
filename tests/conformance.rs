//! Runs the scripts in `tests/scripts` and compares the answers of the store with the answers in
//! the scripts.
//!
//! A case is a title (`# ...`), followed by commands (`> ...`) and the answers to them. Each case
//! has its own store. An empty line ends a case. The language is described in `tests/language`.
//! Each case runs on the state machine and on the naive model. Then the log of the case is applied
//! to further machines, divided into entries in other ways. These machines must give the same
//! answers and end with the same digest.
//!
//! `UPDATE=1 cargo test --workspace --test conformance` writes the machine's answers into the scripts. Review the difference
//! afterwards, because the scripts define what is right.

mod language;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use bowline::machine::MachineOptions;
use bowline::model::{
    AckWindow, Command, Incarnation, Item, Limits, LogIndex, NodeId, Outcome, Proposal, Rejection,
    RequestId, Revision,
};

use bowline_testkit::naive::Naive;
use bowline_testkit::subject::{Applied, LeaseNews, Real, Subject};
use language::{Block, Step, TERM};

/// Minimum number of cases. If there are fewer, a file was not found.
const CASES_MIN: usize = 300;

#[test]
fn store_answers_match_the_scripts() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut names = BTreeSet::new();
    let mut wrong = String::new();
    let files = scripts();
    for path in &files {
        let text = std::fs::read_to_string(path).expect("a script can be read");
        let file = path.file_name().expect("a file").to_string_lossy();
        let mut told = Vec::new();
        for case in cases(&text) {
            if let Some(name) = case.name() {
                let place = format!("{file}:{}: {name}", case.line);
                assert!(
                    names.insert(name.to_owned()),
                    "{place}: there is another case of this name"
                );
                told.push(case.play_or_tell(&place, &mut wrong));
            } else {
                told.push(case.lines.join("\n"));
            }
        }
        let told = told.join("\n\n") + "\n";
        if update && told != text {
            std::fs::write(path, told).expect("a script can be written");
        }
    }
    assert!(names.len() >= CASES_MIN, "only {} cases in {} files", names.len(), files.len());
    // An update cannot repair a panic or an invalid command, so these always fail the test.
    assert!(wrong.is_empty() || update && !wrong.contains("panic: "), "\n{wrong}");
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = std::fs::read_dir(folder).expect("the folder of the scripts");
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "txt")).collect();
    paths.sort();
    paths
}

/// The lines of a script between two empty lines.
struct Case<'a> {
    /// Number of the first line, from 1.
    line: usize,
    lines: Vec<&'a str>,
}

fn cases(text: &str) -> Vec<Case<'_>> {
    let mut cases = vec![Case { line: 1, lines: Vec::new() }];
    for (at, line) in text.lines().enumerate() {
        if line.is_empty() {
            cases.push(Case { line: at + 2, lines: Vec::new() });
        } else {
            cases.last_mut().expect("never empty").lines.push(line);
        }
    }
    cases.retain(|case| !case.lines.is_empty());
    cases
}

impl<'a> Case<'a> {
    fn name(&self) -> Option<&'a str> {
        self.lines[0].strip_prefix("# ")
    }

    /// Runs the case. Reports a panic like a wrong answer, with the name of the case.
    fn play_or_tell(&self, place: &str, wrong: &mut String) -> String {
        let played = panic::catch_unwind(AssertUnwindSafe(|| self.play(place, wrong)));
        played.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            writeln!(wrong, "{place}\n  panic: {}\n", text.unwrap_or("?")).expect("a string");
            self.lines.join("\n")
        })
    }

    /// Runs the case. Returns its lines with the machine's answers, and adds each difference from the file to
    /// `wrong`.
    fn play(&self, place: &str, wrong: &mut String) -> String {
        let mut machine = Player::new(Real::new(MachineOptions::default(), usize::MAX));
        let mut naive = Player::new(Naive::new());
        let mut told: Vec<String> = Vec::new();
        let mut at = 0;
        while at < self.lines.len() {
            let line = self.lines[at];
            if line.starts_with('#') {
                told.push(line.to_owned());
                at += 1;
                continue;
            }
            // A command is a line with the indented lines below it.
            let is_more = |line: &&&str| line.starts_with(">  ");
            let more = self.lines[at + 1..].iter().take_while(is_more).count();
            let command = &self.lines[at..=at + more];
            let line = self.line + at;
            at += command.len();
            let expected = self.lines[at..].iter().take_while(|line| !line.starts_with(['>', '#']));
            let expected: Vec<&str> = expected.copied().collect();
            at += expected.len();

            told.extend(command.iter().map(|line| (*line).to_owned()));
            let stripped: Vec<&str> = command
                .iter()
                .map(|text| text.strip_prefix("> "))
                .collect::<Option<_>>()
                .unwrap_or_else(|| panic!("{place}: line {line}: an answer without a command"));
            let blocks = Block::parse(&stripped);
            let answers = |player: &mut dyn FnMut(Step) -> Vec<String>| -> Vec<String> {
                assert_eq!(blocks.len(), 1, "{place}: line {line}: one command at a time");
                match language::parse(&blocks[0]) {
                    Ok(step) => player(step),
                    Err(why) => panic!("{place}: line {line}: {why}"),
                }
            };
            let answer = answers(&mut |step| machine.play(step));
            if answer != expected {
                report_problem(wrong, place, line, command, &expected, &answer);
            }
            let naive = answers(&mut |step| naive.play(step));
            if naive != answer {
                writeln!(wrong, "(below: the naive model, against the machine)").expect("a string");
                report_problem(wrong, place, line, command, &naive, &answer);
            }
            told.extend(answer);
        }
        machine.replay(place, wrong);
        told.join("\n")
    }
}

/// Formats a difference for the failure message.
fn report_problem(
    wrong: &mut String,
    place: &str,
    line: usize,
    command: &[&str],
    expected: &[impl AsRef<str>],
    answer: &[String],
) {
    let mut say = |text: std::fmt::Arguments<'_>| wrong.write_fmt(text).expect("a string");
    say(format_args!("{place}\n  line {line}\n"));
    for line in command {
        say(format_args!("      {line}\n"));
    }
    let expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
    for line in &expected {
        let sign = if answer.iter().any(|other| other == line) { ' ' } else { '-' };
        say(format_args!("    {sign} {line}\n"));
    }
    for line in answer.iter().filter(|line| !expected.contains(&line.as_str())) {
        say(format_args!("    + {line}\n"));
    }
    say(format_args!("\n"));
}

/// A store on which a case runs.
struct Player<S> {
    store: S,
    /// The applied items, one for each entry.
    log: Vec<Item>,
    outcomes: Vec<(RequestId, Outcome)>,
    /// The number of the last request that a script made without naming a node.
    seq: u64,
    shows: bool,
}

/// The node that makes the requests for which a script names no other node.
const NODE: u64 = 9;

impl<S: Subject> Player<S> {
    fn new(store: S) -> Self {
        Self { store, log: Vec::new(), outcomes: Vec::new(), seq: 0, shows: true }
    }

    /// Runs a command and returns the lines of its answer.
    fn play(&mut self, step: Step) -> Vec<String> {
        let limits = Limits::default();
        let early = |why: Rejection| vec![format!("refused before the log: {why}")];
        match step {
            Step::Request(command) => {
                if let Err(why) = limits.check(&command) {
                    return early(why);
                }
                self.seq += 1;
                let applied = self.apply(Item::Proposal(Proposal {
                    node: NodeId::new(NODE).expect("not 0"),
                    incarnation: Incarnation(1),
                    window: AckWindow { frontier: self.seq, open: Vec::new() },
                    requests: vec![(self.seq, command)],
                }));
                let outcomes = applied.outcomes.iter();
                let lines = outcomes.flat_map(|(_, outcome)| language::outcome(outcome));
                lines.chain(ended(&applied)).collect()
            }
            Step::Propose(proposal) => {
                for (_, command) in &proposal.requests {
                    if let Err(why) = limits.check(command) {
                        return early(why);
                    }
                }
                let applied = self.apply(Item::Proposal(proposal));
                let mut lines = Vec::new();
                for (RequestId { seq, .. }, outcome) in &applied.outcomes {
                    let mut answer = language::outcome(outcome).into_iter();
                    lines.extend(answer.next().map(|first| format!("{seq}: {first}")));
                    lines.extend(answer);
                }
                lines.extend(ended(&applied));
                if lines.is_empty() {
                    lines.push("no requests".to_owned());
                }
                lines
            }
            Step::Expire(item) => {
                let applied = self.apply(item);
                let changed = |applied: &Applied| {
                    let revisions = applied.changes.iter().map(|(revision, _)| revision);
                    revisions.map(|revision| format!("revision={revision}")).collect::<Vec<_>>()
                };
                let mut lines = ended(&applied);
                lines.extend(changed(&applied));
                if lines.is_empty() {
                    lines.push("nothing".to_owned());
                }
                lines
            }
            Step::Range(range) => match limits.check_range(&range) {
                Err(why) => early(why),
                Ok(()) => match self.store.range(&range) {
                    Ok(reply) => language::range_lines(&reply),
                    Err(why) => vec![format!("refused: {why}")],
                },
            },
            Step::Read(txn) => match limits.check(&Command::Txn(txn.clone())) {
                Err(why) => early(why),
                Ok(()) => match self.store.read_txn(&txn) {
                    Ok(reply) => language::txn_lines(&reply),
                    Err(why) => vec![format!("refused: {why}")],
                },
            },
            Step::Events { range, from, prev } => match self.store.events(&range, from) {
                Err(why) => vec![format!("refused: {why}")],
                Ok(events) if events.is_empty() => vec!["nothing".to_owned()],
                Ok(events) => {
                    events.iter().flat_map(|event| language::event_lines(event, prev)).collect()
                }
            },
            Step::Lease(id) => vec![match self.store.lease(id) {
                None => format!("no lease {id}"),
                Some((lease, keys)) => language::lease_line(id, &lease, &keys),
            }],
            Step::Leases => {
                let mut line = "leases:".to_owned();
                for id in self.store.leases() {
                    write!(line, " {id}").expect("a string");
                }
                vec![line]
            }
            Step::Alarms => vec![language::alarms_line(&self.store.alarms())],
            Step::Revision => {
                let mut line = format!("revision={}", self.store.revision());
                if self.store.compacted() > Revision(0) {
                    write!(line, " compacted={}", self.store.compacted()).expect("a string");
                }
                vec![line]
            }
            Step::Answer(id) => match self.store.answer(id) {
                None => vec!["no answer".to_owned()],
                Some(outcome) => language::outcome(&outcome),
            },
            Step::Hold => {
                self.shows = false;
                vec!["readers see no more".to_owned()]
            }
            Step::Publish => {
                self.shows = true;
                self.store.publish();
                vec!["readers see everything".to_owned()]
            }
        }
    }

    fn apply(&mut self, item: Item) -> Applied {
        let applied = self.store.apply(TERM, std::slice::from_ref(&item));
        self.log.push(item);
        self.outcomes.extend(applied.outcomes.iter().cloned());
        if self.shows {
            self.store.publish();
        }
        applied
    }
}

impl Player<Real> {
    /// Applies the log to other machines, divided into entries in other ways: all items in one
    /// entry, two in each, and each request of a proposal in an entry of its own. All these
    /// machines must give the same answers and end in the same state.
    fn replay(&mut self, place: &str, wrong: &mut String) {
        let alone: Vec<Item> = self.log.iter().flat_map(taken_apart).collect();
        let end = LogIndex(2 + alone.len() as u64);
        self.store.skip_to(end);
        let digest = self.store.machine.digest();
        let cuts = [
            ("all in one entry", &self.log, self.log.len().max(1)),
            ("two in an entry", &self.log, 2),
            ("each request in an entry", &alone, 1),
        ];
        for (how, items, size) in cuts {
            let mut other =
                Real::new(MachineOptions { sweep_rows: 0, ..MachineOptions::default() }, 1);
            let mut outcomes = Vec::new();
            for items in items.chunks(size) {
                outcomes.extend(other.apply(TERM, items).outcomes);
            }
            other.skip_to(end);
            if outcomes != self.outcomes {
                writeln!(wrong, "{place}\n  {how}: other answers: {outcomes:#?}")
                    .expect("a string");
            }
            if other.machine.digest() != digest {
                writeln!(wrong, "{place}\n  {how}: another digest").expect("a string");
            }
        }
    }
}

/// Splits a proposal into one for each request.
fn taken_apart(item: &Item) -> Vec<Item> {
    let Item::Proposal(whole) = item else { return vec![item.clone()] };
    if whole.requests.is_empty() {
        return vec![item.clone()];
    }
    let alone = |request: &(u64, Command)| {
        Item::Proposal(Proposal { requests: vec![request.clone()], ..whole.clone() })
    };
    whole.requests.iter().map(alone).collect()
}

/// Returns the lines for the leases that ended.
fn ended(applied: &Applied) -> Vec<String> {
    let ended = applied.leases.iter().filter_map(|news| match news {
        LeaseNews::Ended(id) => Some(format!("ended lease={id}")),
        LeaseNews::Granted(..) => None,
    });
    ended.collect()
}
