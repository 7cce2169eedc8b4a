//! The faults: which, when and to whom is drawn from a seed; how each is done, and what must come of
//! it, stands here. One at a time, each healed before the next, so that a majority lives always (but
//! for a demo of one process, which comes back).

use std::time::Duration;

use super::crew::Seat;
use super::stage::{Stage, Trouble};
use super::timeline::{Event, ms};
use super::wire::{Instant, Order, Point};

/// What can be done to a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    /// `kill -9` whoever leads.
    KillLeader,
    /// `kill -9` a process while one of its workers holds the lock.
    KillHolder,
    /// Stop a process while one of its workers holds the lock, until another has it; then let it go on
    /// as if nothing had happened.
    StopHolder,
}

/// One fault with all that is drawn for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    pub(crate) fault: Fault,
    /// How long nothing happens before.
    pub(crate) calm: Duration,
    /// How long what was killed stays dead, or what was stopped stays so after it was overtaken.
    away: Duration,
    /// Whom it meets, where there is a choice.
    seat: Seat,
    /// Where a holder is killed.
    point: Point,
}

/// The faults of a seed, one after another.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    random: SplitMix,
    nodes: u8,
    /// The next faults, the last first.
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

    /// Whether there is to be one more: every kind of fault once, however short the time; then as many
    /// as there is time for.
    pub(crate) fn goes_on(&self, worked: Duration, time: Duration) -> bool {
        !self.all_drawn || worked + Self::ROUND_USUAL < time
    }

    /// What a round usually takes.
    const ROUND_USUAL: Duration = Duration::from_secs(2);

    /// The next.
    pub(crate) fn draw(&mut self) -> Round {
        let fault = self.bag.pop().expect("it is filled when it has become empty");
        if self.bag.is_empty() {
            self.all_drawn = true;
            // From now on kills prevail: they are what takes little time.
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

    /// Each of these once, in any order.
    fn fill(&mut self, faults: &[Fault]) {
        let mut faults = faults.to_vec();
        // Where there is nobody else to take the lock, no holder can be late.
        faults.retain(|fault| self.nodes > 1 || *fault != Fault::StopHolder);
        while !faults.is_empty() {
            let place = self.random.below(faults.len() as u64);
            self.bag.push(faults.swap_remove(usize::try_from(place).unwrap_or(0)));
        }
    }
}

/// Does it, and waits until it is healed and the work goes on.
pub(crate) async fn carry_out(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    match round.fault {
        Fault::KillLeader => kill_leader(round, stage).await,
        Fault::KillHolder => kill_holder(round, stage).await,
        Fault::StopHolder => stop_holder(round, stage).await,
    }
}

async fn kill_leader(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    stage.until("a leader", |stage| stage.leader().is_some()).await?;
    let leader = stage.leader().expect("it was waited for");
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
    stage.crew.kill(seat).await.map_err(Trouble::environment("a process cannot be killed"))?;
    stage.tell(Some(seat), event)
}

/// Starts what was killed, after a while, and waits for the first increment since the kill.
async fn bring_back(round: Round, stage: &mut Stage, seat: Seat) -> Result<Duration, Trouble> {
    stage.pass(round.away).await?;
    stage.start(seat).await?;
    stage.recovery().await
}

async fn stop_holder(round: Round, stage: &mut Stage) -> Result<(), Trouble> {
    let cannot = || Trouble::environment("a process cannot be stopped and resumed");
    let holder = stage.linger(round.seat, Point::BeforeLedger).await?;
    let stopped = Instant::now();
    stage.crew.pause(holder.seat).map_err(cannot())?;
    let event = Event::HolderStopped { op: holder.op.to_string(), token: holder.token };
    stage.tell(Some(holder.seat), &event)?;

    let overtaken = |stage: &Stage| stage.ledger.highest() > Some(holder.token);
    stage.until("another holder while one is stopped", overtaken).await?;
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

/// The generator of Steele, Lea and Flood: small, and the same everywhere for ever.
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

    /// A number below `bound`. The tiny preference for small numbers does not matter here.
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
    fn a_seed_gives_one_schedule() {
        assert_eq!(drawn(7, 3, 20), drawn(7, 3, 20));
        assert_ne!(drawn(7, 3, 20), drawn(8, 3, 20));
    }

    #[test]
    fn every_kind_of_fault_comes_among_the_first_three() {
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
    fn a_single_process_is_never_stopped_beyond_its_lease() {
        let rounds = drawn(3, 1, 40);
        assert!(rounds.iter().all(|round| round.fault != Fault::StopHolder));
        assert!(rounds.iter().all(|round| round.seat == Seat(0)));
    }
}
