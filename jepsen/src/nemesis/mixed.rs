//! All of them, one or two at a time, drawn anew for each window.

use super::{ALL, Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::{Fleet, Setup};
use crate::process::Trouble;

pub(super) const KIND: Kind = Kind {
    name: "mixed",
    about: "one or two of the others at a time, drawn anew for each window",
    wants: Wants { leader_change: true, progress_inside: false, members_min: 3 },
    possible: anywhere,
    make: || Box::new(Mixed::of_all()),
};

/// Two faults at once in one window of this many.
const TWO_IN: u64 = 3;

/// See the module.
pub struct Mixed {
    parts: Vec<(&'static str, Box<dyn Nemesis>)>,
    active: Vec<usize>,
}

impl Mixed {
    fn of_all() -> Self {
        let fits = |kind: &&Kind| !["none", "mixed"].contains(&kind.name);
        Self::of(ALL.iter().filter(fits).filter(|kind| (kind.possible)().is_ok()))
    }

    /// Of these.
    pub fn of<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Self {
        let parts = kinds.into_iter().map(|kind| (kind.name, (kind.make)())).collect();
        Self { parts, active: Vec::new() }
    }
}

impl Nemesis for Mixed {
    fn prepare(&self, setup: &mut Setup) {
        self.parts.iter().for_each(|(_, part)| part.prepare(setup));
    }

    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, Trouble> {
        let first = dice.one_of(self.parts.len());
        self.active = vec![first];
        if dice.below(TWO_IN) == 0 {
            let second = dice.one_of(self.parts.len());
            self.active.extend(Some(second).filter(|second| *second != first));
        }
        let mut said = Vec::new();
        for at in &self.active {
            let (name, part) = &mut self.parts[*at];
            said.push(format!("{name}: {}", part.begin(fleet, dice)?));
        }
        Ok(said.join("; "))
    }

    fn end(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<(), Trouble> {
        // The last to come goes first.
        while let Some(at) = self.active.pop() {
            self.parts[at].1.end(fleet, dice)?;
        }
        Ok(())
    }
}
