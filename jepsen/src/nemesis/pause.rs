//! A member stands still (SIGSTOP), the leader every other time, and goes on as if nothing had been.

use super::{Kind, Nemesis, Wants, anywhere, called, victim};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::Trouble;

pub(super) const KIND: Kind = Kind {
    name: "pause",
    about: "one member stands still, the leader every other time, and goes on",
    wants: Wants::QUORUM_STAYS.and_leader_change(),
    possible: anywhere,
    make: || Box::new(Pause { leader_next: true, paused: None }),
};

struct Pause {
    leader_next: bool,
    paused: Option<usize>,
}

impl Nemesis for Pause {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, Trouble> {
        let leader = fleet.leader().filter(|_| self.leader_next).map(|(leader, _)| leader);
        self.leader_next = !self.leader_next;
        self.paused = leader.or_else(|| victim(fleet, dice));
        let Some(member) = self.paused else { return Ok("finds nobody".to_owned()) };
        let whom = called(fleet, member);
        fleet.pause(member)?;
        Ok(format!("pauses {whom}"))
    }

    fn end(&mut self, fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        self.paused.take().map_or(Ok(()), |member| fleet.resume(member))
    }
}
