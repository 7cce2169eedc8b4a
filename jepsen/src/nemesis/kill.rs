//! Processes are killed, as by `kill -9`, and started again: one, the leader every other time; or all at once.

use super::{Kind, Nemesis, Wants, anywhere, called, victim};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::Trouble;

pub(super) const KIND: Kind = Kind {
    name: "kill",
    about: "one member is killed, the leader every other time, and started again",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    possible: anywhere,
    make: || Box::new(Kill { all: false, leader_next: true, down: Vec::new() }),
};

pub(super) const ALL_AT_ONCE: Kind = Kind {
    name: "kill-all",
    about: "all members are killed at once, and started again",
    wants: Wants::ALL_STOP,
    possible: anywhere,
    make: || Box::new(Kill { all: true, leader_next: false, down: Vec::new() }),
};

struct Kill {
    all: bool,
    leader_next: bool,
    down: Vec<usize>,
}

impl Nemesis for Kill {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, Trouble> {
        let leader = fleet.leader().filter(|_| self.leader_next).map(|(leader, _)| leader);
        self.leader_next = !self.leader_next;
        self.down = if self.all {
            fleet.up()
        } else {
            leader.or_else(|| victim(fleet, dice)).into_iter().collect()
        };
        let whom: Vec<String> = self.down.iter().map(|member| called(fleet, *member)).collect();
        self.down.iter().try_for_each(|member| fleet.kill(*member))?;
        Ok(format!("kills {}", whom.join(", ")))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        self.down.iter().try_for_each(|member| fleet.spawn(*member))?;
        self.down.drain(..).try_for_each(|member| fleet.await_ready(member))
    }
}
