//! Tests power cuts on real file systems. Each process has its data on its own small file system. During writes, one,
//! two or all processes lose power at once. Acknowledged writes must be stored exactly once, and all members must
//! restart without manual intervention.
//!
//! The tests need Linux, root, loop devices, `mkfs.ext4` or `mkfs.xfs`, and perl. If one of these is missing, the test
//! prints `NOT POSSIBLE HERE` with the reason and passes without checking anything. With `BOWLINE_POWER_REQUIRED=1` the
//! test fails instead. `BOWLINE_POWER_CUTS` is the number of cuts of three members (default 8). Single nodes and
//! founding members get a quarter of that number each. `BOWLINE_POWER_SEED` is the seed of the random times, and
//! `BOWLINE_POWER_XFS=1` uses XFS instead of ext4. `docs/operating/disks.md` describes the long run.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use bowline_jepsen::fleet::Setup;
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::{Cluster, Dice, HarnessError, Medium, Switch, Verdict, Volumes, number_in};

use crate::NODE;

/// Size of the file system of a member.
const VOLUME_BYTES: u64 = 320 << 20;

/// Maximum time between the first and the last power loss of one cut. Otherwise it counts as several cuts.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Number of cuts after which another cluster is used, because checking takes longer as the history grows.
const CUTS_OF_A_CLUSTER: u64 = 20;

/// Returns the media of the members, one of each kind.
fn media() -> [Medium; 3] {
    match number_in("BOWLINE_POWER_XFS") {
        None | Some(0) => [Medium::Plain, Medium::Loose, Medium::Cached],
        Some(_) => [Medium::Xfs; 3],
    }
}

/// Time within which a cluster of three is usually founded.
const FOUNDED_WITHIN_MS: u64 = 300;

/// Prints a line that must be visible even if the test passes.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

fn cuts() -> u64 {
    number_in("BOWLINE_POWER_CUTS").unwrap_or(8)
}

fn dice(cuts: u64) -> Dice {
    let seed = number_in("BOWLINE_POWER_SEED").unwrap_or(1);
    say(&format!("BOWLINE_POWER_SEED={seed} draws the moments of {cuts} power cuts"));
    Dice::new(seed)
}

/// Returns whether the power can be cut on this machine. If not, prints the reason.
fn is_possible() -> bool {
    let Err(why) = Volumes::possible() else { return true };
    let required = number_in("BOWLINE_POWER_REQUIRED").is_some_and(|number| number != 0);
    assert!(!required, "power cuts are not possible here: {why}");
    say(&format!("NOT POSSIBLE HERE, 0 power cuts made: {why}"));
    false
}

/// Counts over all clusters.
#[derive(Default)]
struct Counts {
    /// Number of cuts, by the number of members that lost power at once.
    cuts: BTreeMap<usize, u64>,
    /// Number of nodes that noticed before their processes ended.
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

/// Returns a cluster whose members have their data on separate volumes with these media.
fn cluster_on(media: &[Medium], members: usize) -> Result<Cluster, HarnessError> {
    let volumes = Some((media.to_vec(), VOLUME_BYTES));
    Cluster::of(NODE, Setup { volumes, ..Cluster::usual(members) })
}

/// Returns a switch for the power of these members.
fn switch(cluster: &Cluster, members: &[usize]) -> Result<Switch, HarnessError> {
    cluster.volumes().expect("they were asked for").switch(members)
}

/// Ends these members and restores their power. Returns the number of nodes that had noticed before their end.
fn again(cluster: &Cluster, members: &[usize]) -> Result<usize, HarnessError> {
    let ends = members.iter().map(|member| cluster.bury_however(*member));
    let noticed = ends.collect::<Result<Vec<_>, _>>()?.iter().flatten().count();
    cluster.volumes().expect("they were asked for").again(members)?;
    Ok(noticed)
}

/// Cuts the power of these members during writes, and restarts them.
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
        // The other members continue, next to a machine that is still connected but has no disk.
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

/// Makes this number of cuts on clusters with these media. `victims` selects the members in each round.
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
        // In turn: the leader, one member, two of them, all.
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
        // The time is random, because the progress of the founding cannot be observed.
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
