//! Nothing goes wrong: what all others are compared with.

use super::{Kind, Nemesis, Wants, anywhere};
use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::Trouble;

pub(super) const KIND: Kind = Kind {
    name: "none",
    about: "nothing goes wrong",
    wants: Wants { leader_change: false, progress_inside: true, members_min: 1 },
    alone: true,
    possible: anywhere,
    make: || Box::new(None),
};

struct None;

impl Nemesis for None {
    fn begin(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<String, Trouble> {
        Ok("nothing".to_owned())
    }

    fn end(&mut self, _fleet: &Fleet, _dice: &mut Dice) -> Result<(), Trouble> {
        Ok(())
    }
}
