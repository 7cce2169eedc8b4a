//! Tests of power cuts, killed processes and failed syncs at any moment.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::model::any_based_group;
use super::*;
use crate::env::Point;

/// A workload over several incarnations of the log. Each incarnation ends in another way (crash,
/// power cut, failed sync), and the contents are checked at each start.
struct Lives {
    seed: u64,
    rng: Rng,
    disk: Arc<SimDisk>,
    /// The contents of the log after each group. Groups up to `acked` must never be lost.
    history: Vec<LogContent>,
    acked: usize,
    /// Entries up to here may be truncated.
    cut: LogIndex,
    incarnation: u64,
    seen: Seen,
}

/// Counts of the events that occurred.
#[derive(Default, Debug)]
struct Seen {
    cuts: u32,
    resets: u32,
    starts_without_front: u32,
    full: u32,
    waited: u32,
    healed: u32,
    points: BTreeMap<Point, u32>,
}

/// Crash points that stop the disk when a point is reached for the n-th time.
struct StopAt {
    disk: Arc<SimDisk>,
    left: AtomicU64,
    reached: Mutex<Option<Point>>,
}

impl Points for StopAt {
    fn reach(&self, point: Point) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.disk.stop_after(0);
            *self.reached.lock().unwrap() = Some(point);
        }
    }
}

impl Lives {
    fn new(seed: u64) -> Self {
        let rng = Rng::new(seed);
        let disk = Arc::new(SimDisk::new(rng.next_u64()));
        let (history, seen) = (vec![LogContent::default()], Seen::default());
        let cut = LogIndex(1);
        Self { seed, rng, disk, history, acked: 0, cut, incarnation: 0, seen }
    }

    fn live_and_die(&mut self) {
        let mut left = u64::MAX;
        match self.rng.below(3) {
            0 => self.disk.stop_after(self.rng.below(80)),
            1 => left = 1 + self.rng.below(60),
            _ => {}
        }
        let (disk, reached) = (Arc::clone(&self.disk), Mutex::new(None));
        let points = Arc::new(StopAt { disk, left: AtomicU64::new(left), reached });
        match open_with(&self.disk, Arc::clone(&points) as Arc<dyn Points>, 2048) {
            Ok(mut opened) => {
                self.check(&opened);
                let number = 1 + self.rng.below(30);
                drop(self.work(&mut opened, number));
            }
            Err(LogError::Io { .. }) => {}
            Err(LogError::NoRoom { .. }) => self.seen.full += 1,
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
        if let Some(point) = *points.reached.lock().unwrap() {
            *self.seen.points.entry(point).or_default() += 1;
        }
        if self.rng.below(3) == 0 {
            self.disk.kill();
        } else {
            self.disk.crash();
        }
        if self.rng.below(2) == 0 {
            self.disk.limit(None);
        }
    }

    fn check(&mut self, opened: &Opened) {
        let seed = self.seed;
        let found = LogContent::of(opened);
        let shown = (self.acked..self.history.len()).rev();
        let shown = shown.into_iter().find(|i| self.history[*i].is_shown_by(&found, self.cut));
        let shown = shown.unwrap_or_else(|| {
            panic!("seed {seed}: an acknowledged group is lost or a lost one is back")
        });
        self.history.truncate(shown + 1);
        self.acked = shown;
        assert!(opened.recovered.incarnation.get() > self.incarnation, "seed {seed}");
        self.incarnation = opened.recovered.incarnation.get();
        let there = segments(&self.disk);
        assert!(there.windows(2).all(|pair| pair[0] + 1 == pair[1]), "seed {seed}: {there:?}");
        self.seen.starts_without_front += u32::from(there[0] > 1);
    }

    /// Commits groups until a call fails.
    fn work(&mut self, opened: &mut Opened, numbers: u64) -> Result<(), LogError> {
        let mut waiting: Vec<Group> = Vec::new();
        for number in 1..=numbers {
            let mut groups = std::mem::take(&mut waiting);
            for group in &groups {
                self.history.push(self.history[self.history.len() - 1].after(group));
            }
            for _ in 0..1 + self.rng.below(3) {
                let content = self.history.last().unwrap();
                let group = if self.rng.below(15) == 0 {
                    any_based_group(&self.rng, number, content)
                } else {
                    any_group(&self.rng, number, content)
                };
                let kept = |base: Base| content.term(base.index.get()) == Some(base.term);
                self.seen.resets += u32::from(group.base.is_some_and(|base| !kept(base)));
                self.history.push(content.after(&group));
                groups.push(group);
            }
            self.meddle_with_the_disk();
            let committed = opened.writer.commit(&groups)?;
            waiting = groups.split_off(groups.len() - committed.waiting);
            // Waiting groups were not written and must not appear after a crash.
            self.history.truncate(self.history.len() - waiting.len());
            self.acked = self.history.len() - 1;
            let proven = committed.proof.map_or(0, |proof| proof.number());
            match waiting.first() {
                None => assert_eq!(proven, number),
                Some(waits) => {
                    assert!(proven < waits.number && proven <= number);
                    assert_eq!(opened.writer.space(), Space::Low);
                    self.seen.waited += 1;
                }
            }
            if self.rng.below(6) == 0 {
                let content = &self.history[self.acked];
                let behind = content.last() - content.base.index.get();
                let up_to = content.base.index.get() + self.rng.below(behind + 1);
                let up_to = LogIndex(up_to);
                let first = opened.reader.first();
                self.cut = self.cut.max(up_to.min(content.hard_state.commit));
                opened.writer.cut(up_to)?;
                self.seen.cuts += u32::from(opened.reader.first() > first);
            }
            if self.rng.below(4) == 0 {
                let low = opened.writer.space() == Space::Low;
                opened.writer.idle()?;
                self.seen.healed += u32::from(low && opened.writer.space() == Space::Plenty);
            }
            let content = &self.history[self.acked];
            assert_eq!(opened.reader.last().get(), content.last());
            assert!(opened.reader.first() <= self.cut.max(content.base.index).next());
        }
        Ok(())
    }

    fn meddle_with_the_disk(&mut self) {
        match self.rng.below(40) {
            0 => self.disk.fail_next_sync(),
            1..4 => self.disk.limit(Some(self.disk.used() + self.rng.below(3000) as usize)),
            4..6 => self.disk.limit(None),
            _ => {}
        }
    }
}

#[test]
fn acknowledged_groups_survive_crashes_and_replaced_ones_stay_replaced() {
    let mut all = Seen::default();
    for seed in 0..2000 {
        let mut lives = Lives::new(seed);
        for _life in 0..8 {
            lives.live_and_die();
        }
        let seen = lives.seen;
        all.cuts += seen.cuts;
        all.resets += seen.resets;
        all.starts_without_front += seen.starts_without_front;
        all.full += seen.full;
        all.waited += seen.waited;
        all.healed += seen.healed;
        for (point, times) in seen.points {
            *all.points.entry(point).or_default() += times;
        }
    }
    assert!(all.cuts > 2000 && all.resets > 2000 && all.starts_without_front > 2000, "{all:?}");
    assert!(all.waited > 200 && all.healed > 100, "{all:?}");
    let own = Point::ALL.iter().filter(|point| format!("{point:?}").starts_with("Log"));
    for point in own {
        assert!(all.points.get(point).is_some_and(|times| *times > 20), "{point:?}: {all:?}");
    }
}

#[test]
fn log_opens_after_a_crash_at_any_step() {
    for steps in 0.. {
        let mut finished = false;
        for seed in 0..6 {
            let disk = Arc::new(SimDisk::new(seed * 1000 + steps));
            disk.stop_after(steps);
            let mut acked = LogContent::default();
            let mut life = || -> Result<(), LogError> {
                let mut opened = try_open(&disk)?;
                for number in 2..12 {
                    let group = group(number, vec![entry(number, 1, &[number as u8; 150])]);
                    let _proof = opened.writer.commit(std::slice::from_ref(&group))?;
                    acked = acked.after(&group);
                    opened.writer.idle()?;
                }
                Ok(())
            };
            finished = life().is_ok();
            disk.crash();
            let opened = reopen(&disk);
            let content = LogContent::of(&opened);
            assert!(content.entries.starts_with(&acked.entries), "steps {steps} seed {seed}");
            assert!(content.entries.len() <= acked.entries.len() + 1);
        }
        if finished {
            assert!(steps > 60, "the life was too short to show anything: {steps}");
            break;
        }
    }
}

#[test]
fn recovered_data_of_a_failed_sync_is_made_durable() {
    let disk = Arc::new(SimDisk::new(1));
    let mut opened = reopen(&disk);
    disk.fail_next_sync();
    opened.writer.commit(&[group(1, vec![entry(2, 1, b"seen by readers only")])]).unwrap_err();
    disk.kill();
    assert_eq!(reopen(&disk).recovered.last, LogIndex(2));
    disk.crash();
    assert_eq!(reopen(&disk).recovered.last, LogIndex(2));
}

#[test]
fn torn_tail_is_truncated_and_reported_and_new_writes_stay() {
    let mut torn = 0;
    for seed in 0..60 {
        let disk = Arc::new(SimDisk::new(seed));
        let mut opened = reopen(&disk);
        let first = group(1, vec![entry(2, 1, b"kept")]);
        let _proof = opened.writer.commit(std::slice::from_ref(&first)).unwrap();
        disk.stop_after(1);
        opened.writer.commit(&[group(2, vec![entry(3, 1, &[1; 600])])]).unwrap_err();
        disk.crash();
        let mut opened = reopen(&disk);
        if opened.recovered.last == LogIndex(3) {
            continue;
        }
        assert_eq!(LogContent::of(&opened), LogContent::default().after(&first));
        if let Some(tail) = &opened.recovered.torn {
            assert!(tail.segment == path(1) && tail.offset > 72 && tail.bytes > 0, "{tail:?}");
            torn += 1;
        }
        let second = group(1, vec![entry(3, 2, b"other")]);
        let _proof = opened.writer.commit(std::slice::from_ref(&second)).unwrap();
        disk.crash();
        let opened = reopen(&disk);
        assert_eq!(opened.recovered.torn, None);
        assert_eq!(LogContent::of(&opened), LogContent::default().after(&first).after(&second));
    }
    assert!(torn > 5, "{torn} torn tails in 60 crashes");
}
