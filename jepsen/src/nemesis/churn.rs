//! A nemesis that changes the membership: a new member joins, is promoted to voter, is removed, and later joins again
//! as another new member.
//!
//! ```text
//!   Out ──start, join──▶ Joining ──it replies──▶ Learner ──promote──▶ Voter ──remove──▶ Leaving
//!    ▲                                                                                     │
//!    └──────────────────────── no longer a member: its data is removed ◀───────────────────┘
//! ```

use std::time::Duration;

use super::{Kind, Nemesis, Wants, anywhere};
use crate::calls::{Call, Reply};
use crate::dice::Dice;
use crate::fleet::{Fleet, ProcessState, Setup};
use crate::process::HarnessError;
use crate::wire::Order;

pub(super) const KIND: Kind = Kind {
    name: "churn",
    about: "two additional members repeatedly join, are promoted, are removed, and join again as new members",
    wants: Wants::QUORUM_STAYS,
    alone: false,
    possible: anywhere,
    make: || Box::new(Churn { stages: Vec::new(), steps: 0 }),
};

/// Number of additional members that join and are removed.
const SPARE: usize = 2;

/// Deadline of a call to a member.
const CALL_LIMIT: Duration = Duration::from_millis(800);

/// Maximum pause between two steps, in milliseconds.
const STEP_EVERY_MS: u64 = 300;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Out,
    Joining,
    Learner,
    Voter,
    Leaving,
}

/// The nemesis.
struct Churn {
    /// The stages of the additional members.
    stages: Vec<Stage>,
    /// Number of completed steps.
    steps: u64,
}

impl Churn {
    /// Runs the next step of this member.
    fn resume(&self, fleet: &Fleet, place: usize, stage: Stage) -> Result<Stage, HarnessError> {
        let name = format!("m{place}");
        Ok(match stage {
            Stage::Out => {
                fleet.spawn_joining(place)?;
                Stage::Joining
            }
            Stage::Joining => {
                if is_over(fleet, place) {
                    // The member was not admitted in time, so it is restarted and tries again. The first attempt may
                    // nevertheless have added it to the cluster.
                    fleet.bury_newcomer(place)?;
                }
                if fleet.being(place) == ProcessState::Down {
                    fleet.spawn_joining(place)?;
                }
                match fleet.ask(place, &Order::Look, CALL_LIMIT) {
                    Some(_) => Stage::Learner,
                    None => Stage::Joining,
                }
            }
            Stage::Learner => {
                ask_somebody(fleet, Call::Promote { member: name.clone() });
                match members(fleet) {
                    Some((voters, _)) if voters.contains(&name) => Stage::Voter,
                    _ => Stage::Learner,
                }
            }
            Stage::Voter | Stage::Leaving => {
                fleet.lets_go(place)?;
                ask_somebody(fleet, Call::Remove { member: name.clone() });
                match members(fleet) {
                    Some((voters, learners))
                        if !voters.contains(&name) && !learners.contains(&name) =>
                    {
                        fleet.clear(place)?;
                        Stage::Out
                    }
                    _ => Stage::Leaving,
                }
            }
        })
    }
}

/// Returns the index of an additional member, which are the last ones of the fleet.
fn place_of(fleet: &Fleet, spare: usize) -> usize {
    fleet.places() - SPARE + spare
}

fn is_over(fleet: &Fleet, place: usize) -> bool {
    fleet.process(place).is_some_and(|process| process.is_over())
}

/// Sends a call to a running founder that answers.
fn ask_somebody(fleet: &Fleet, call: Call) -> Option<Reply> {
    let leader = fleet.leader().map(|(leader, _)| leader);
    let mut founders: Vec<usize> =
        fleet.up().into_iter().filter(|member| *member < fleet.members()).collect();
    founders.sort_by_key(|member| Some(*member) != leader);
    fleet.call(*founders.first()?, call, CALL_LIMIT)
}

/// Returns the names of the voters and of the learners.
fn members(fleet: &Fleet) -> Option<(Vec<String>, Vec<String>)> {
    match ask_somebody(fleet, Call::Members)? {
        Reply::Members { voters, learners, .. } => Some((voters, learners)),
        _ => None,
    }
}

impl Nemesis for Churn {
    fn prepare(&self, setup: &mut Setup) {
        // Add to the number, because the workload may also need spare members.
        setup.spare += SPARE;
    }

    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, HarnessError> {
        self.stages.resize(SPARE, Stage::Out);
        Ok(format!("changes the members ({} steps so far)", self.steps))
    }

    fn step(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<Duration, HarnessError> {
        let spare = dice.one_of(SPARE);
        let (place, stage) = (place_of(fleet, spare), self.stages[spare]);
        self.stages[spare] = self.resume(fleet, place, stage)?;
        self.steps += u64::from(self.stages[spare] != stage);
        Ok(Duration::from_millis(1 + dice.below(STEP_EVERY_MS)))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), HarnessError> {
        for (spare, stage) in self.stages.iter().enumerate() {
            let place = place_of(fleet, spare);
            // A member that has not joined yet continues with its data after all faults have ended. A removed member
            // may not have noticed its removal yet, or has stopped.
            if *stage == Stage::Joining || is_over(fleet, place) {
                fleet.bury_newcomer(place)?;
            }
        }
        Ok(())
    }

    fn struck(&self) -> u64 {
        self.steps
    }
}
