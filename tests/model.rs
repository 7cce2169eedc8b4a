//! Compares the state machine with a naive model on random histories. Both must give the same
//! answers.
//!
//! A history consists of about sixty log entries, with queries in between. The test compares the
//! outcome of each request, the changes, granted and ended leases, ranges at any revision, reads
//! that bypass the log, events, leases with their keys, and known answers. Two further machines
//! apply the same items, divided into other entries, and free compacted rows at another pace.
//! Whenever all machines have applied the same items, their digests must be equal. From time to
//! time an image of the machine is taken and read in steps while the machine continues. A state is
//! restored from the image, compared with a copy of the model from the time of the image, and
//! installed in a machine that lags.
//!
//! `BOWLINE_MODEL_CASES` sets the number of histories (default 2000). A failing history is shortened, and the failure
//! prints the command that repeats it: `BOWLINE_MODEL_SEED=... cargo test --workspace --test model`.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::num::NonZeroUsize;
use std::ops::Range as Span;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use bowline::machine::{Image, Machine, MachineOptions};
use bowline::model::{
    Alarm, AlarmChange, Command, Event, Item, KeyRange, LogIndex, Op, Proposal, Range, RangeReply,
    Rejection, Reply, RequestId, Revision, SnapshotRecord, Txn,
};
use bytes::Bytes;

use bowline_testkit::histories::{self, Authors, Now, Random, TERM};
use bowline_testkit::naive::Naive;
use bowline_testkit::subject::{Applied, Lease, LeaseNews, Real, Subject};

const CASES_DEFAULT: u64 = 2000;

/// Number of steps of a history.
const STEPS: u64 = 60;

/// Number of steps of a wide history.
const WIDE_STEPS: u64 = 500;

/// Name of the threads that run histories.
const WORKER: &str = "histories";

/// Number of queries after each step.
const QUESTIONS: u64 = 3;

#[test]
fn machine_agrees_with_the_naive_model() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    };
    let (seeds, all) = match number("BOWLINE_MODEL_SEED") {
        Some(seed) => (seed..seed + 1, false),
        None => (0..number("BOWLINE_MODEL_CASES").unwrap_or(CASES_DEFAULT), true),
    };
    let cases = seeds.end - seeds.start;
    // Report a panic of the machine like any other failure: once, with its history.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if thread::current().name() != Some(WORKER) {
            hook(panic);
        }
    }));
    match on_all_cores(seeds) {
        Err(failure) => panic!("{failure}"),
        Ok(tally) if all => tally.must_have_met(cases),
        Ok(_) => {}
    }
}

/// In wide histories a scan takes the lock several times, and the history of a key spans several chunks.
#[test]
fn long_scans_and_histories_agree_too() {
    for seed in 0..2 {
        let play = || {
            let (mut world, mut tally) = (World::new(seed), Tally::default());
            world.step(histories::wide_start(), &mut Random::wide(seed), &mut tally)?;
            for step in 0..WIDE_STEPS {
                let random = &mut Random::wide(seed * WIDE_STEPS + step);
                let items = world.authors.entry(random, world.now);
                world.step(items, random, &mut tally)?;
            }
            world.end()
        };
        play().unwrap_or_else(|why: String| panic!("wide history {seed}: {why}"));
    }
}

/// Runs the histories of these seeds on all cores.
fn on_all_cores(seeds: Span<u64>) -> Result<Tally, String> {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let some = &|core: usize| {
        let mut tally = Tally::default();
        seeds.clone().skip(core).step_by(cores).try_for_each(|seed| history(seed, &mut tally))?;
        Ok(tally)
    };
    thread::scope(|scope| {
        let work = |core| {
            let worker = thread::Builder::new().name(WORKER.to_owned());
            worker.spawn_scoped(scope, move || some(core)).expect("a thread")
        };
        let workers: Vec<_> = (0..cores).map(work).collect();
        let tallies = workers.into_iter().map(|worker| worker.join().expect("failures are told"));
        tallies.reduce(|one, other| Ok(one?.and(other?))).expect("there is a core")
    })
}

/// Runs one history. A failure also prints the shortest failing history that was found.
fn history(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let steps: Vec<u64> =
        (0..STEPS).map(|step| Random::new(seed * STEPS + step).number()).collect();
    if play(&steps, tally, &mut Vec::new()).is_ok() {
        return Ok(());
    }
    let shortest = shorten(steps);
    let mut told = Vec::new();
    let why = play(&shortest, &mut Tally::default(), &mut told).expect_err("it failed before");
    let story =
        told.iter().filter(|items| !items.is_empty()).fold(String::new(), |mut story, items| {
            writeln!(story, "  {items:?}").expect("a string");
            story
        });
    let failure = format!(
        "history {seed}, {} of {STEPS} steps left:\n{story}{why}\n\
         BOWLINE_MODEL_SEED={seed} cargo test --workspace --test model",
        shortest.len()
    );
    Err(failure.replace(&"x".repeat(histories::LONG_BYTES), "x{long}"))
}

/// Shortens a failing history: removes steps as long as the remaining steps still fail.
fn shorten(mut steps: Vec<u64>) -> Vec<u64> {
    let fails = |steps: &[u64]| play(steps, &mut Tally::default(), &mut Vec::new()).is_err();
    while let Some(fewer) = (0..steps.len()).rev().find_map(|at| {
        let mut fewer = steps.clone();
        fewer.remove(at);
        fails(&fewer).then_some(fewer)
    }) {
        steps = fewer;
    }
    steps
}

/// Runs steps. The entries that were reached are added to `told`.
fn play(steps: &[u64], tally: &mut Tally, told: &mut Vec<Vec<Item>>) -> Result<(), String> {
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(steps.first().copied().unwrap_or_default());
        for &step in steps {
            let mut random = Random::new(step);
            let items = world.authors.entry(&mut random, world.now);
            told.push(items.clone());
            world.step(items, &mut random, tally)?;
        }
        world.end()
    }));
    done.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of an unknown kind")))
    })
}

/// The machine, the model, and two machines that follow.
struct World {
    machine: Real,
    naive: Naive,
    followers: [Follower; 2],
    authors: Authors,
    /// The current revisions of the store, published or not.
    now: Now,
    log: Vec<Item>,
    /// The range in `log` of each entry that changed something.
    eventful: Vec<Span<usize>>,
    outcomes: usize,
    taken: Option<Taken>,
}

/// An image that is being copied into another machine, with a copy of the model from the time of
/// the image.
struct Taken {
    image: Image,
    pieces: Vec<SnapshotRecord>,
    naive: Naive,
    items: usize,
    outcomes: usize,
}

/// A machine that applies the same items later, divided into other entries.
struct Follower {
    machine: Real,
    /// Number of items that the follower has applied.
    applied: usize,
    /// Maximum number of items in one entry.
    entry_items: usize,
    outcomes: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let page_bytes = *random.pick(&[1, 20, usize::MAX]);
        let machine = |sweep_rows| {
            Real::new(MachineOptions { sweep_rows, ..MachineOptions::default() }, page_bytes)
        };
        let paces = [0, 1, 64];
        let main = machine(*random.pick(&paces));
        let follower = |sweep_rows, entry_items| Follower {
            machine: machine(sweep_rows),
            applied: 0,
            entry_items,
            outcomes: 0,
        };
        Self {
            machine: main,
            naive: Naive::new(),
            followers: [follower(*random.pick(&paces), 1), follower(*random.pick(&paces), 1000)],
            authors: Authors::new(),
            now: Now { revision: Revision::FIRST, compacted: Revision(0) },
            log: Vec::new(),
            eventful: Vec::new(),
            outcomes: 0,
            taken: None,
        }
    }

    /// Applies an entry and compares the answers to queries.
    fn step(
        &mut self,
        items: Vec<Item>,
        random: &mut Random,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let unanswered = self.unanswered(&items);
        let naive = self.naive.apply(TERM, &items);
        let machine = self.machine.apply(TERM, &items);
        agree("applied", &machine, &naive)?;
        tally.note(&items, &naive);
        let before = self.log.len();
        self.log.extend(items);
        let is_answered = |id: &RequestId| {
            self.naive.answer(*id).is_some_and(|answer| answer != Err(Rejection::Closed))
        };
        let changed = !naive.changes.is_empty() || !naive.leases.is_empty();
        if changed || naive.compacted.is_some() || unanswered.iter().any(is_answered) {
            self.eventful.push(before..self.log.len());
        }
        self.outcomes += naive.outcomes.len();
        if let Some((revision, _)) = naive.changes.last() {
            self.now.revision = *revision;
        }
        self.now.compacted = naive.compacted.unwrap_or(self.now.compacted);
        if random.percent(80) {
            self.machine.publish();
            self.naive.publish();
        }
        if random.percent(10) {
            self.machine.machine.sweep(random.below(20) as usize);
        }
        for _ in 0..QUESTIONS {
            self.question(random, tally)?;
        }
        for follower in 0..self.followers.len() {
            if random.percent(10) {
                self.follow(follower)?;
            }
        }
        self.travel(random, tally)
    }

    /// Returns the requests in these items that have no answer yet.
    fn unanswered(&self, items: &[Item]) -> Vec<RequestId> {
        let ids = items.iter().flat_map(|item| match item {
            Item::Expire { .. } => Vec::new(),
            Item::Proposal(Proposal { node, incarnation, requests, .. }) => {
                let (node, incarnation) = (*node, *incarnation);
                let ids =
                    requests.iter().map(|(seq, _)| RequestId { node, incarnation, seq: *seq });
                ids.collect()
            }
        });
        ids.filter(|id| self.naive.answer(*id).is_none()).collect()
    }

    fn question(&mut self, random: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let (machine, naive, now) = (&self.machine, &self.naive, self.now);
        agree("revision", &machine.revision(), &naive.revision())?;
        agree("compacted", &machine.compacted(), &naive.compacted())?;
        match random.below(10) {
            0..4 => {
                let range = histories::range(random, now);
                let (machine, naive) = (machine.range(&range), naive.range(&range));
                tally.rejection(naive.as_ref().err());
                agree(&range, &machine, &naive)
            }
            4 => {
                let txn = histories::read_txn(random, now);
                let (machine, naive) = (machine.read_txn(&txn), naive.read_txn(&txn));
                agree(&txn, &machine, &naive)
            }
            5..8 => {
                let (range, from) = (histories::keys(random), histories::revision(random, now));
                let (machine, naive) = (machine.events(&range, from), naive.events(&range, from));
                tally.rejection(naive.as_ref().err());
                if naive.as_ref().is_ok_and(|events| events.len() > 1) {
                    tally.count("events");
                }
                agree(format_args!("events of {range:?} from {from}"), &machine, &naive)
            }
            8 => {
                let id = histories::lease_id(random);
                agree("leases", &machine.leases(), &naive.leases())?;
                agree(id, &machine.lease(id), &naive.lease(id))?;
                agree("alarms", &machine.alarms(), &naive.alarms())
            }
            _ => {
                let id = self.authors.request_id(random);
                agree(id, &machine.answer(id), &naive.answer(id))
            }
        }
    }

    /// Applies the missing items to a follower and compares the result.
    fn follow(&mut self, follower: usize) -> Result<(), String> {
        let follower = &mut self.followers[follower];
        for items in self.log[follower.applied..].chunks(follower.entry_items) {
            follower.outcomes += follower.machine.apply(TERM, items).outcomes.len();
        }
        follower.applied = self.log.len();
        follower.machine.publish();
        // Digests can be compared only at the same index.
        let [ours, theirs] = [&self.machine, &follower.machine].map(|real| real.machine.applied());
        self.machine.skip_to(ours.max(theirs));
        follower.machine.skip_to(ours.max(theirs));
        let [ours, theirs] = [&self.machine, &follower.machine].map(|real| real.machine.digest());
        agree("digest in other entries", &theirs, &ours)?;
        agree("answers in other entries", &follower.outcomes, &self.outcomes)
    }

    /// Takes an image, or continues to read the current image.
    fn travel(&mut self, random: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let Some(taken) = &mut self.taken else {
            // Copying a model with a long history is expensive, so it is copied less often.
            if random.percent(if self.now.revision < Revision(200) { 15 } else { 1 }) {
                let mut naive = self.naive.clone();
                naive.publish();
                self.taken = Some(Taken {
                    image: self.machine.machine.image(),
                    pieces: Vec::new(),
                    naive,
                    items: self.log.len(),
                    outcomes: self.outcomes,
                });
            }
            return Ok(());
        };
        for _ in 0..=random.below(4) {
            let bytes_max = *random.pick(&[1, 100, 300, 10_000]);
            if let Some(piece) = taken.image.next(bytes_max).map_err(|error| error.to_string())? {
                taken.pieces.push(piece);
                continue;
            }
            let taken = self.taken.take().expect("just seen");
            return self.arrive(taken, random, tally);
        }
        Ok(())
    }

    /// Restores a state, compares it, and installs it in a machine that lags.
    fn arrive(
        &mut self,
        taken: Taken,
        random: &mut Random,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let Taken { image, pieces, naive, items, outcomes } = taken;
        let options =
            MachineOptions { sweep_rows: *random.pick(&[0, 1, 64]), ..MachineOptions::default() };
        let head = image.head().clone();
        drop(image);
        let machine = Machine::restore(options, head, pieces).map_err(|error| error.to_string())?;
        let mut restored = Real::of(machine, usize::MAX);
        agree_all("everything, restored", &all_of(&restored), &all_of(&naive))?;
        for _ in 0..5 {
            let id = self.authors.request_id(random);
            agree(id, &restored.answer(id), &naive.answer(id))?;
        }
        tally.count("restored");
        let follower = &mut self.followers[random.below(2) as usize];
        if follower.applied > items {
            return Ok(());
        }
        restored.skip_to(follower.machine.machine.applied());
        let old = follower.machine.machine.install(restored.machine);
        old.map_err(|fault| fault.to_string())?;
        (follower.applied, follower.outcomes) = (items, outcomes);
        tally.count("installed");
        agree_all("everything, installed", &all_of(&follower.machine), &all_of(&naive))
    }

    /// Compares the complete state once more, before and after all compacted rows are freed.
    fn end(mut self) -> Result<(), String> {
        self.machine.publish();
        self.naive.publish();
        let naive = all_of(&self.naive);
        agree_all("everything", &all_of(&self.machine), &naive)?;
        while self.machine.machine.sweep(100) {}
        agree_all("everything, swept", &all_of(&self.machine), &naive)?;
        self.machine.machine.scrub(10_000).map_err(|fault| fault.to_string())?;
        for follower in 0..self.followers.len() {
            self.follow(follower)?;
        }
        for follower in &self.followers {
            agree_all("everything, in other entries", &all_of(&follower.machine), &naive)?;
        }
        self.digest_tells()
    }

    /// Checks that digests detect a missed entry: a machine that has missed an entry with an effect
    /// must have a different digest at the same index.
    fn digest_tells(&self) -> Result<(), String> {
        // Use the number of items as a random number.
        let Some(at) = self.log.len().checked_rem(self.eventful.len()) else { return Ok(()) };
        let entry = &self.eventful[at];
        let [missed, whole] = [entry.start, entry.end].map(|end| {
            let mut machine = Real::new(MachineOptions::default(), 1);
            if end > 0 {
                machine.apply(TERM, &self.log[..end]);
            }
            machine.skip_to(LogIndex(3));
            machine.machine.digest()
        });
        if missed == whole {
            let items = &self.log[entry.clone()];
            return Err(format!("the digest does not tell that {items:?} were missed"));
        }
        Ok(())
    }
}

/// Returns every row at every revision (at a selection if there are many), and every event, lease and alarm.
type All = (Vec<RangeReply>, Vec<Event>, Vec<(Lease, Vec<Bytes>)>, Vec<Alarm>);

fn all_of(store: &impl Subject) -> All {
    let (all, oldest) = (KeyRange::all(), store.compacted());
    let revisions = oldest.get()..=store.revision().get();
    let stride = 1 + (store.revision().get() - oldest.get()) / 200;
    let rows = revisions.step_by(stride as usize).map(|revision| {
        let range = Range { revision: Some(Revision(revision)), ..Range::new(all.clone()) };
        store.range(&range).expect("not compacted")
    });
    let leases = store.leases().into_iter();
    (
        rows.collect(),
        store.events(&all, oldest).expect("not compacted"),
        leases.map(|id| store.lease(id).expect("just seen")).collect(),
        store.alarms(),
    )
}

fn agree_all(what: &str, machine: &All, naive: &All) -> Result<(), String> {
    agree(format_args!("{what}: rows"), &machine.0, &naive.0)?;
    agree(format_args!("{what}: events"), &machine.1, &naive.1)?;
    agree(format_args!("{what}: leases"), &machine.2, &naive.2)?;
    agree(format_args!("{what}: alarms"), &machine.3, &naive.3)
}

fn agree<T: PartialEq + fmt::Debug>(
    what: impl fmt::Debug,
    machine: &T,
    naive: &T,
) -> Result<(), String> {
    if machine == naive {
        return Ok(());
    }
    let (machine, naive) = (format!("{machine:?}"), format!("{naive:?}"));
    // Show long texts from shortly before the first difference.
    let differs = machine.bytes().zip(naive.bytes()).position(|(one, other)| one != other);
    let from = differs.unwrap_or_default().saturating_sub(TOLD_BYTES / 2);
    let part = |text: &str| match text.len() {
        0..TOLD_BYTES => text.to_owned(),
        _ => text.chars().skip(from).take(TOLD_BYTES).collect(),
    };
    Err(format!("{what:?}\n  machine: {}\n  naive:   {}", part(&machine), part(&naive)))
}

/// Maximum number of bytes of an answer in a failure.
const TOLD_BYTES: usize = 2000;

/// Counts the kinds of requests and events in the histories. A kind that never occurs is not
/// tested.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// The kinds that must occur, on average, at least once in eight histories.
    const MET: [&'static str; 19] = [
        "alarm",
        "ended alarm",
        "answered again",
        "applied before",
        "closed",
        "compaction",
        "events",
        "expiry with keys",
        "future",
        "compacted",
        "key not found",
        "lease exists",
        "lease not found",
        "minted lease",
        "nested write",
        "other branch",
        "session left behind",
        "restored",
        "installed",
    ];

    fn must_have_met(&self, cases: u64) {
        for what in Self::MET {
            let met = self.0.get(what).copied().unwrap_or_default();
            assert!(met * 8 >= cases, "{met} times `{what}` in {cases} histories: {:?}", self.0);
        }
    }

    fn and(mut self, other: Self) -> Self {
        for (what, times) in other.0 {
            *self.0.entry(what).or_insert(0) += times;
        }
        self
    }

    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_insert(0) += 1;
    }

    fn rejection(&mut self, rejection: Option<&Rejection>) {
        match rejection {
            Some(Rejection::Alarm(_)) => self.count("alarm"),
            Some(Rejection::Closed) => self.count("closed"),
            Some(Rejection::Future { .. }) => self.count("future"),
            Some(Rejection::Compacted { .. }) => self.count("compacted"),
            Some(Rejection::KeyNotFound) => self.count("key not found"),
            Some(Rejection::LeaseExists(_)) => self.count("lease exists"),
            Some(Rejection::LeaseNotFound(_)) => self.count("lease not found"),
            _ => {}
        }
    }

    fn note(&mut self, items: &[Item], applied: &Applied) {
        let commands = items.iter().flat_map(|item| match item {
            Item::Proposal(proposal) => &proposal.requests[..],
            Item::Expire { .. } => &[],
        });
        let ended = applied.leases.iter().any(|news| matches!(news, LeaseNews::Ended(_)));
        let expires = items.iter().any(|item| matches!(item, Item::Expire { .. }));
        if ended && expires && !applied.changes.is_empty() {
            self.count("expiry with keys");
        }
        let granted = applied.leases.iter().filter_map(|news| match news {
            LeaseNews::Granted(id, _) => Some(*id),
            LeaseNews::Ended(_) => None,
        });
        let granted: Vec<_> = granted.collect();
        for ((_, command), (_, outcome)) in commands.zip(&applied.outcomes) {
            self.rejection(outcome.as_ref().err());
            match (command, outcome) {
                (_, Ok(Reply::AppliedBefore { .. })) => self.count("applied before"),
                (Command::Txn(txn), Ok(Reply::Txn(reply))) => {
                    if !reply.succeeded {
                        self.count("other branch");
                    }
                    if !applied.changes.is_empty() && nests(txn) {
                        self.count("nested write");
                    }
                }
                (Command::Grant { id, session, .. }, Ok(Reply::Grant(reply))) => {
                    if !granted.contains(&reply.id) {
                        self.count("answered again");
                    } else if id.is_none() {
                        self.count("minted lease");
                    }
                    if ended && session.as_ref().is_some_and(|session| session.own) {
                        self.count("session left behind");
                    }
                }
                (Command::Alarm(change), Ok(Reply::Alarms { alarms, .. }))
                    if !matches!(change, AlarmChange::Raise(_)) && !alarms.is_empty() =>
                {
                    self.count("ended alarm");
                }
                (Command::Compact(_), Ok(_)) if applied.compacted.is_some() => {
                    self.count("compaction");
                }
                (Command::Put(_), Ok(Reply::Put(reply))) => {
                    let is_new = |(revision, _): &(Revision, _)| *revision == reply.revision;
                    if !applied.changes.iter().any(is_new) {
                        self.count("answered again");
                    }
                }
                _ => {}
            }
        }
    }
}

fn nests(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| matches!(op, Op::Txn(_)))
}
