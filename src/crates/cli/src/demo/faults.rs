//! Fault injection. The kind, time and target of each fault are derived from a seed. Each fault is healed before the
//! next is injected, so a majority of the processes is always alive. A demo with a single process is the exception.

use std::time::Duration;

use super::crew::Seat;
use super::stage::{Stage, Trouble};
use super::timeline::{Event, ms};
use super::wire::{Instant, Order, Point};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    /// Kill the leader with SIGKILL.
    KillLeader,
    /// Kill a process with SIGKILL while one of its workers holds the lock.
    KillHolder,
    /// Suspend a process while one of its workers holds the lock, until another worker has it; then resume the process.
    StopHolder,
}

/// A fault with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    pub(crate) fault: Fault,
    /// Time without faults before this one.
    pub(crate) calm: Duration,
    /// Time for which a killed process stays down, or a suspended one stays suspended after another worker has the
    /// lock.
    away: Duration,
    /// Target, if the fault allows a choice.
    seat: Seat,
    /// The step at which a holder is killed.
    point: Point,
}

/// The sequence of faults for a seed.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    random: SplitMix,
    nodes: u8,
    /// The next faults, in reverse order.
    bag: Vec<Fault>,
    /// Whether every kind of fault has been drawn.
    all_drawn: bool,
}

impl Schedule {
    pub(crate) fn new(seed: u64, nodes: u8) -> Self {
        let mut schedule =
            Self { random: SplitMix(seed), nodes, bag: Vec::new(), all_drawn: false };
        schedule.fill(&[Fault::KillLeader, Fault::KillHolder, Fault::StopHolder]);
        schedule
    }

    /// Returns whether to inject another fault: every kind once, however short the time, then as many as time permits.
    pub(crate) fn goes_on(&self, worked: Duration, time: Duration) -> bool {
        !self.all_drawn || worked + Self::ROUND_USUAL < time
    }

    /// Typical duration of a round.
    const ROUND_USUAL: Duration = Duration::from_secs(2);

    /// Draws the next fault.
    pub(crate) fn draw(&mut self) -> Round {
        let fault = self.bag.pop().expect("the bag is refilled when empty");
        if self.bag.is_empty() {
            self.all_drawn = true;
            // After every kind of fault was injected once, most faults are kills, because a kill takes little time.
            self.fill(&[
                Fault::KillLeader,
                Fault::KillHolder,
                Fault::KillLeader,
                Fault::KillHolder,
                Fault::StopHolder,
            ]);
        }
        Round {
            fault,
            calm: self.random.millis(300, 900),
            away: self.random.millis(200, 900),
            seat: Seat(usize::try_from(self.random.below(u64::from(self.nodes))).unwrap_or(0)),
            point: if self.random.below(2) == 0 { Point::BeforeLedger } else { Point::BeforeStore },
        }
    }

    /// Refills the bag with these faults in random order.
    fn fill(&mut self, faults: &[Fault]) {
        let mut faults = faults.to_vec();
        // With a single process, no other worker could take the lock of a suspended holder.
        faults.retain(|fault| self.nodes > 1 || *fault != Fault::StopHolder);
        while !faults.is_empty() {
            let place = self.random.below(faults.len() as u64);
            self.bag.push(faults.swap_remove(usize::try_from(place).unwrap_or(0)));
        }
    }
}

/// Injects the fault, and waits until it is healed and work continues.
pub(crate) async fn carry_out(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    match round.fault {
        Fault::KillLeader => kill_leader(round, stage).await,
        Fault::KillHolder => kill_holder(round, stage).await,
        Fault::StopHolder => stop_holder(round, stage).await,
    }
}

async fn kill_leader(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    stage.until("a leader", |stage| stage.leader().is_some()).await?;
    let leader = stage.leader().expect("the leader was waited for");
    kill(stage, leader.seat, &Event::LeaderKilled { term: leader.term }).await?;
    let recovered_after = bring_back(round, stage, leader.seat).await?;
    stage.count_leader_kill(recovered_after);
    Ok(())
}

async fn kill_holder(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    let holder = stage.linger(round.seat, round.point).await?;
    let (op, point) = (holder.op.to_string(), round.point);
    let event = Event::HolderKilled { op, token: holder.token, point };
    kill(stage, holder.seat, &event).await?;
    bring_back(round, stage, holder.seat).await?;
    stage.count_holder_kill();
    Ok(())
}

async fn kill(stage: &mut Stage, seat: Seat, event: &Event) -> Result<(), Trouble> {
    stage.expect_recovery();
    stage.crew.kill(seat).await.map_err(Trouble::environment("cannot kill a process"))?;
    stage.tell(Some(seat), event)
}

/// Restarts a killed process after a while, and waits for the first increment since the kill.
async fn bring_back(round: Round, stage: &mut Stage, seat: Seat) -> Result<Duration, Trouble> {
    stage.pass(round.away).await?;
    stage.start(seat).await?;
    stage.recovery().await
}

async fn stop_holder(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    let cannot = || Trouble::environment("cannot pause and resume a process");
    let holder = stage.linger(round.seat, Point::BeforeLedger).await?;
    let stopped = Instant::now();
    stage.crew.pause(holder.seat).map_err(cannot())?;
    let event = Event::HolderStopped { op: holder.op.to_string(), token: holder.token };
    stage.tell(Some(holder.seat), &event)?;

    let overtaken = |stage: &Stage| stage.ledger.highest() > Some(holder.token);
    stage.until("another holder while one is paused", overtaken).await?;
    if let Some(token) = stage.ledger.highest() {
        stage.tell(None, &Event::Overtaken { token })?;
    }
    stage.pass(round.away).await?;

    stage.count_late(holder.op.clone());
    let after_ms = ms(Instant::now().since(stopped));
    stage.tell(Some(holder.seat), &Event::Resumed { after_ms })?;
    stage.crew.resume(holder.seat).map_err(cannot())?;
    stage.crew.tell(holder.seat, &Order::GoOn).await;
    stage.end_of(&holder.op).await
}

/// The SplitMix generator by Steele, Lea and Flood: small, with the same sequence on every platform.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`. The tiny bias toward small numbers does not matter here.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, nodes: u8, many: usize) -> Vec<Round> {
        let mut schedule = Schedule::new(seed, nodes);
        (0..many).map(|_| schedule.draw()).collect()
    }

    #[test]
    fn seed_determines_the_fault_schedule() {
        assert_eq!(drawn(7, 3, 20), drawn(7, 3, 20));
        assert_ne!(drawn(7, 3, 20), drawn(8, 3, 20));
    }

    #[test]
    fn first_three_faults_cover_every_kind() {
        for seed in 0..50 {
            let mut kinds: Vec<_> = drawn(seed, 3, 3).iter().map(|round| round.fault).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [Fault::KillLeader, Fault::KillHolder, Fault::StopHolder]);
            let mut schedule = Schedule::new(seed, 3);
            for _ in 0..3 {
                assert!(schedule.goes_on(Duration::MAX / 2, Duration::ZERO));
                schedule.draw();
            }
            assert!(!schedule.goes_on(Duration::from_secs(9), Duration::from_secs(10)));
        }
    }

    #[test]
    fn single_process_is_never_paused_beyond_its_lease() {
        let rounds = drawn(3, 1, 40);
        assert!(rounds.iter().all(|round| round.fault != Fault::StopHolder));
        assert!(rounds.iter().all(|round| round.seat == Seat(0)));
    }
}
