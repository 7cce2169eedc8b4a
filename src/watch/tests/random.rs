//! Random runs: random changes, watchers, delays and compactions, and changes during reads of
//! history. Everything that a watch yields is compared with a complete record of all changes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use super::World;
use crate::model::{Event, KeyRange, Op, Revision, SplitMix64};
use crate::watch::{Filter, WatchBatch, WatchError, WatchLimits, WatchRequest, Watcher};

const SEEDS: u64 = 400;
const STEPS: u64 = 160;

#[test]
fn random_worlds_yield_the_expected_events() {
    let seeds = match std::env::var("BOWLINE_WATCH_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 1..=SEEDS,
    };
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        let run = catch_unwind(AssertUnwindSafe(|| Play::new(seed).run(&mut tally)));
        assert!(
            run.is_ok(),
            "seed {seed} failed; BOWLINE_WATCH_SEED={seed} cargo test --workspace --lib watch::tests::random"
        );
    }
    // A run without events would prove nothing.
    if seeds.end() - seeds.start() + 1 == SEEDS {
        let Tally { events, progress, compacted, resumed, behind, meanwhile, installed } = tally;
        assert!(
            events > 50_000
                && [progress, compacted, resumed, behind, meanwhile, installed]
                    .iter()
                    .all(|met| *met > 500),
            "{tally:?}"
        );
    }
}

/// Counts of the events in the runs.
#[derive(Default, Clone, Copy, Debug)]
struct Tally {
    events: u64,
    progress: u64,
    compacted: u64,
    resumed: u64,
    behind: u64,
    meanwhile: u64,
    installed: u64,
}

#[derive(Clone)]
struct Dice(SplitMix64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn key(&mut self) -> String {
        const KEYS: [&str; 9] = ["a", "a/", "a/1", "a/1/x", "a/2", "b", "b/1", "c", "c/9"];
        KEYS[self.below(KEYS.len() as u64) as usize].into()
    }

    fn range(&mut self) -> KeyRange {
        match self.below(6) {
            0 => KeyRange::all(),
            1 => KeyRange::starting_at(self.key()),
            2 => KeyRange::between(self.key(), self.key()),
            3 => KeyRange::prefix(self.key()),
            _ => KeyRange::key(self.key()),
        }
    }

    /// Returns a transaction that writes no key twice.
    fn ops(&mut self) -> Vec<Op> {
        if self.once_in(5) {
            return vec![Op::delete(self.range())];
        }
        let mut keys: Vec<String> = (0..=self.below(4)).map(|_| self.key()).collect();
        keys.sort();
        keys.dedup();
        // Rotate the keys, so that they are not always written in key order.
        let turn = self.below(keys.len() as u64) as usize;
        keys.rotate_left(turn);
        keys.into_iter()
            .map(|key| {
                if self.once_in(4) {
                    Op::delete(key)
                } else {
                    let value = vec![b'v'; self.below(60) as usize];
                    Op::put(key, value)
                }
            })
            .collect()
    }
}

/// A watcher with the items that it must yield.
struct Watched {
    watcher: Watcher,
    request: WatchRequest,
    start: Revision,
    /// Everything up to this revision was received.
    through: Revision,
    progress: Option<Revision>,
}

struct Play {
    world: World,
    dice: Dice,
    watched: Vec<Watched>,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(SplitMix64::new(seed));
        let limits = WatchLimits {
            queue_revisions_max: 1 + dice.below(5) as usize,
            queue_bytes_max: dice.below(3_000) as usize,
            page_bytes_max: dice.below(400) as usize,
        };
        Self { world: World::new(limits), dice, watched: Vec::new() }
    }

    fn run(mut self, tally: &mut Tally) {
        self.act_while_history_is_read();
        for _ in 0..STEPS {
            match self.dice.below(10) {
                0..=2 => self.changes(tally),
                3 if self.watched.len() < 12 => self.watch(None),
                3 | 4 => self.request_progress(),
                5 if self.dice.once_in(6) => self.compact(),
                5 if self.dice.once_in(4) => self.install(tally),
                6 if self.dice.once_in(3) => self.resume(tally),
                _ => self.look(tally),
            }
        }
        *self.world.meanwhile.lock().unwrap() = None;
        self.world.store().publish(&self.world.hub);
        self.close(tally);
    }

    /// In some runs, new changes are made during every read of history.
    fn act_while_history_is_read(&mut self) {
        if self.dice.once_in(2) {
            return;
        }
        let (store, hub) = (Arc::clone(&self.world.store), Arc::downgrade(&self.world.hub));
        let mut dice = Dice(SplitMix64::new(self.dice.below(u64::MAX)));
        let act = move || {
            if dice.once_in(4) {
                let mut store = store.lock().unwrap();
                for _ in 0..=dice.below(2) {
                    store.apply(dice.ops());
                }
                if !dice.once_in(3) {
                    store.publish(&hub.upgrade().unwrap());
                }
            }
        };
        *self.world.meanwhile.lock().unwrap() = Some(Box::new(act));
    }

    fn changes(&mut self, tally: &mut Tally) {
        for _ in 0..=self.dice.below(4) {
            let ops = self.dice.ops();
            self.world.store().apply(ops);
            if self.dice.once_in(4) {
                // The machine has applied the changes, but the hub has not published them.
                self.look(tally);
            }
        }
        self.world.store().publish(&self.world.hub);
    }

    fn watch(&mut self, resumed: Option<WatchRequest>) {
        let newest = self.world.store().newest();
        let dice = &mut self.dice;
        let request = resumed.unwrap_or_else(|| WatchRequest {
            range: dice.range(),
            from: (!dice.once_in(3)).then(|| Revision(dice.below(newest.0 + 8))),
            prev_kv: dice.once_in(2),
            filter: [Filter::All, Filter::NoPut, Filter::NoDelete][dice.below(3) as usize],
        });
        let watcher = self.world.hub.watch(request.clone());
        assert_eq!(watcher.created_at(), newest);
        let start = request.from.unwrap_or(newest.next());
        let through = Revision(start.0.saturating_sub(1)).min(newest);
        self.watched.push(Watched { watcher, request, start, through, progress: None });
    }

    fn pick(&mut self) -> Option<usize> {
        let count = self.watched.len() as u64;
        (count > 0).then(|| self.dice.below(count) as usize)
    }

    fn request_progress(&mut self) {
        let Some(at) = self.pick() else { return };
        let visible = self.world.store().visible();
        let watched = &mut self.watched[at];
        watched.watcher.request_progress();
        watched.progress = Some(visible);
    }

    fn compact(&mut self) {
        let mut store = self.world.store();
        let (low, high) = (store.compacted.0 + 1, store.newest().0);
        if low < high {
            let at = low + self.dice.below(high - low + 1);
            store.compact(Revision(at));
        }
    }

    /// Installs a later state.
    fn install(&mut self, tally: &mut Tally) {
        let dice = &mut self.dice;
        self.world.store().install(|store| {
            for _ in 0..dice.below(5) {
                store.apply(dice.ops());
            }
            let (low, high) = (store.compacted.0 + 1, store.newest().0);
            if dice.once_in(3) && low < high {
                store.compact(Revision(low + dice.below(high - low + 1)));
            }
        });
        if self.dice.once_in(2) {
            // The machine has applied the changes, but the hub has not published them.
            self.look(tally);
        }
        self.world.store().installed(&self.world.hub);
        tally.installed += 1;
    }

    /// Drops a watch and continues it with another one.
    fn resume(&mut self, tally: &mut Tally) {
        let Some(at) = self.pick() else { return };
        let watched = self.watched.swap_remove(at);
        watched.check_resume(&self.world, watched.watcher.resume());
        let from = Some(watched.watcher.resume());
        let request = watched.request.clone();
        drop(watched);
        self.watch(Some(WatchRequest { from, ..request }));
        tally.resumed += 1;
    }

    /// Lets one consumer receive, once or until nothing is left.
    fn look(&mut self, tally: &mut Tally) {
        let Some(at) = self.pick() else { return };
        let often = if self.dice.once_in(2) { usize::MAX } else { 1 };
        for _ in 0..often {
            let before = self.world.store().newest();
            let found = self.watched[at].watcher.try_recv();
            tally.meanwhile += u64::from(self.world.store().newest() > before);
            match found {
                Poll::Pending => return self.watched[at].owes_nothing(&self.world),
                Poll::Ready(Some(Ok(batch))) => self.watched[at].check(&self.world, &batch, tally),
                Poll::Ready(Some(Err(error))) => {
                    let mut watched = self.watched.swap_remove(at);
                    watched.check_compacted(&self.world, &error);
                    assert_eq!(watched.watcher.try_recv(), Poll::Ready(None));
                    tally.compacted += 1;
                    return;
                }
                Poll::Ready(None) => panic!("ended without an error"),
            }
        }
    }

    fn close(mut self, tally: &mut Tally) {
        let live = self.world.hub.live() as u64;
        tally.behind += self.watched.len() as u64 - live;
        // Some watchers empty their queues before the hub is closed, some after.
        for at in (0..self.watched.len()).rev() {
            if self.dice.once_in(2) {
                let watched = &mut self.watched[at];
                while let Poll::Ready(Some(Ok(batch))) = watched.watcher.try_recv() {
                    watched.check(&self.world, &batch, tally);
                }
            }
        }
        self.world.hub.close("a test");
        for mut watched in self.watched {
            let error = loop {
                match watched.watcher.try_recv() {
                    Poll::Ready(Some(Ok(batch))) => watched.check(&self.world, &batch, tally),
                    Poll::Ready(Some(Err(error))) => break Some(error),
                    // The revision was compacted above.
                    Poll::Ready(None) => break None,
                    Poll::Pending => panic!("a closed watch has something to say"),
                }
            };
            if let Some(error) = error {
                let WatchError::Closed { resume, .. } = error else { panic!("{error}") };
                watched.check_resume(&self.world, resume);
            }
            assert_eq!(watched.watcher.try_recv(), Poll::Ready(None));
        }
        assert_eq!(self.world.hub.live(), 0);
        assert_eq!(Arc::strong_count(&self.world.hub), 1, "a watcher was left behind");
    }
}

impl Watched {
    /// Returns what the watch must yield for the revisions after `through`, up to `last`.
    fn truth(&self, world: &World, last: Revision) -> Vec<Event> {
        let from = self.start.max(self.through.next());
        let store = world.store();
        let changes = store.log.iter();
        let changes =
            changes.filter(|change| from <= change.revision() && change.revision() <= last);
        let events = changes.flat_map(|change| change.events().iter().cloned());
        events
            .filter(|event| {
                self.request.range.contains(&event.kv.key) && self.request.filter.passes(event.kind)
            })
            .map(|mut event| {
                event.prev = event.prev.filter(|_| self.request.prev_kv);
                event
            })
            .collect()
    }

    /// Checks that a batch is ordered, without duplicates or gaps, has complete revisions, and
    /// nothing above its own revision.
    fn check(&mut self, world: &World, batch: &WatchBatch, tally: &mut Tally) {
        assert!(batch.revision >= self.through, "{batch:?} after {:?}", self.through);
        assert!(batch.revision <= world.store().newest(), "not visible yet: {batch:?}");
        let mut truth = self.truth(world, batch.revision);
        let compacted = world.store().compacted;
        for (truth, found) in truth.iter_mut().zip(&batch.events) {
            // The previous row may be missing, because it was compacted together with the earlier
            // revisions.
            if truth.revision() <= compacted && found.prev.is_none() {
                truth.prev = None;
            }
        }
        assert_eq!(batch.events, truth, "of {:?} from {:?}", self.request, self.through);
        if batch.events.is_empty() {
            let asked = self.progress.take().expect("an empty batch was asked for");
            assert!(batch.revision >= asked, "{asked} was visible: {batch:?}");
            tally.progress += 1;
        }
        self.through = batch.revision;
        tally.events += batch.events.len() as u64;
    }

    /// Checks that an idle watch has yielded everything.
    fn owes_nothing(&mut self, world: &World) {
        let visible = world.store().visible();
        assert_eq!(self.truth(world, visible), [], "owed to {:?}", self.request);
        assert_eq!(self.progress, None, "progress is owed to {:?}", self.request);
        self.through = self.through.max(visible);
    }

    fn check_compacted(&self, world: &World, error: &WatchError) {
        let store = world.store();
        let WatchError::Compacted { asked, compacted } = *error else { panic!("{error}") };
        assert!(asked < compacted && compacted <= store.compacted, "{error}");
        drop(store);
        self.check_resume(world, asked);
    }

    /// Checks that the watch may continue at `resume`: nothing before it is missing, and nothing
    /// from it on was received.
    fn check_resume(&self, world: &World, resume: Revision) {
        // A watch that has read a page without events returns no batch, but may continue at a later
        // revision.
        let due = self.start.max(self.through.next());
        assert!(due <= resume, "{resume}, and {due} was due");
        assert!(resume <= self.start.max(world.store().newest().next()), "{resume}");
        assert_eq!(self.truth(world, Revision(resume.0.saturating_sub(1))), [], "{resume}");
    }
}
