//! Fault injection. The kind, time and target of each fault are derived from a seed. Each fault is healed before the
//! next is injected, so a majority of the processes is always alive. A demo with a single process is the exception.

use std::time::{Duration, Instant};

use bowline_fleet::Dice;
use rustix::process::Signal;
use serde_json::json;

use crate::account::Point;
use crate::stage::{DemoError, Stage};
use crate::timeline::ms;

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
    seat: usize,
    /// The step at which a holder is killed.
    point: Point,
}

/// The sequence of faults for a seed.
#[derive(Debug)]
pub(crate) struct Schedule {
    dice: Dice,
    nodes: usize,
    /// The next faults, in reverse order.
    bag: Vec<Fault>,
    /// Whether every kind of fault has been drawn.
    all_drawn: bool,
}

impl Schedule {
    /// Typical duration of a round.
    const ROUND_USUAL: Duration = Duration::from_secs(2);

    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        let mut schedule = Self { dice: Dice::new(seed), nodes, bag: Vec::new(), all_drawn: false };
        schedule.fill(&[Fault::KillLeader, Fault::KillHolder, Fault::StopHolder]);
        schedule
    }

    /// Returns whether to inject another fault: every kind once, however short the time, then as many as time permits.
    pub(crate) fn continues(&self, work_time: Duration, time: Duration) -> bool {
        !self.all_drawn || work_time + Self::ROUND_USUAL < time
    }

    /// Draws the next fault.
    pub(crate) fn draw(&mut self) -> Round {
        use Fault::{KillHolder, KillLeader, StopHolder};
        let fault = self.bag.pop().expect("the bag is refilled when empty");
        if self.bag.is_empty() {
            self.all_drawn = true;
            // After every kind of fault was injected once, most faults are kills, because a kill takes little time.
            self.fill(&[KillLeader, KillHolder, KillLeader, KillHolder, StopHolder]);
        }
        Round {
            fault,
            calm: Duration::from_millis(300 + self.dice.below(600)),
            away: Duration::from_millis(200 + self.dice.below(700)),
            seat: self.dice.one_of(self.nodes),
            point: [Point::BeforeLedger, Point::BeforeStore][self.dice.one_of(2)],
        }
    }

    /// Refills the bag with these faults in random order.
    fn fill(&mut self, faults: &[Fault]) {
        // With a single process, no other worker could take the lock of a suspended holder.
        let is_possible = |fault: &Fault| self.nodes > 1 || *fault != Fault::StopHolder;
        let mut faults: Vec<_> = faults.iter().copied().filter(is_possible).collect();
        while !faults.is_empty() {
            self.bag.push(faults.swap_remove(self.dice.one_of(faults.len())));
        }
    }
}

/// Injects the fault, and waits until it is healed and work continues.
pub(crate) fn carry_out(round: Round, stage: &mut Stage<'_>) -> Result<(), DemoError> {
    let Round { fault, away, seat, point, .. } = round;
    match fault {
        Fault::KillLeader => {
            let (leader, term) = stage.leader()?;
            let after = stage.kill(leader, "leader_killed", &json!({"term": term}), away)?;
            stage.shared.lock().recoveries.push(after);
        }
        Fault::KillHolder => {
            let (op, token) = stage.linger(seat, point)?;
            let point = match point {
                Point::BeforeLedger => "before the ledger",
                Point::BeforeStore => "between ledger and store",
            };
            let fields = json!({"op": op, "token": token, "point": point});
            stage.kill(seat, "holder_killed", &fields, away)?;
        }
        Fault::StopHolder => stop_holder(round, stage)?,
    }
    Ok(())
}

fn stop_holder(Round { away, seat, .. }: Round, stage: &mut Stage<'_>) -> Result<(), DemoError> {
    let (op, held) = stage.linger(seat, Point::BeforeLedger)?;
    let stopped = Instant::now();
    stage.signal(seat, Signal::STOP)?;
    stage.report(Some(seat), "holder_stopped", &json!({"op": op, "token": held}));
    let token = stage.until_some("another holder while one is paused", |stage| {
        stage.shared.ledger().highest().filter(|token| *token > held)
    })?;
    stage.report(None, "overtaken", &json!({"token": token}));
    stage.pass(away)?;
    stage.shared.lock().evidence.late.insert(op.clone());
    stage.report(Some(seat), "resumed", &json!({"after_ms": ms(stopped.elapsed())}));
    stage.signal(seat, Signal::CONT)?;
    stage.resume_worker();
    stage.until(&format!("the end of increment {op}"), |stage| stage.shared.lock().has_ended(&op))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, nodes: usize, many: usize) -> Vec<Round> {
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
                assert!(schedule.continues(Duration::MAX / 2, Duration::ZERO));
                schedule.draw();
            }
            assert!(!schedule.continues(Duration::from_secs(9), Duration::from_secs(10)));
        }
    }

    #[test]
    fn single_process_is_never_paused_beyond_its_lease() {
        let rounds = drawn(3, 1, 40);
        assert!(rounds.iter().all(|round| round.fault != Fault::StopHolder));
        assert!(rounds.iter().all(|round| round.seat == 0));
    }
}
