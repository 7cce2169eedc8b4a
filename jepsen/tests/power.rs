//! Power cuts on real file systems: each of three processes has its data on a small file system of its
//! own, and while writes run one, two or all of these lose their power at once. What was acknowledged
//! is there once, and everybody comes back without a human.
//!
//! Needs root, loop devices and perl. Where they are missing the test says so, and why, and has shown
//! nothing; with `BOWLINE_POWER_REQUIRED=1` that is a failure. `BOWLINE_POWER_CUTS` is how many cuts there
//! are (default 8), `BOWLINE_POWER_SEED` draws other moments. `docs/operating/disks.md` has the long run.

use std::io::Write;
use std::ops::Range;
use std::time::Duration;

use bowline_jepsen::{Cluster, Dice, Medium, Trouble, Verdict, Volumes, number_in};

const NODE: &str = env!("CARGO_BIN_EXE_jepsen-node");

/// A member's file system.
const VOLUME_BYTES: u64 = 256 << 20;

/// All that lose their power at once do so within this, or the cut counts as several.
const AT_ONCE: Duration = Duration::from_millis(50);

/// After so many cuts it is another cluster's turn: with the history grows what there is to judge.
const CUTS_OF_A_CLUSTER: u64 = 20;

/// One member each way.
const MEDIA: [Medium; 3] = [Medium::Plain, Medium::Loose, Medium::Cached];

/// Says something that must be seen, also when the test passes.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Whether there is a way to cut the power here. If not, says why not.
fn is_possible() -> bool {
    let Err(why) = Volumes::possible() else { return true };
    let required = number_in("BOWLINE_POWER_REQUIRED").is_some_and(|number| number != 0);
    assert!(!required, "power cuts are not possible here: {why}");
    say(&format!("NOT POSSIBLE HERE, 0 power cuts made: {why}"));
    false
}

#[derive(Default)]
struct Counts {
    /// Cuts, by how many members lost their power at once.
    cuts: [u64; 4],
    /// Nodes that had noticed, before their process ended.
    noticed: usize,
    slowest: Duration,
    late: u64,
}

/// Cuts the power of these members while they work, and lets them come back.
fn cut(
    volumes: &mut Volumes,
    cluster: &mut Cluster,
    victims: &[usize],
    counts: &mut Counts,
    dice: &mut Dice,
) -> Result<(), Trouble> {
    let switch = volumes.switch(victims)?;
    cluster.load().more(1 + dice.below(60))?;
    let took = switch.cut()?;
    if victims.len() == 1 && dice.below(2) == 0 {
        // The others go on, beside a machine that is still connected and has no disk.
        cluster.load().more(1 + dice.below(40))?;
    }
    counts.noticed += cluster.bury(victims)?;
    counts.cuts[victims.len()] += 1;
    counts.slowest = counts.slowest.max(took);
    counts.late += u64::from(took > AT_ONCE);
    if victims.len() == 1 {
        cluster.load().more(1 + dice.below(20))?;
    }
    volumes.again(victims)?;
    for victim in victims {
        cluster.spawn(*victim, None)?;
    }
    victims.iter().try_for_each(|victim| cluster.join(*victim))?;
    cluster.load().more(3)?;
    Ok(())
}

#[test]
fn members_whose_power_is_cut_lose_nothing_and_come_back() -> Result<(), Trouble> {
    if !is_possible() {
        return Ok(());
    }
    let seed = number_in("BOWLINE_POWER_SEED").unwrap_or(1);
    let cuts = number_in("BOWLINE_POWER_CUTS").unwrap_or(8);
    say(&format!("BOWLINE_POWER_SEED={seed} BOWLINE_POWER_CUTS={cuts} draws these moments"));
    let (mut dice, mut counts) = (Dice::new(seed), Counts::default());
    let mut verdicts = Vec::new();
    for first in (0..cuts).step_by(usize::try_from(CUTS_OF_A_CLUSTER).expect("it is small")) {
        let rounds = first..cuts.min(first + CUTS_OF_A_CLUSTER);
        verdicts.push(one_cluster(rounds, &mut counts, &mut dice)?);
    }
    let done: u64 = verdicts.iter().map(|verdict| verdict.done).sum();
    let unknown: u64 = verdicts.iter().map(|v| v.unknown_there + v.unknown_absent).sum();
    let [_, one, two, all] = counts.cuts;
    say(&format!(
        "power cuts of one: {one}, of two: {two}, of all: {all}, each at once within {:?} ({} of them \
         later than {AT_ONCE:?}); nodes that noticed before the end: {}; clusters: {}; writes \
         acknowledged: {done}, all there once; of unknown fate: {unknown}, at most once",
        counts.slowest,
        counts.late,
        counts.noticed,
        verdicts.len(),
    ));
    Ok(())
}

/// A cluster that lives through these rounds, and the verdict on it.
fn one_cluster(
    rounds: Range<u64>,
    counts: &mut Counts,
    dice: &mut Dice,
) -> Result<Verdict, Trouble> {
    let mut volumes = Volumes::make(&MEDIA, VOLUME_BYTES)?;
    let mut cluster = Cluster::on(NODE, (0..3).map(|m| volumes.dir(m).join("data")).collect())?;
    cluster.start()?;
    cluster.load().more(10)?;
    for round in rounds {
        let first = if round % 4 == 0 { cluster.leader()? } else { dice.one_of(3) };
        // The leader, somebody, two of them, all.
        let many = [1, 1, 2, 3][usize::try_from(round % 4).expect("it is small")];
        let victims: Vec<usize> = (0..many).map(|i| (first + i) % 3).collect();
        cut(&mut volumes, &mut cluster, &victims, counts, dice)?;
        cluster.judge(victims[dice.one_of(many)])?;
    }
    cluster.conclude()
}
