//! Power cuts on real file systems: each process has its data on a small file system of its own, and
//! while writes run one, two or all of these lose their power at once. What was acknowledged
//! is there once, and everybody comes back without a human.
//!
//! Needs root, loop devices and perl. Where they are missing the test says so, and why, and has shown
//! nothing; with `BOWLINE_POWER_REQUIRED=1` that is a failure. `BOWLINE_POWER_CUTS` is how many cuts there
//! are of three members (default 8; of single nodes and of founding members a quarter of it each),
//! `BOWLINE_POWER_SEED` draws other moments, `BOWLINE_POWER_XFS=1` takes XFS instead of ext4. `docs/operating/disks.md` has the long run.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use bowline_jepsen::fleet::Setup;
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::{Cluster, Dice, HarnessError, Medium, Switch, Verdict, Volumes, number_in};

use crate::NODE;

/// A member's file system.
const VOLUME_BYTES: u64 = 320 << 20;

/// All that lose their power at once do so within this, or the cut counts as several.
const AT_ONCE: Duration = Duration::from_millis(50);

/// After so many cuts it is another cluster's turn: with the history grows what there is to judge.
const CUTS_OF_A_CLUSTER: u64 = 20;

/// What members stand on: one each way.
fn media() -> [Medium; 3] {
    match number_in("BOWLINE_POWER_XFS") {
        None | Some(0) => [Medium::Plain, Medium::Loose, Medium::Cached],
        Some(_) => [Medium::Xfs; 3],
    }
}

/// After so long a cluster of three has usually been founded.
const FOUNDED_WITHIN_MS: u64 = 300;

/// Says something that must be seen, also when the test passes.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// How many cuts there are to be.
fn cuts() -> u64 {
    number_in("BOWLINE_POWER_CUTS").unwrap_or(8)
}

fn dice(cuts: u64) -> Dice {
    let seed = number_in("BOWLINE_POWER_SEED").unwrap_or(1);
    say(&format!("BOWLINE_POWER_SEED={seed} draws the moments of {cuts} power cuts"));
    Dice::new(seed)
}

/// Whether there is a way to cut the power here. If not, says why not.
fn is_possible() -> bool {
    let Err(why) = Volumes::possible() else { return true };
    let required = number_in("BOWLINE_POWER_REQUIRED").is_some_and(|number| number != 0);
    assert!(!required, "power cuts are not possible here: {why}");
    say(&format!("NOT POSSIBLE HERE, 0 power cuts made: {why}"));
    false
}

/// What was done, over all clusters.
#[derive(Default)]
struct Counts {
    /// Cuts, by how many members lost their power at once.
    cuts: BTreeMap<usize, u64>,
    /// Nodes that had noticed, before their process ended.
    noticed: usize,
    slowest: Duration,
    late: u64,
    clusters: u64,
    done: u64,
    unknown: u64,
}

impl Counts {
    fn cut(&mut self, switch: Switch, victims: &[usize]) -> Result<(), HarnessError> {
        let took = switch.cut()?;
        *self.cuts.entry(victims.len()).or_default() += 1;
        self.slowest = self.slowest.max(took);
        self.late += u64::from(took > AT_ONCE);
        Ok(())
    }

    fn concluded(&mut self, verdict: &Verdict) {
        self.clusters += 1;
        self.done += verdict.done;
        self.unknown += verdict.unknown_there + verdict.unknown_absent;
    }

    fn say(&self, of: &str) {
        let Self { cuts, noticed, slowest, late, clusters, done, unknown } = self;
        say(&format!(
            "power cuts of {of}, by how many members lost it at once: {cuts:?}, each within {slowest:?} \
             ({late} of them later than {AT_ONCE:?}); nodes that noticed before their end: {noticed}; \
             clusters: {clusters}; writes acknowledged: {done}, all there once; of unknown fate: \
             {unknown}, at most once"
        ));
    }
}

/// A cluster of so many members, each with its data on a volume of its own, on these media.
fn cluster_on(media: &[Medium], members: usize) -> Result<Cluster, HarnessError> {
    let volumes = Some((media.to_vec(), VOLUME_BYTES));
    Cluster::of(NODE, Setup { volumes, ..Cluster::usual(members) })
}

/// A switch for the power of these members.
fn switch(cluster: &Cluster, members: &[usize]) -> Result<Switch, HarnessError> {
    cluster.volumes().expect("they were asked for").switch(members)
}

/// Ends these members, and gives them their power again. Says how many nodes had noticed before their end.
fn again(cluster: &Cluster, members: &[usize]) -> Result<usize, HarnessError> {
    let ends = members.iter().map(|member| cluster.bury_however(*member));
    let noticed = ends.collect::<Result<Vec<_>, _>>()?.iter().flatten().count();
    cluster.volumes().expect("they were asked for").again(members)?;
    Ok(noticed)
}

/// Cuts the power of these members while they work, and lets them come back.
fn cut(
    cluster: &Cluster,
    victims: &[usize],
    counts: &mut Counts,
    dice: &mut Dice,
) -> Result<(), HarnessError> {
    let quorum_lives = victims.len() * 2 < cluster.members();
    let switch = switch(cluster, victims)?;
    cluster.load().more(1 + dice.below(60))?;
    counts.cut(switch, victims)?;
    if quorum_lives && dice.below(2) == 0 {
        // The others go on, beside a machine that is still connected and has no disk.
        cluster.load().more(1 + dice.below(40))?;
    }
    counts.noticed += again(cluster, victims)?;
    if quorum_lives {
        cluster.load().more(1 + dice.below(20))?;
    }
    for victim in victims {
        cluster.spawn(*victim)?;
    }
    victims.iter().try_for_each(|victim| cluster.join(*victim))?;
    cluster.load().more(3)?;
    Ok(())
}

/// Cuts so often, on clusters that stand on these media, whom `victims` names in each round.
fn cut_and_judge(
    of: &str,
    cuts: u64,
    media: &[Medium],
    victims: impl Fn(&Cluster, u64, &mut Dice) -> Result<Vec<usize>, HarnessError>,
) -> Result<(), HarnessError> {
    let (mut dice, mut counts) = (dice(cuts), Counts::default());
    let mut made = 0;
    while made < cuts {
        let cluster = cluster_on(media, media.len())?;
        cluster.start()?;
        cluster.load().more(10)?;
        for _ in 0..CUTS_OF_A_CLUSTER.min(cuts - made) {
            let victims = victims(&cluster, made, &mut dice)?;
            cut(&cluster, &victims, &mut counts, &mut dice)?;
            cluster.judge(victims[dice.one_of(victims.len())])?;
            made += 1;
        }
        counts.concluded(&cluster.conclude()?);
    }
    counts.say(of);
    Ok(())
}

#[test]
fn members_lose_nothing_in_a_power_cut_and_restart() -> Result<(), HarnessError> {
    if !is_possible() {
        return Ok(());
    }
    cut_and_judge("members of three", cuts(), &media(), |cluster, round, dice| {
        // The leader, somebody, two of them, all.
        let first = if round % 4 == 0 { cluster.await_leader(LIMIT)?.0 } else { dice.one_of(3) };
        let many = [1, 1, 2, 3][usize::try_from(round % 4).expect("it is small")];
        Ok((0..many).map(|i| (first + i) % 3).collect())
    })
}

#[test]
fn single_node_loses_nothing_in_a_power_cut_and_restarts() -> Result<(), HarnessError> {
    if !is_possible() {
        return Ok(());
    }
    for medium in media() {
        let of = format!("a single node on {medium:?}");
        cut_and_judge(&of, cuts().div_ceil(4), &[medium], |_, _, _| Ok(vec![0]))?;
    }
    Ok(())
}

#[test]
fn cluster_bootstrap_completes_after_a_power_cut() -> Result<(), HarnessError> {
    if !is_possible() {
        return Ok(());
    }
    let rounds = cuts().div_ceil(4);
    let (mut dice, mut counts) = (dice(rounds), Counts::default());
    for round in 0..rounds {
        let cluster = cluster_on(&media(), 3)?;
        let many = if round % 2 == 0 { 3 } else { 1 };
        let first = dice.one_of(3);
        let victims: Vec<usize> = (0..many).map(|i| (first + i) % 3).collect();
        let switch = switch(&cluster, &victims)?;
        for member in 0..3 {
            cluster.spawn(member)?;
        }
        // At a random moment: nothing says when a member is half way through.
        thread::sleep(Duration::from_millis(dice.below(FOUNDED_WITHIN_MS)));
        counts.cut(switch, &victims)?;
        counts.noticed += again(&cluster, &victims)?;
        for victim in &victims {
            cluster.spawn(*victim)?;
        }
        (0..3).try_for_each(|member| cluster.join(member))?;
        cluster.load().more(10)?;
        counts.concluded(&cluster.conclude()?);
    }
    counts.say("members that found a cluster");
    Ok(())
}

#[test]
fn member_with_a_dead_disk_stops_and_the_others_serve() -> Result<(), HarnessError> {
    if !is_possible() {
        return Ok(());
    }
    let cluster = cluster_on(&media(), 3)?;
    cluster.start()?;
    for victim in [cluster.await_leader(LIMIT)?.0, 0, 1, 2] {
        cluster.load().more(20)?;
        switch(&cluster, &[victim])?.cut()?;
        let why = cluster.process(victim).stopped()?;
        assert!(why.contains("disk error: cannot"), "m{victim}: {why}");
        cluster.load().more(20)?;
        again(&cluster, &[victim])?;
        cluster.restart(victim)?;
        cluster.judge(victim)?;
    }
    cluster.conclude()?;
    Ok(())
}
